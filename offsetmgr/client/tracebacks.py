"""Short tracebacks: an error of ours is about what the caller asked for, not about how we asked."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from offsetmgr.errors import OffsetManagerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")

_T = TypeVar("_T")


def cut(error: OffsetManagerError) -> OffsetManagerError:
    """`error` without its traceback and its causes, all of which its message names."""
    error.__cause__ = None  # which also hides the context
    return error.with_traceback(None)


def short_traceback(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have errors of this package come out of `call` with one frame; a bug keeps all of them."""

    @wraps(call)
    def shortened(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except OffsetManagerError as error:
            raise error.with_traceback(None) from error.__cause__

    return shortened
