"""Services with identities and TLS, and connections to them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.waiting import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.certificates import Authority
    from tests.service.support import Running

TOKENS: Final = {name: f"token-of-{name}-0123456789" for name in ("etl", "reader", "admin")}
OWN: Final = {"group": "orders-etl", "offsets": [{"topic": "orders", "partition": 0, "offset": 7}]}


def token_file(folder: Path, name: str) -> str:
    path = folder / f"{name}.token"
    path.touch(mode=0o600)
    path.write_text(f"{TOKENS[name]}\n")
    return str(path)


def identities(folder: Path) -> dict[str, object]:
    allowed: dict[str, dict[str, Any]] = {
        "etl": {"groups": ["orders-*"], "topics": ["orders", "clicks"]},
        "reader": {"groups": ["orders-*"], "topics": ["orders"], "read_only": True},
        "admin": {"groups": ["*"], "topics": ["*"]},
    }
    return {
        f"identities__{name}__{key}": value
        for name, table in allowed.items()
        for key, value in {**table, "token_file": token_file(folder, name)}.items()
    }


def as_identity(service: Running, name: str, client: str = "job") -> httpx.Client:
    made = service.http(client)
    made.headers["Authorization"] = f"Bearer {TOKENS[name]}"
    return made


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def over_tls(authority: Authority, folder: Path, **more: object) -> dict[str, object]:
    """Settings of a service with TLS that could be reached from other machines."""
    signed = authority.sign("service.test")
    return {
        "listen": "127.0.0.1:0",
        "tls__certificate": signed.certificate,
        "tls__key": signed.key,
        **identities(folder),
        **more,
    }


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def tls_client(service: Running, context: ssl.SSLContext) -> httpx.Client:
    headers = {"Authorization": f"Bearer {TOKENS['etl']}", "Offsetmgr-Client": "job"}
    return httpx.Client(base_url=service.address, headers=headers, verify=context, timeout=WAIT_S)
