"""Commits offsets only to the logs that they were read from.

A log is a topic's id and a partition.  Kafka's commits name a topic by its name (OffsetCommit
before v10), and a recreated topic has the name of the former one.  So a look at the topic's id goes
before a commit, unless it was seen within ``LOOK_AGE_S``.  A topic that is recreated between that
look and the commit is not noticed until the next look; see docs/internals.md.

Brokers before 2.8 have no topic ids: there offsets are committed unseen.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

from actors import Future
from offsetmgr.codes import NOT_SENT, TOPIC_RECREATED, UNKNOWN_TOPIC, error_info
from offsetmgr.coordinator.base import CommitResult, Failure, FetchResult, or_fail

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from actors import Clock, Timers
    from offsetmgr.coordinator.base import Coordinator, TopicLog
    from offsetmgr.types import OffsetAndMetadata, TopicPartition

LOOK_AGE_S: Final = 0.05
"""Age up to which a topic's id counts as seen just now."""

SHARED_S: Final = 2.0
"""Time in which groups that verify the same topic come together to read the ends of its logs."""

TOPICS_AT_ONCE: Final = 100
"""Topics in one such read: a broker that hangs hides the others of its read as well."""

_KEPT: Final = 10_000
"""Topics whose ids are kept."""

_NOT_ALLOWED: Final = 29

TopicId: TypeAlias = "str | Failure"
"""Empty with a broker that has no topic ids."""

