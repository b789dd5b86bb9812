"""A day on call with the page alone: from the alarm to the undo, by clicks in a real Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from offsetmgr.types import TopicPartition
from tests.browser.conftest import launched, watched
from tests.chaos.offsets_topic import read_committed
from tests.kafka.conftest import service_of
from tests.kafka.test_cluster_reader import commit, produce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from offsetmgr.devkafka import DevKafka
    from tests.conftest import TopicFactory
    from tests.service.support import ServeProcess

RECORDS: Final = 100
TOKEN: Final = "token-of-the-operator-on-call"  # noqa: S105 -- of this test alone
CONFIG: Final = """
[watch]
groups = "group-test_a_day_on_call-.*"
interval_s = 1

[identities.oncall]
token_file = "{token}"
groups = ["*"]
topics = ["*"]
"""


@pytest.fixture
def service(kafka: DevKafka, tmp_path: Path) -> Iterator[ServeProcess]:
    """A service that watches the group of this test, and asks for a token."""
    token, config = tmp_path / "token", tmp_path / "offsetmgr.toml"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    config.write_text(CONFIG.format(token=token))
    with service_of(kafka, "--config", str(config)) as process:
        yield process


@pytest.fixture
def page(service: ServeProcess) -> Iterator[Page]:
    """A browser's window with the page."""
    with (
        launched() as browser,
        browser.new_page() as opened,
        watched(opened, service.address) as page,
    ):
        page.goto(service.address)
        page.get_by_label("Access token").fill(TOKEN)
        page.get_by_role("button", name="Show the service").click()
        yield page


def row(page: Page, text: str) -> Locator:
    """Return the rows of the table that have the text."""
    return page.get_by_role("row").filter(has_text=text)


def expect_lag(page: Page, group: str, lag: str) -> None:
    """Wait until the view of all groups shows this lag."""
    expect(row(page, group).get_by_role("cell", name=lag, exact=True)).to_be_visible()


def test_a_day_on_call(
    kafka: DevKafka, service: ServeProcess, page: Page, new_topic: TopicFactory, group: str
) -> None:
    """A reset of the wrong group shows as lag, is found in the history, and is undone."""
    topic = new_topic(2)
    for number in range(2):
        produce(kafka, topic, number, RECORDS)
    commit(kafka, group, {TopicPartition(topic, 0): 90, TopicPartition(topic, 1): 91})
    expect_lag(page, group, "19")

    # Somebody resets the wrong group, past the service.
    commit(kafka, group, {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
    expect_lag(page, group, "200")
    page.get_by_role("link", name=group).click()
    expect(page.get_by_text("lag 200")).to_be_visible()
    expect(row(page, topic)).to_have_count(2)

    page.get_by_role("link", name="History").click()
    backward = row(page, "backward")
    expect(backward).to_have_count(2)
    # Both were one commit, so to before it is to before either.
    backward.first.get_by_role("button", name="Undo …").click()
    plan = page.get_by_role("dialog")
    skipped = "2 of 2 partitions change, 181 records would be skipped."
    expect(plan.get_by_text(skipped)).to_be_visible()
    assert stands(kafka, group, topic) == {0: 0, 1: 0}
    plan.get_by_role("button", name="Set 2 offsets").click()
    expect(plan.get_by_text("Done: 2 offsets set.")).to_be_visible()
    assert stands(kafka, group, topic) == {0: 90, 1: 91}

    plan.get_by_role("button", name="Close").click()
    expect(row(page, "forward")).to_have_count(2)
    page.get_by_role("link", name="Partitions").click()
    expect(page.get_by_text("lag 19")).to_be_visible()
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Groups").click()
    expect_lag(page, group, "19")


def stands(kafka: DevKafka, group: str, topic: str) -> dict[int, int]:
    """Return what Kafka has committed."""
    return read_committed(kafka.bootstrap_servers, group, topic, range(2))
