"""Looks at topics: their ids, by which an offset belongs to one log, and the ends of their logs.

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
from offsetmgr.codes import NOT_SENT, TOPIC_RECREATED, TOPIC_REFUSED, UNKNOWN_TOPIC, error_info
from offsetmgr.coordinator.base import Failure, or_fail

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from actors import Clock, Timers
    from offsetmgr.coordinator.base import Coordinator, TopicLog

LOOK_AGE_S: Final = 0.05
"""Age up to which a topic's id counts as seen just now."""

SHARED_S: Final = 2.0
"""Time in which groups that verify the same topic come together to read the ends of its logs."""

TOPICS_AT_ONCE: Final = 100
"""Topics in one such read: a broker that hangs hides the others of its read as well."""

_KEPT: Final = 10_000
"""Topics whose ids are kept."""

TopicId: TypeAlias = "str | Failure"
"""Empty with a broker that has no topic ids."""

_NEVER: Final = (-inf, "")


class TopicLooks:
    """Looks at topics that all groups share.  Thread-safe; never blocks."""

    def __init__(
        self, coordinator: Coordinator, clock: Clock, timers: Timers, timeout_s: float
    ) -> None:
        """The coordinator has ``timeout_s`` for each answer."""
        self._coordinator = coordinator
        self._timeout_s = timeout_s
        self._now = clock.now
        self._timers = timers
        self._lock = Lock()
        self._seen: dict[str, tuple[float, TopicId]] = {}
        """The ids of topics, and when they were asked for."""
        self._asked: dict[str, Future[Mapping[str, TopicId]]] = {}
        """The request under way that will tell the id of a topic."""
        self._shared: dict[str, Future[TopicLog]] = {}
        """Reads of the ends of topics' logs that have not begun."""

    def ids(
        self, topics: Iterable[str], age_s: float
    ) -> Mapping[str, TopicId] | Future[Mapping[str, TopicId]]:
        """Return the ids of ``topics``, none of them asked for more than ``age_s`` ago.

        It is a future where they have to be asked for.  The next request begins at half that age,
        so that frequent commits need not wait for it.
        """
        answer: Future[Mapping[str, TopicId]]
        seen: dict[str, TopicId] = {}
        asked: dict[Future[Mapping[str, TopicId]], set[str]] = {}
        request: Future[Mapping[str, TopicId]] | None = None
        new: list[str] = []
        now = self._now()
        with self._lock:
            for topic in topics:
                asked_at, known = self._seen.get(topic, _NEVER)
                if now - asked_at > age_s / 2 and topic not in self._asked:
                    request = request or Future()
                    new.append(topic)
                    self._asked[topic] = request
                if now - asked_at <= age_s:
                    seen[topic] = known
                else:
                    asked.setdefault(self._asked[topic], set()).add(topic)

        def answered(done: Future[Mapping[str, TopicId]]) -> None:
            ids = done.get()
            with self._lock:
                seen.update({topic: ids[topic] for topic in asked.pop(done)})
                complete = not asked
            if complete:
                answer.set(seen)

        if request is not None:
            self._ask(sorted(new), request, now)
        if not asked:
            return seen
        answer = Future()
        for each in tuple(asked):
            each.add_done_callback(answered)
        return answer

    def _ask(
        self, topics: list[str], request: Future[Mapping[str, TopicId]], asked_at: float
    ) -> None:
        def answered(done: Future[Mapping[str, TopicId]]) -> None:
            answer, why = {}, "the answer leaves it out"
            try:
                answer = dict(done.get())
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is the answer
                why = f"the client failed: {error!r}"
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
            self._coordinator.topic_ids(topics, self._timeout_s).add_done_callback(answered)
        except Exception as error:  # noqa: BLE001 -- other groups wait for the answer too
            failed: Future[Mapping[str, TopicId]] = Future()
            failed.set_exception(error)
            answered(failed)

    def ends(self, topic: str, *, shared: bool) -> Future[TopicLog]:
        """Read the ends of a topic's logs; if ``shared`` a little later, with all who ask by then.

        The future has an exception if they could not be asked for.
        """
        if not shared:
            answer: Future[TopicLog] = Future()
            self._read_ends({topic: answer})
            return answer
        with self._lock:
            if not self._shared:
                self._timers.call_after(SHARED_S, self._read_shared)
            return self._shared.setdefault(topic, Future())

    def _read_shared(self) -> None:
        with self._lock:
            asked, self._shared = self._shared, {}
        answers = iter(asked.items())
        while some := dict(islice(answers, TOPICS_AT_ONCE)):
            self._read_ends(some)

    def _read_ends(self, answers: Mapping[str, Future[TopicLog]]) -> None:
        def answered(
            topic: str, answer: Future[TopicLog], done: Future[Mapping[str, TopicLog]]
        ) -> None:
            answer.set(done.get()[topic])

        try:
            sent = self._coordinator.topic_logs(tuple(answers), self._timeout_s)
        except Exception as error:  # noqa: BLE001 -- as for any other request
            sent = Future()
            sent.set_exception(error)
        for topic, answer in answers.items():
            sent.add_done_callback(or_fail(answer, partial(answered, topic, answer)))


def unreadable(topic_id: TopicId) -> Failure | None:
    """Return why a topic's id is not known, though the topic may exist."""
    if isinstance(topic_id, str) or topic_id.info.code in {UNKNOWN_TOPIC, TOPIC_REFUSED}:
        return None
    return topic_id


def refusal(topic: str, wanted: str | None, found: TopicId) -> Failure | None:
    """Return why an offset of the topic with the id ``wanted`` may not be committed.

    None stands for a topic that did not exist.
    """
    if isinstance(found, Failure):
        if found.info.code == TOPIC_REFUSED:
            return None  # Kafka says so better
        if found.info.code == UNKNOWN_TOPIC:
            return found
        why = f"not sent, as the id of topic {topic} is not known: {found.reason}"
        return Failure(NOT_SENT, why)
    if found in {wanted, ""}:
        return None
    return recreated(wanted, found)


def recreated(former: str | None, found: str) -> Failure:
    """Return the failure of an offset of the topic ``former``, or of one that did not exist."""
    info = error_info(TOPIC_RECREATED)
    was = "did not exist" if former is None else f"was {former}"
    return Failure(info, f"{info.hint} (its id is {found}; it {was})")