CallSoon: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Calls a function in a thread of its own choice."""

_NEVER: Final = (-inf, "")


class LogGuard:
    """The coordinator as managers use it.  Thread-safe; never blocks."""

    def __init__(self, coordinator: Coordinator, clock: Clock, timers: Timers) -> None:
        self._coordinator = coordinator
        self._now = clock.now
        self._timers = timers
        self._lock = Lock()
        self._seen: dict[str, tuple[float, TopicId]] = {}
        """The ids of topics, and when they were asked for."""
        self._asked: dict[str, Future[Mapping[str, TopicId]]] = {}
        """The request under way that will tell the id of a topic."""
        self._shared: dict[str, Future[TopicLog]] = {}
        """Reads of the ends of topics' logs that have not begun."""

    def fetch(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Future[FetchResult]:
        """Read topic ids, then committed offsets: an offset is never older than its topic's id.

        Topics that do not exist have no id in the answer.
        """
        answer: Future[FetchResult] = Future()
        by_s = self._now() + timeout_s

        def looked(ids: Mapping[str, TopicId]) -> None:
            failures = {
                partition: failure
                for partition in partitions
                if (failure := _unreadable(ids[partition.topic])) is not None
            }
            found = {topic: each for topic, each in ids.items() if isinstance(each, str)}

            def fetched(done: Future[FetchResult]) -> None:
                result = done.get()
                every = {**result.failures, **failures}
                answer.set(FetchResult(result.offsets, every, None, found))

            asked = [partition for partition in partitions if partition not in failures]
            if asked:
                left_s = max(by_s - self._now(), 0.001)
                sent = self._coordinator.fetch(group, asked, left_s)
                sent.add_done_callback(or_fail(answer, fetched))
            else:
                answer.set(FetchResult({}, failures))

        topics = {partition.topic for partition in partitions}
        self._look(topics, -1.0, timeout_s, or_fail(answer, looked))
        return answer

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        topic_ids: Mapping[str, str | None],
        timeout_s: float,
        call_soon: CallSoon,
    ) -> Future[CommitResult]:
        """Commit ``offsets`` that were read from the topics with ``topic_ids``.

        None stands for a topic that did not exist.  Of another topic with the name, an offset is
        refused with TOPIC_RECREATED.  If it has to wait for a look, ``call_soon`` commits: the one
        thread that gets all answers would send the commits of all groups one by one.
        """
        guarded = {topic: wanted for topic, wanted in topic_ids.items() if wanted != ""}
        if not guarded:
            return self._coordinator.commit(group, offsets, timeout_s)
        answer: Future[CommitResult] = Future()
        by_s = self._now() + timeout_s

        def looked(ids: Mapping[str, TopicId]) -> None:
            refused = {
                topic: failure
                for topic, wanted in guarded.items()
                if (failure := _refusal(topic, wanted, ids[topic])) is not None
            }
            failures, good = {}, offsets
            if refused:
                failures = {p: refused[p.topic] for p in offsets if p.topic in refused}
                good = {p: o for p, o in offsets.items() if p not in failures}

            def committed(done: Future[CommitResult]) -> None:
                answer.set(CommitResult({**done.get().failures, **failures}))

            if good:
                left_s = max(by_s - self._now(), 0.001)
                sent = self._coordinator.commit(group, good, left_s)
                sent.add_done_callback(or_fail(answer, committed))
            else:
                answer.set(CommitResult(failures))

        self._look(guarded, LOOK_AGE_S, timeout_s, or_fail(answer, looked), call_soon)
        return answer

    def topic_log(self, topic: str, timeout_s: float, *, shared: bool) -> Future[TopicLog]:
        """Read the ends of a topic's logs; if ``shared`` a little later, with all who ask by then.

        The future has an exception if they could not be asked for.
        """
        if not shared:
            answer: Future[TopicLog] = Future()
            self._read_logs({topic: answer}, timeout_s)
            return answer
        with self._lock:
            if not self._shared:
                self._timers.call_after(SHARED_S, partial(self._read_shared, timeout_s))
            return self._shared.setdefault(topic, Future())

    def _read_shared(self, timeout_s: float) -> None:
        with self._lock:
            asked, self._shared = self._shared, {}
        answers = iter(asked.items())
        while some := dict(islice(answers, TOPICS_AT_ONCE)):
            self._read_logs(some, timeout_s)

    def _read_logs(self, answers: Mapping[str, Future[TopicLog]], timeout_s: float) -> None:
        def answered(
            topic: str, answer: Future[TopicLog], done: Future[Mapping[str, TopicLog]]
        ) -> None:
            answer.set(done.get()[topic])

        try:
            sent = self._coordinator.topic_logs(tuple(answers), timeout_s)
        except Exception as error:  # noqa: BLE001 -- as for any other request
            sent = Future()
            sent.set_exception(error)
        for topic, answer in answers.items():
            sent.add_done_callback(or_fail(answer, partial(answered, topic, answer)))

    def look_ahead(self, topics: Collection[str], timeout_s: float) -> None:
        """Begin to look at ``topics``, so that commits to come need not wait for it."""
        self._begin(topics, LOOK_AGE_S, timeout_s)

    def _look(
        self,
        topics: Collection[str],
        age_s: float,
        timeout_s: float,
        then: Callable[[Mapping[str, TopicId]], None],
        call_soon: CallSoon = lambda call: call(),
    ) -> None:
        """Call ``then`` with the ids of ``topics``, none of them asked for more than ``age_s`` ago.

        That is now, or after a look by ``call_soon``.
        """
        seen, left = self._begin(topics, age_s, timeout_s)
        if not left:
            then(seen)
            return

        def answered(done: Future[Mapping[str, TopicId]]) -> None:
            with self._lock:
                seen.update({topic: each for topic, each in done.get().items() if topic in topics})
                left.remove(done)
                complete = not left
            if complete:
                call_soon(partial(then, seen))

        for each in tuple(left):
            each.add_done_callback(answered)

    def _begin(
        self, topics: Collection[str], age_s: float, timeout_s: float
    ) -> tuple[dict[str, TopicId], list[Future[Mapping[str, TopicId]]]]:
        """Return the ids that were asked for in the last ``age_s``, and the looks for the others.

        The next look begins at half that age, so that frequent commits need not wait for it.
        """
        now = self._now()
        seen: dict[str, TopicId] = {}
        asked: dict[Future[Mapping[str, TopicId]], None] = {}
        new: list[str] = []
        request: Future[Mapping[str, TopicId]] = Future()
        with self._lock:
            for topic in topics:
                asked_at, known = self._seen.get(topic, _NEVER)
                if now - asked_at > age_s / 2 and topic not in self._asked:
                    new.append(topic)
                    self._asked[topic] = request
                if now - asked_at <= age_s:
                    seen[topic] = known
                else:
                    asked[self._asked[topic]] = None
        if new:
            self._ask(sorted(new), request, now, timeout_s)
        return seen, list(asked)

    def _ask(
        self,
        topics: list[str],
        request: Future[Mapping[str, TopicId]],
        asked_at: float,
        timeout_s: float,
    ) -> None:
        def answered(done: Future[Mapping[str, TopicId]]) -> None:
            error = done.exception()
            answer = done.get() if error is None else {}
            why = "the answer leaves it out" if error is None else f"the client failed: {error!r}"
            failure = Failure(error_info(-1), why)
            ids = {topic: answer.get(topic, failure) for topic in topics}
            with self._lock:
                if len(self._seen) > _KEPT:
                    self._seen.clear()
                for topic in topics:
                    self._seen[topic] = asked_at, ids[topic]
                    del self._asked[topic]
            request.set(ids)

        try:
            sent = self._coordinator.topic_ids(topics, timeout_s)
        except Exception as error:  # noqa: BLE001 -- other groups wait for the answer too
            sent = Future()
            sent.set_exception(error)
        sent.add_done_callback(answered)


def _unreadable(topic_id: TopicId) -> Failure | None:
    """Return why a topic's id is not known, though the topic may exist."""
    if isinstance(topic_id, str) or topic_id.info.code in {UNKNOWN_TOPIC, _NOT_ALLOWED}:
        return None
    return topic_id


def _refusal(topic: str, wanted: str | None, found: TopicId) -> Failure | None:
    """Return why an offset of the topic with the id ``wanted`` may not be committed."""
    if isinstance(found, Failure):
        if found.info.code == _NOT_ALLOWED:
            return None  # Kafka says so better
        if found.info.code == UNKNOWN_TOPIC:
            return found
        return Failure(
            NOT_SENT, f"not sent, as the id of topic {topic} is not known: {found.detail}"
        )
    if found in {wanted, ""}:
        return None
    return recreated(wanted, found)


def recreated(former: str | None, found: str) -> Failure:
    """Return the failure of an offset of the topic ``former``, or of one that did not exist."""
    info = error_info(TOPIC_RECREATED)
    was = "did not exist" if former is None else f"was {former}"
    return Failure(info, f"{info.hint} (its id is {found}; it {was})")
