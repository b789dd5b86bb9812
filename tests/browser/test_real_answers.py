"""The page over the real service, whose coordinator in memory fails as the test says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from offsetmgr.coordinator.memory import Refuse
from tests.browser.conftest import watched
from tests.service.support import running

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OFFSETS = {"group": "orders-etl", "offsets": [{"topic": "orders", "partition": 3, "offset": 7}]}
QUERY = {"id": "1", "run_id": "2", "state": "running", "name": "etl", "groups": ["orders-etl"]}
AUTHORIZATION_FAILED = 30


def test_a_failing_commit_is_an_alarm_with_its_cure(chromium: Browser) -> None:
    """The group, the error, the query and, while the service stops, the offset that is left."""
    with (
        running(stop_timeout_s=300) as service,
        service.http("etl") as etl,
        chromium.new_page() as opened,
        watched(opened, service.address) as page,
    ):
        service.coordinator.inject("commit", *[Refuse(AUTHORIZATION_FAILED)] * 10_000)
        etl.post("/v1/offsets", json=OFFSETS).raise_for_status()
        etl.post("/v1/queries", json={"queries": [{**QUERY, "batch_id": 1204}]}).raise_for_status()
        page.goto(service.address)
        expect(page.get_by_role("row", name="orders-etl")).to_contain_text("failing")
        # Kafka cannot be asked for the lag, but what the service knows itself is shown.
        page.get_by_role("link", name="orders-etl").click()
        known = page.get_by_role("listitem").filter(has_text="the service lacks READ on the group")
        expect(known).to_be_visible()
        page.get_by_role("link", name="Commit errors (1)").click()
        card = page.get_by_role("article")
        expect(card).to_contain_text("GROUP_AUTHORIZATION_FAILED orders-etl")
        expect(card).to_contain_text("grant")
        expect(card).to_contain_text("Partitions: orders 3")
        page.get_by_role("link", name="Queries").click()
        expect(page.get_by_role("row", name="orders-etl")).to_contain_text("1,204")
        page.get_by_role("link", name="Streams").click()
        expect(page.get_by_text("No processor commits through this service")).to_be_visible()

        service.coordinator.pause()
        service.stop()
        page.get_by_role("link", name="What it still commits").click()
        expect(page.get_by_text("1 offset of 1 partition not committed yet")).to_be_visible()
        expect(page.get_by_role("row", name="orders-etl")).to_contain_text("7")
        service.coordinator.resume()
