"""Threads that outlive whatever is raised in them; standard library only."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotAnsweredError
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from offsetmgr.backoff import Backoff
from offsetmgr.errors import ServiceUnavailableError
from offsetmgr.logs import SafeLogger

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0

_T = TypeVar("_T")

_log = SafeLogger("offsetmgr.workers")


class Worker:
    """A daemon thread that is started when it is needed, and again if it has died.

    ``run`` is called until it returns: whatever it raises is logged, and it is called again after a
    pause.  ``error`` is the reason why the thread could not be started last, or None.
    """

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name = name
        self.error: ServiceUnavailableError | None = None
        self._run = run
        self._thread: threading.Thread | None = None

    def ensure(self) -> bool:
        """Start the thread unless it runs; False if the process can have no more threads.

        A signal handler may call it while the frame below does.
        """
        if self._thread is not None and self._thread.is_alive():
            return True
        # A signal handler that interrupts this starts another thread; only the last one goes on.
        thread = self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._failed(error)
            return False
        self.error = None
        return True

    @property
    def is_over(self) -> bool:
        """True if the interpreter is exiting, so that no thread can be started any more."""
        return self.error is not None and "shutdown" in str(self.error)

    def leave(self) -> None:
        """Have the next call of ``ensure`` start another thread; by the thread, which returns."""
        self._thread = None

    def join(self, timeout_s: float) -> None:
        """Wait until it has returned, up to ``timeout_s`` seconds; not in the thread itself."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _failed(self, error: RuntimeError) -> None:
        is_new, self._thread = self.error is None, None
        self.error = ServiceUnavailableError(f"cannot start a thread: {error}")
        if is_new:
            end = "nothing more is sent" if self.is_over else "offsets are kept until one starts"
            _log.warning("%s; %s", self.error, end)

    def _main(self) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while self._thread is threading.current_thread():
            try:
                self._run()
            except BaseException:  # noqa: BLE001 -- others depend on this thread
                _log.exception("the thread %s failed and goes on", self.name)
                time.sleep(backoff.failed())
            else:
                return


class Question(Generic[_T]):
    """A call in a thread of its own, so that the caller need not wait for it."""

    def __init__(self, ask: Callable[[], _T], *, after: Question[Any] | None = None) -> None:
        """``ask`` is called once ``after`` is answered."""
        self.asked_at_s: Final = time.monotonic()
        self.answer: Final[Future[_T]] = Future()
        self.error: ServiceUnavailableError | None = None
        """Why it has no thread; that is its answer then."""
        self._ask = ask
        self._after = after
        thread = threading.Thread(target=self._run, name="question", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if thread.ident is not None:  # Python makes it of a signal's exception
                raise
            self.error = ServiceUnavailableError(f"cannot start a thread: {error}")
            self.answer.set_exception(self.error)

    def wait(self, timeout_s: float = 0.0) -> bool:
        """Return True once there is an answer; wait up to ``timeout_s`` for it."""
        try:
            self.answer.exception(timeout_s)
        except NotAnsweredError:
            return False
        return True

    def result(self) -> _T:
        """Return the answer, or raise what the call has raised."""
        return self.answer.result(0.0)

    def _run(self) -> None:
        after, self._after = self._after, None
        try:
            if after is not None:
                after.answer.exception()
            self.answer.set_result(self._ask())
        except BaseException as error:  # noqa: BLE001 -- whoever asked decides
            self.answer.set_exception(error)
