"""The followed checkpoints: a pattern of checkpoints, and the groups that mirror them."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 -- a type of a setting
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offsetmgr.config import is_number
from offsetmgr.errors import InvalidValueError
from offsetmgr.spark.checkpoint import Checkpoint
from offsetmgr.spark.files import check_location
from offsetmgr.spark.group_state import Groups

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

LEAST_INTERVAL_S: Final = 0.1

_NAME: Final = "{name}"
_ANY: Final = "([^/]*)"


@dataclass(frozen=True)
class Follow:
    """Checkpoints to follow, and the groups that mirror them.  Times are seconds."""

    checkpoint: str
    """A path or URL of a checkpointLocation; each ``*`` stands for any part of one name."""
    group: str = ""
    """The group of all topics; ``{name}`` is what the ``*`` matched (several joined by ``-``), or
    without one the last name of the path."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Instead of ``group``: topic → group.  Topics that are not named are not committed."""
    interval_s: float = 10.0
    keep_alive_s: float = 3_600.0
    """A query without a finished batch for so long counts as stopped, and its offsets are not
    renewed any more."""

    def __post_init__(self) -> None:
        """Raise InvalidValueError."""
        check_location(self.checkpoint)
        if "**" in self.checkpoint:
            fix = "give each level a * of its own, as in s3://lake/*/checkpoints/*"
            raise InvalidValueError("checkpoint", self.checkpoint, "has a **", fix)
        self.groups_of("name")
        for name, least in (("interval_s", LEAST_INTERVAL_S), ("keep_alive_s", 1)):
            value = getattr(self, name)
            if not is_number(value, (int, float)) or not least <= value <= 366 * 86_400:
                fix = f"give seconds, from {least} to a year"
                raise InvalidValueError(name, value, "is not possible", fix)

    def groups_of(self, name: str) -> Groups:
        """Return the groups of the checkpoint of this name.  Raises InvalidValueError."""
        group = self.group.replace(_NAME, name)
        groups = {topic: str(each).replace(_NAME, name) for topic, each in self.groups.items()}
        return Groups.of(group or None, groups or None)


def expand(
    pattern: str, requests: Counter[str], unreadable: dict[str, OSError]
) -> Iterator[tuple[str, str]]:
    """Yield the locations that ``pattern`` matches, each with its name for ``{name}``.

    A location without ``*`` matches itself, even if nothing is there.  Names that begin with a dot
    or an underscore are omitted, as Spark omits them.  ``requests`` counts the lists.  Folders that
    cannot be listed are omitted, and ``unreadable`` gets their errors.  Raises InvalidValueError.
    """
    pattern = pattern.rstrip("/")
    if "*" not in pattern:
        yield pattern, pattern.rpartition("/")[2]
        return
    before, _, rest = pattern.partition("*")
    folder, slash, start = before.rpartition("/")
    end, _, below = rest.partition("/")
    fits = re.compile(re.escape(start) + _ANY + _ANY.join(map(re.escape, end.split("*"))))
    root = folder or slash or "."
    try:
        names = Checkpoint(root, requests=requests).names("")
    except OSError as error:
        unreadable[root] = error
        return
    for name in sorted(names):
        match = fits.fullmatch(name)
        if match is None or name[0] in "._":
            continue
        stars = [*match.groups()]
        found = "/".join([f"{folder}{slash}{name}", *([below] if below else [])])
        if "*" not in below:
            yield found, "-".join(stars)
            continue
        for location, further in expand(found, requests, unreadable):
            yield location, "-".join([*stars, further])
