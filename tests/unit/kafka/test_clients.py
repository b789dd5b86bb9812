"""Questions that are asked again until Kafka answers."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.deadlines import Deadline
from offsetmgr.kafka.clients import in_short_waits


@pytest.mark.parametrize(
    "code",
    [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN],
)
def test_a_question_is_asked_again_while_no_broker_can_be_reached(code: int) -> None:
    """Whichever of librdkafka's codes says so; a refusal of Kafka's is raised at once."""
    answers: list[KafkaError | str] = [KafkaError(code), KafkaError(code), "yes"]

    def ask(_wait_s: float) -> str:
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise KafkaException(answer)
        return answer

    assert in_short_waits(ask, Deadline(60.0)) == "yes"
    answers = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "yes"]
    with pytest.raises(KafkaException):
        in_short_waits(ask, Deadline(60.0))
