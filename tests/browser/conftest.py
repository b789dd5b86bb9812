"""A real Chromium, and a service whose page it opens."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.fake import FakeApi
from tests.service.support import WAIT_S, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

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


class NewTab(Protocol):
    def __call__(
        self, width: int = 1280, height: int = 800, colours: Literal["light", "dark"] = "light"
    ) -> Tab:
        """Return a tab in a window of that size."""


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
    """Return the address of a service that serves the page."""
    with running() as service:
        yield service.address


@contextmanager
def watched(context: BrowserContext, address: str) -> Iterator[Page]:
    """Yield a new page; fails if a script failed, or anything of another host was asked for."""
    page = context.new_page()
    page.set_default_timeout(WAIT_S * 1_000)
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        # What the page makes of a refused request is for the test to say.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def on_request(request: Request) -> None:
        if not request.url.startswith(address):
            problems.append(f"asked for {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", on_request)
    yield page
    assert problems == []


@pytest.fixture
def new_tab(chromium: Browser, served: str) -> Iterator[NewTab]:
    """Open tabs, each with an API of its own that the test scripts."""

    def open_tab(
        width: int = 1280, height: int = 800, colours: Literal["light", "dark"] = "light"
    ) -> Tab:
        context = stack.enter_context(
            chromium.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
        )
        api = FakeApi(context)
        return Tab(stack.enter_context(watched(context, served)), served, api)

    with ExitStack() as stack:
        yield open_tab


@pytest.fixture
def tab(new_tab: NewTab) -> Tab:
    return new_tab()
