"""The files of the dashboard: they hold no data, so anyone who may connect may load them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER: Final = Path(__file__).with_name("page")

_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


class PageFiles:
    """The page at ``/`` and its parts below ``/page/``, read once."""

    def __init__(self) -> None:
        self._files = {
            _path(each): _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
            for each in FOLDER.rglob("*")
            if (media_type := _MEDIA_TYPES.get(each.suffix))
            for content in [each.read_bytes()]
        }

    def answer(self, request: Request) -> Response | None:
        """Return the file that is asked for, None if the request is for something else."""
        found = self._files.get(request.scope["path"])
        if found is None or request.method not in {"GET", "HEAD"}:
            return None
        # Asked for again each time: an upgraded service and its page must not be of two versions.
        headers = {"cache-control": "no-cache", "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)


def _path(file: Path) -> str:
    relative = file.relative_to(FOLDER).as_posix()
    return "/" if relative == "index.html" else f"/page/{relative}"
