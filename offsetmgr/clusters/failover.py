"""The order in which a write tries its clusters; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALWAYS: Final = float("-inf")
"""For ``answering_since_s``: there was no failure yet."""


def ranking(
    order: Sequence[str],
    answering_since_s: Mapping[str, float | None],
    current: str | None,
    now_s: float,
    fail_back_s: float,
) -> list[str]:
    """Return all clusters, the one to write to first.

    ``order`` begins with the preferred cluster.  ``answering_since_s`` is the time from which a
    cluster has answered without a failure, None where it does not answer.  A cluster is settled
    once it has answered for ``fail_back_s``.

    ``current`` is left for a cluster that is preferred to it and settled, or when it does not
    answer.  Without ``current`` the first settled cluster comes first.
    """
    settled, recovering, silent = [], [], []
    for name in order:
        since_s = answering_since_s[name]
        if since_s is None:
            silent.append(name)
        elif now_s - since_s >= fail_back_s:
            settled.append(name)
        else:
            recovering.append(name)
    first: list[str] = []
    if current is not None and answering_since_s[current] is not None:
        preferred = order[: order.index(current)]
        first = [*(name for name in settled if name in preferred), current]
    return list(dict.fromkeys([*first, *settled, *recovering, *silent]))
