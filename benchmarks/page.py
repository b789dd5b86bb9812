"""The dashboard with 10,000 partitions of a group, in Chromium.

The time until the rows are drawn, and the main thread's time for an update of all partitions.  Over
prepared answers, so that neither Kafka nor the service is measured.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from playwright.sync_api import expect
from starlette.responses import Response

from benchmarks.harness import at_most, serving, show
from offsetmgr.http.answers import encode
from offsetmgr.service.api import page_files
from tests.browser import answers
from tests.browser.conftest import launched

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page
    from starlette.types import Receive, Scope, Send

PARTITIONS: Final = 10_000
FIRST_ROWS_S: Final = 1.0
UPDATE_MS: Final = 50.0
ROWS: Final = "document.querySelectorAll('tbody tr:not(.spacer)').length"

# Marks the frame in which the first rows are drawn.
_MARK_ROWS: Final = f"""
const look = () => {ROWS} ? performance.mark("rows") : requestAnimationFrame(look);
requestAnimationFrame(look);
"""
_ASK_AGAIN: Final = "document.dispatchEvent(new Event('visibilitychange'))"


class _Prepared:
    """Serves the page and prepared answers; each answer about lag differs from the one before."""

    def __init__(self) -> None:
        self._files = page_files()
        summary = answers.group_summary("bench", partitions=PARTITIONS)
        self._overview = encode(answers.overview(summary))
        self._lags = [
            answers.lag("bench", *(self._row(each, turn) for each in range(PARTITIONS)))
            for turn in range(2)
        ]
        self.asked = 0

    def _row(self, number: int, turn: int) -> answers.Json:
        return answers.partition(
            number, committed=number * 100 + turn, lag=number * 7 % 1_000 + turn
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = self._files.get(path)
        if found is None and path == "/v1/lag":
            self.asked += 1
            lag = answers.with_fields(self._lags[self.asked % 2], scope["query_string"].decode())
            found = Response(encode(lag), media_type="application/json")
        elif found is None and path == "/v1/overview":
            found = Response(self._overview, media_type="application/json")
        await (found or Response(status_code=404))(scope, receive, send)


def _busy_ms(cdp: CDPSession) -> float:
    """Return how long the main thread has worked so far."""
    metrics = {
        each["name"]: each["value"] for each in cdp.send("Performance.getMetrics")["metrics"]
    }
    return 1_000 * float(metrics["TaskDuration"])


def _first_rows_s(page: Page, address: str) -> float:
    """Return the time from the address's entry to the first rows."""
    page.goto("about:blank")
    page.goto(f"{address}/#/groups/bench")
    page.locator("tbody tr:not(.spacer)").first.wait_for()
    return 0.001 * float(page.evaluate("performance.getEntriesByName('rows')[0].startTime"))


def _update_ms(page: Page, cdp: CDPSession) -> float:
    """Return the main thread's time for a new answer with all partitions."""
    lag = page.locator("tbody tr:nth-child(2) td:nth-child(4)")
    before = lag.inner_text()
    begun_ms = _busy_ms(cdp)
    page.evaluate(_ASK_AGAIN)
    expect(lag).not_to_have_text(before)
    return _busy_ms(cdp) - begun_ms


def run(_brokers: str, rounds: int) -> list[str]:
    """Draw and update the page ``rounds`` times; return what was missed."""
    with serving(_Prepared()) as address, launched() as browser:
        page = browser.new_page()
        page.add_init_script(_MARK_ROWS)
        first = [_first_rows_s(page, address) for _ in range(rounds)]
        cdp = page.context.new_cdp_session(page)
        # Of the thread's own time, as others share the processor.
        cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        updates = [_update_ms(page, cdp) for _ in range(rounds)]
        rows = str(page.evaluate(ROWS))
    figures = (
        ("first rows", f"{1_000 * median(first):,.0f} ms", f"{1_000 * max(first):,.0f} ms"),
        ("main thread, an update", f"{median(updates):,.1f} ms", f"{max(updates):,.1f} ms"),
        ("rows that are elements", rows, rows),
    )
    show(f"Page with {PARTITIONS:,} partitions", ("what", "median", "most"), figures)
    missed = at_most("first rows of the page", median(first), FIRST_ROWS_S, "s")
    return missed + at_most("an update of the page", median(updates), UPDATE_MS, "ms")
