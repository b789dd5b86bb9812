"""The port by which metrics and event streams follow the managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetmgr.errors import OffsetManagerError
    from offsetmgr.types import ManagerKey, OffsetAndMetadata, StopResult


class Observer(Protocol):
    """Called on actor threads, by several at once: must be quick and must not raise."""

    def committed(self, offsets: Mapping[ManagerKey, OffsetAndMetadata]) -> None:
        """The coordinator acknowledged ``offsets``, of one group."""

    def failed(self, key: ManagerKey, error: OffsetManagerError) -> None:
        """A commit or fetch failed, or a submitted offset was dropped as a regression."""

    def requested(
        self,
        kind: Literal["commit", "fetch"],
        group: str,
        partitions: int,
        failures: int,
        duration_s: float,
    ) -> None:
        """A request to the coordinator was answered."""

    def stopped(self, key: ManagerKey, result: StopResult) -> None:
        """A manager is gone."""


class _NoObserver(Observer):
    pass


NO_OBSERVER: Final[Observer] = _NoObserver()  # type: ignore[abstract]  # its methods do nothing
"""Ignores everything."""
