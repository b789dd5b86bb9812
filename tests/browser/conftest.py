"""A real Chromium, and a service whose page it opens."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.fake import FakeApi
from tests.service.support import running
from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# A guard against what never comes, not a measure.
expect.set_options(timeout=WAIT_S * 1_000)


class Tab:
    """A tab of the browser, before an API that the test scripts."""

    def __init__(self, page: Page, address: str, api: FakeApi) -> None:
        self.page = page
        self.address = address
        self.api = api

    def open(self, view: str = "groups") -> Page:
        self.page.goto(f"{self.address}/#/{view}")
        return self.page

    def in_phone(self) -> None:
        self.page.set_viewport_size({"width": 390, "height": 844})

    def in_colours(self, colours: Literal["light", "dark"]) -> None:
        self.page.emulate_media(color_scheme=colours)


def chromium_path() -> str:
    return shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield the system's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")  # Playwright keeps an event loop in this thread
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with running() as service:
        yield service.address


@contextmanager
def watched(page: Page, address: str) -> Iterator[Page]:
    """Yield the page; fails if a script failed, or anything of another host was asked for."""
    page.set_default_timeout(WAIT_S * 1_000)
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        # What the page makes of a refused request is for the test to say.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def on_error(error: Error) -> None:
        problems.append(str(error))

    def on_request(request: Request) -> None:
        if not request.url.startswith(address):
            problems.append(f"asked for {request.url}")

    page.on("console", on_console)
    page.on("pageerror", on_error)
    page.on("request", on_request)
    yield page
    page.remove_listener("console", on_console)
    page.remove_listener("pageerror", on_error)
    page.remove_listener("request", on_request)
    assert problems == []


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    """One page for all tests: a new one would compile every script again."""
    with chromium.new_page() as opened:
        yield opened


@pytest.fixture
def tab(page: Page, served: str) -> Iterator[Tab]:
    """Return an empty tab that knows nothing of an earlier test."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")
    api = FakeApi(page)
    with watched(page, served):
        yield Tab(page, served, api)
        page.goto(f"{served}/livez")
        page.evaluate("sessionStorage.clear()")
        page.unroute_all()
