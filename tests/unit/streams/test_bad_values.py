"""Arguments of a wrong type are refused by name, in consumers, clusters, stores and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from offsetmgr.clusters import MultiClusterAckConsumer
from offsetmgr.consumer import AckConsumer, OffsetStash
from offsetmgr.errors import InvalidValueError
from offsetmgr.stores import MemoryOffsetStore
from offsetmgr.streams import LmdbStorage, TopicManager, TopicSettings, View, ViewReader, codecs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEAD = "127.0.0.1:9"
FIVE: Any = 5
LIST: Any = ["orders"]


def acks() -> AckConsumer:
    return AckConsumer(DEAD, "etl", ["orders"])


def cluster_acks() -> MultiClusterAckConsumer:
    return MultiClusterAckConsumer({"west": DEAD}, "etl", ["orders"])


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("message 5 is not a message", lambda: acks().commit_up_to(FIVE)),
    ("message 5 is not a message", lambda: cluster_acks().commit_up_to(FIVE)),
    (r"workers \d+ is too large", lambda: acks().run(print, workers=2**63)),
    (r"workers \d+ is too large", lambda: cluster_acks().run(print, workers=2**63)),
    ("stash 5 is not a stash", lambda: OffsetStash().mark_offsets(FIVE)),
    ("stash 5 is not a stash", lambda: OffsetStash().reset_offsets(FIVE)),
    ("topic", lambda: MemoryOffsetStore().fetch_offset("etl", LIST, 0)),
    ("topic", lambda: MemoryOffsetStore().commit_offset("etl", LIST, 0, 1)),
    ("settings 5 has the wrong type", lambda: TopicManager(DEAD, FIVE)),
    ("topic .* is not", lambda: TopicManager(DEAD).ensure_table(LIST, 1)),
    ("storage 5 is not a store", lambda: View(DEAD, "t", codecs.String(), storage=FIVE)),
    ("table 5 is not a mapping", lambda: TopicSettings(table=FIVE)),
    ("path '' is not a folder", lambda: LmdbStorage("")),
    ("path 5 is not a folder", lambda: LmdbStorage(FIVE)),
    ("fsync 5 is neither", lambda: LmdbStorage("view", fsync=FIVE)),
    ("path '' is not a folder", lambda: ViewReader("", codecs.String())),
]


@pytest.mark.parametrize(("text", "call"), WRONG, ids=map(str, range(len(WRONG))))
def test_an_argument_of_a_wrong_type_is_refused_by_name(
    text: str, call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raised AttributeError or TypeError, never returned, or stored in the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValueError, match=f"^{text}"):
        call()
    assert not list(tmp_path.iterdir())
