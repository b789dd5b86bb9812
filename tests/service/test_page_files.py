"""The files of the dashboard, as any browser gets them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.service.support import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture(scope="module")
def browser() -> Iterator[httpx.Client]:
    """Return a connection without a name."""
    with running() as service, service.http() as client:
        yield client


def test_the_page_comes_with_all_its_parts(browser: httpx.Client) -> None:
    """Every file that the page names is served, with its media type."""
    asked, seen = ["/"], set()
    while asked:
        path = asked.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = browser.get(path)
        assert answer.status_code == 200, path
        folder = path.rpartition("/")[0]
        if path == "/":
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            asked += ["/" + each for each in re.findall(r'(?:href|src)="([^"]+)"', answer.text)]
        elif path.endswith(".js"):
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            named = re.findall(r'(?:from |import\()"(\.[^"]+)"', answer.text)
            asked += [str(browser.base_url.join(f"{folder}/{each}").path) for each in named]
    assert {"/page/page.css", "/page/views/groups.js", "/page/vendor/uPlot.esm.js"} <= seen


def test_a_browser_may_do_no_more_with_an_answer_than_the_page_needs(browser: httpx.Client) -> None:
    """No other site's code, frames or scripts made of text; nothing is guessed about a file."""
    for path in ("/", "/page/main.js", "/livez", "/metrics", "/v1/managers", "/none"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["cache-control"] == "no-store"  # an upgraded service has other scripts
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_a_link_of_another_site_opens_the_page_but_not_its_data(browser: httpx.Client) -> None:
    """A runbook may link to the page; another site's script still learns nothing."""
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}
    assert browser.get("/", headers=foreign).status_code == 200
    framed = foreign | {"sec-fetch-dest": "iframe"}
    for path, headers in (("/", framed), ("/page/main.js", foreign), ("/v1/managers", foreign)):
        assert browser.get(path, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/page/", "/page/../http.py", "/page/%2e%2e/http.py", "/page/x"])
def test_nothing_but_the_page_is_served(browser: httpx.Client, path: str) -> None:
    """Only the files of the page have an address."""
    assert browser.get(path).status_code == 404
