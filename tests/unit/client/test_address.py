"""The address in a URL, and the error of a wrong one."""

from __future__ import annotations

import pytest

from offsetmgr.client.transport import ServiceAddress, parse_url
from offsetmgr.errors import InvalidValueError

GOOD: dict[str, ServiceAddress] = {
    "http://127.0.0.1:8741": ServiceAddress("127.0.0.1", 8741),
    "http://localhost/": ServiceAddress("localhost", 8741),
    "http://[::1]:80": ServiceAddress("::1", 80),
    "https://host": ServiceAddress("host", 8741, tls=True),
    "http://[fe80::1%25eth0]:80": ServiceAddress("fe80::1%eth0", 80),
    f"unix:///{106 * 'x'}": ServiceAddress(path="/" + 106 * "x"),
    "unix:///run/off setmgr@1.sock": ServiceAddress(path="/run/off setmgr@1.sock"),
    "unix:///run/offsetmgr@1.sock": ServiceAddress(path="/run/offsetmgr@1.sock"),
}

BAD: dict[str, object] = {
    "no text": 8741,
    "empty": "",
    "no scheme": "127.0.0.1:8741",
    "https without host": "https://:8741",
    "no host": "http://:8741",
    "port": "http://127.0.0.1:99999",
    "port as text": "http://127.0.0.1:http",
    "path": "http://127.0.0.1:8741/v1",
    "query": "http://127.0.0.1:8741?a=b",
    "space": "http://127.0.0.1 :8741",
    "newline": "http://127.0.0.1:8741\r\nX: y",
    "number": 10**5_000,
    "bracket": "http://[::1",
    "relative": "unix://run/offsetmgr.sock",
    "no path": "unix://",
    "root": "unix:///",
    "space behind": "unix:///run/offsetmgr.sock ",
    "long path": "unix:///" + 107 * "x",
    "long path in bytes": "unix:///" + 54 * "é",
}


@pytest.mark.parametrize("url", GOOD)
def test_good_urls(url: str) -> None:
    """Hosts, ports, IPv6 and Unix sockets are read."""
    assert parse_url(url) == GOOD[url]


@pytest.mark.parametrize("case", BAD)
def test_bad_urls(case: str) -> None:
    """A URL that leads nowhere is refused with the field and a way out."""
    with pytest.raises(InvalidValueError) as caught:
        parse_url(BAD[case])
    assert caught.value.field == "url"
    assert caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1:8741", "127.0.0.1:http", "/v1", "[::1", "a b"])
def test_a_password_is_not_repeated(host: str) -> None:
    """A URL with a user is refused without its secret in the message."""
    with pytest.raises(InvalidValueError) as caught:
        parse_url(f"http://me:secret@{host}")
    assert "secret" not in str(caught.value)
