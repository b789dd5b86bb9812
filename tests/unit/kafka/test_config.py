"""Settings of Kafka clients."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from offsetmgr.coordinator.kafka import KafkaCoordinator
from offsetmgr.errors import InvalidValueError
from offsetmgr.kafka.config import refused_config


class TestSettings:
    """Wrong settings are refused before anything is started."""

    def test_an_unknown_setting_is_named(self) -> None:
        """A setting librdkafka does not know is named at the start; no value is shown."""
        config = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "s3cret", "foo.bar": 1}
        with pytest.raises(InvalidValueError, match=r"foo\.bar") as caught:
            KafkaCoordinator(config)
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("name", ["socket.timeout.ms", "metadata.max.age.ms"])
    def test_a_setting_of_the_pool_is_refused(self, name: str) -> None:
        """A setting that the pool relies on cannot be changed behind its back."""
        with pytest.raises(InvalidValueError, match="remove it"):
            KafkaCoordinator({"bootstrap.servers": "127.0.0.1:1", name: 60_000})


def test_a_refused_setting_shows_no_secret() -> None:
    """Librdkafka's text ends before a secret that it quotes, however short it was cut."""
    config = {"bootstrap.servers": "h:1", "sasl.password": "geheimnis-47110815"}
    for quoted in ("geheimnis-47110815", "geheimnis"):
        text = f'Invalid value "{quoted}" for configuration property'
        error = refused_config(config, KafkaException(KafkaError(-186, text)))
        assert "geheim" not in str(error)
        assert 'Invalid value "***' in str(error)
