"""Stands in for the API of a service, below the real page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tests.browser import answers

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, Route

    from tests.browser.answers import Json

START: Final = '{"orders": {"0": 1000040, "1": -2}}'


class FakeApi:
    """Answers every request below ``/v1/``; a test says how."""

    def __init__(self, page: Page) -> None:
        self.requests: list[Request] = []
        self.headers: dict[str, str] = {}
        self._answers: dict[str, tuple[int, Json | str]] = {}
        self.says("overview", answers.overview(answers.group_summary("orders-etl")))
        self.says("lag", answers.lag("orders-etl", *map(answers.partition, range(4))))
        self.says("history", answers.history("orders-etl"))
        self.says("starting-offsets", {"group": "orders-etl", "starting_offsets": START})
        self.says("queries", answers.QUERIES)
        self.says("streams", answers.streams())
        self.says("draining", answers.draining())
        self.streams("")
        page.route("**/v1/**", self._answer)

    def says(self, name: str, answer: Json, status: int = 200) -> None:
        self._answers[name] = status, answer

    def streams(self, events: str) -> None:
        """Have the next reader of events get these; then the stream ends, and nothing follows."""
        self._answers["events"] = 200, events

    def posted(self, name: str) -> list[Any]:
        """Return the bodies of the POSTs to ``/v1/NAME``."""
        found = [each for each in self.requests if each.url.endswith(f"/v1/{name}")]
        return [each.post_data_json for each in found]

    def _answer(self, route: Route, request: Request) -> None:
        self.requests.append(request)
        asked = urlsplit(request.url)
        name = asked.path.removeprefix("/v1/")
        status, answer = self._answers[name]
        if isinstance(answer, str):
            self.streams("")
            route.fulfill(status=status, body=answer, content_type="text/event-stream")
            return
        if "groups" in answer and name == "lag":
            answer = answers.with_fields(answer, asked.query)
        route.fulfill(status=status, json=answer, headers=self.headers)
