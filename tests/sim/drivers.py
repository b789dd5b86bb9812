"""Spark drivers of a simulation: programs that use the real client, and die with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetmgr.client import OffsetClient, offsets
from offsetmgr.codes import OFFSET_CHANGED, error_info
from offsetmgr.errors import (
    ClientFencedError,
    ManagerExistsError,
    ManagerStoppedError,
    OffsetManagerError,
    OffsetRegressionError,
    OffsetTimeoutError,
)
from offsetmgr.types import FlushResult, ManagerKey, OffsetAndMetadata
from tests.sim.processes import Process
from tests.sim.service_judge import Submitted
from tests.sim.threads import SimThread, acting_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetmgr.types import OffsetManagerHandle
    from tests.sim.processes import Host
    from tests.sim.service_judge import ServiceJudge

URL: Final = "http://127.0.0.1:8741"

_EXCUSES: Final = (OffsetRegressionError, ManagerExistsError, ManagerStoppedError)
"""Why something may be left though nothing went wrong: its user, or somebody else's."""

LATE_S: Final = 0.01
"""An answer may be later than its deadline by the time of the last step."""


class Driver:
    """One life of a driver program; ``keys`` are the partitions it reads."""

    def __init__(
        self, host: Host, judge: ServiceJudge, name: str, life: int, keys: list[ManagerKey]
    ) -> None:
        self.name = name
        self.life = life
        self.keys = keys
        self.newest: dict[ManagerKey, OffsetAndMetadata] = {}
        """The newest offsets of its client, without partitions that are being stopped."""
        self.passed_over: set[OffsetAndMetadata] = set()
        """Offsets that a flush or stop called lower than the committed one."""
        self.stopping: list[ManagerKey] = []
        self.closed = False
        self.calm = False
        self._syncing: list[ManagerKey] = []
        """True if nothing goes wrong, so that nothing may be left uncommitted."""
        self._judge = judge
        self._clock = host.clock
        self._waiting = 0
        self.process = Process(host, f"{name}.{life}")
        with acting_for(self.process):
            self.client = OffsetClient(URL, name=name)
        self.process.on_kill.append(self._forget)

    def _forget(self) -> None:
        offsets.open_offsets.discard(self.client)
        self.client._result = FlushResult({}, {})

    @property
    def incarnation(self) -> int:
        return self.client.core.session.incarnation

    @property
    def idle(self) -> bool:
        """True if none of its threads waits for an answer."""
        return self._waiting == 0

    # What never blocking.

    def submit(self, key: ManagerKey, offset: int, *, rewind: bool = False) -> None:
        order = self._judge.next_order()
        value = OffsetAndMetadata(offset, str(order))
        before = self.newest.get(key)
        lower = before is not None and offset < before.offset and not rewind
        with acting_for(self.process):
            try:
                self.client.submit(key.group, {(key.topic, key.partition): value}, rewind=rewind)
            except OffsetRegressionError as error:
                if not lower:
                    self._judge.blame(f"{key}: refused {value} after {before}: {error}")
            except ClientFencedError:
                self._judge.met["client: fenced submit"] += 1
            except ManagerStoppedError:
                if key not in self.stopping and not self.closed:
                    self._judge.blame(f"{key}: refused {value} though nobody stopped it")
            else:
                if lower:
                    self._judge.blame(f"{key}: took {value} after {before}")
                self._took(key, value, rewind=rewind)

    def _took(self, key: ManagerKey, value: OffsetAndMetadata, *, rewind: bool) -> None:
        submit = Submitted(self.name, self.life, value, rewind)
        self._judge.submitted(key, int(value.metadata), submit)
        self.newest[key] = value

    def spawn(self, key: ManagerKey) -> OffsetManagerHandle | None:
        """Ask for a handle; None where it was handed out before."""
        with acting_for(self.process):
            try:
                return self.client.spawn(*key)
            except (ManagerExistsError, ManagerStoppedError):
                return None

    def listen(self, handle: OffsetManagerHandle) -> None:
        with acting_for(self.process):
            try:
                value = handle.committed_offsets().get(timeout=0)
            except (TimeoutError, ManagerStoppedError):
                return
        self._judge.met["client: told of a commit"] += 1
        self._judge.told_committed(handle.key, self.name, value, event=True)

    # What waits, in a thread of its own.

    def _in_thread(self, timeout_s: float, do: Callable[[], None]) -> None:
        frozen_s = self.process.frozen_s

        def target() -> None:
            deadline = self._clock.now() + timeout_s
            try:
                do()
            except OffsetManagerError as error:
                self._judge.met[f"client: {type(error).__name__}"] += 1
            except Exception as error:  # noqa: BLE001 -- the client may raise no other
                self._judge.blame(f"{self.name}: a call of the client raised {error!r}")
            self._waiting -= 1
            late_s = self._clock.now() - deadline - (self.process.frozen_s - frozen_s)
            if late_s > LATE_S:
                self._judge.blame(f"{self.name}: an answer came {late_s:.3f} s after its deadline")

        self._waiting += 1
        with acting_for(self.process):
            SimThread(target=target, name="user").start()

    def submit_sync(self, key: ManagerKey, offset: int, timeout_s: float) -> None:
        def do() -> None:
            before = self.newest.get(key)
            if key in self.stopping or self.closed or (before and offset < before.offset):
                return
            # Not before its turn: two threads that wait may get theirs in any order.
            value = OffsetAndMetadata(offset, str(self._judge.next_order()))
            self._took(key, value, rewind=False)
            where = (key.topic, key.partition)
            self._syncing.append(key)
            try:
                self.client.submit(key.group, {where: value}, sync=True, timeout=timeout_s)
            except ClientFencedError:
                if before is not None and self.newest.get(key) == value:
                    self.newest[key] = before  # it may not have come as far as to be held
                raise
            finally:
                self._syncing.remove(key)
            self._judge.acknowledged(key, self.name, value)

        self._in_thread(timeout_s, do)

    def flush(self, timeout_s: float) -> None:
        calm = self._calm(timeout_s)

        def do() -> None:
            # A sync submit under way may come to the client before the flush or after it.
            newest = {k: v for k, v in self.newest.items() if k not in self._syncing}
            self._settled(newest, self.client.flush(timeout=timeout_s), calm=calm)

        self._in_thread(timeout_s, do)

    def stop(self, keys: list[ManagerKey], timeout_s: float) -> None:
        calm = self._calm(timeout_s)

        def do() -> None:
            newest = {key: self.newest.pop(key) for key in keys if key in self.newest}
            # What the client does not hold it does not stop: another stop may, when it does.
            held = [key for key in keys if key in self.client.core.partitions]
            mine = set(held) - set(self.stopping)
            self.stopping += held
            partitions = [(key.topic, key.partition) for key in keys]
            result = self.client.stop_managers(
                timeout=timeout_s, group=keys[0].group, partitions=partitions
            )
            for key in held:
                self.stopping.remove(key)
            self._settled({k: v for k, v in newest.items() if k in mine}, result, calm=calm)

        self._in_thread(timeout_s, do)

    def close(self, timeout_s: float) -> None:
        calm = self._calm(timeout_s)

        def do() -> None:
            self.closed = True
            newest = {k: v for k, v in self.newest.items() if k not in self.stopping}
            self.newest.clear()
            self._settled(newest, self.client.close(timeout=timeout_s), calm=calm)

        if not self.closed:
            self._in_thread(timeout_s, do)

    def initial_offset(self, handle: OffsetManagerHandle, timeout_s: float) -> None:
        def do() -> None:
            found = handle.initial_offset(timeout=timeout_s)
            if found is not None:
                self._judge.met["client: told its initial offset"] += 1
                self._judge.told_initial(handle.key, found)

        self._in_thread(timeout_s, do)

    def _calm(self, timeout_s: float) -> bool:
        return self.calm and timeout_s >= 3.0 and self.idle

    def _settled(
        self, newest: dict[ManagerKey, OffsetAndMetadata], result: FlushResult, *, calm: bool
    ) -> None:
        self._judge.met["client: flush or stop answered"] += 1
        self._judge.settled(self.name, newest, result)
        self.passed_over.update(
            left.offset
            for left in result.uncommitted.values()
            if isinstance(left.error, OffsetRegressionError)
        )
        for key, left in result.uncommitted.items() if calm and self.calm else ():
            # A stop that came meanwhile says what became of it; a rival may have it for long.
            overtaken = left.error.code == error_info(OFFSET_CHANGED).name
            late = self._judge.rivals and isinstance(left.error, OffsetTimeoutError)
            excused = late or (overtaken and self._judge.fates[key].tampered)
            if not excused and not isinstance(left.error, _EXCUSES):
                self._judge.blame(f"{key}: nothing went wrong, yet this was left: {left}")
