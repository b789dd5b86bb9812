"""Answers in JSON, within a limit of bytes, and the pages of long lists."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from starlette.responses import Response

from offsetmgr.errors import OffsetManagerError, OverloadedError
from offsetmgr.http.errors import ErrorAnswer, HttpStatusError, error_body, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_T = TypeVar("_T")

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one answer; the product's own client reads no more."""
PAGE_BYTES: Final = 8 * 1024 * 1024
"""A page of a list ends after so many bytes."""
RETRY_AFTER_S: Final = 1

encode: Final = msgspec.json.Encoder().encode


def page_of(rows: Iterable[_T], most: int | None) -> tuple[list[_T], _T | None]:
    """Return the first rows, and the one after them, None if there is none.

    They are up to ``most`` rows and up to PAGE_BYTES in JSON, but at least one.  If ``most`` is
    None, they are all rows; then it raises HttpStatusError if these are too large for one answer.
    """
    page: list[_T] = []
    left = PAGE_BYTES if most else MOST_BYTES
    for row in rows:
        left -= len(encode(row))
        if page and (left < 0 or len(page) == most):
            if most is None:
                raise _too_large()
            return page, row
        page.append(row)
    return page, None


def rows_that_fit(
    rows: Sequence[_T], is_last: Callable[[_T], bool]
) -> tuple[Sequence[_T], HttpStatusError | None]:
    """Return the rows that fit in half of an answer, in their order, and why some are missing.

    Of too many those go first for which ``is_last`` is true, and of these the largest.
    """
    sizes = [len(encode(row)) for row in rows]
    left = MOST_BYTES // 2
    if sum(sizes) <= left:
        return rows, None
    kept = set()
    for index in sorted(range(len(rows)), key=lambda at: (is_last(rows[at]), sizes[at])):
        left -= sizes[index]
        if left < 0:
            break
        kept.add(index)
    text = (
        f"{len(rows) - len(kept)} of {len(rows)} groups are not listed: with their names the "
        f"answer would be larger than {MOST_BYTES // 2} bytes"
    )
    error = HttpStatusError(HTTPStatus.BAD_REQUEST, "answer_too_large", text)
    return [row for index, row in enumerate(rows) if index in kept], error


def _too_large() -> HttpStatusError:
    text = (
        f"the answer would be larger than {MOST_BYTES} bytes; ask for fewer groups, topics or "
        "fields, or for pages (limit and after) where the operation has them"
    )
    return HttpStatusError(HTTPStatus.BAD_REQUEST, "answer_too_large", text)


def json_response(answer: msgspec.Struct | dict[str, Any], status: int = HTTPStatus.OK) -> Response:
    """Return ``answer`` in JSON.  Raises HttpStatusError if that is too large."""
    body = encode(answer)
    if len(body) > MOST_BYTES:
        raise _too_large()
    return Response(body, status, media_type="application/json")


def error_response(error: OffsetManagerError) -> Response:
    response = json_response(ErrorAnswer(error_body(error)), status_of(error))
    if isinstance(error, HttpStatusError):
        response.headers.update(error.headers)
    if isinstance(error, OverloadedError):
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response
