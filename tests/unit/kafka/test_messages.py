"""Headers of messages, whatever their names."""

from __future__ import annotations

from confluent_kafka import Message

from offsetmgr.kafka.messages import headers_of


def test_headers_are_returned_as_they_are() -> None:
    """None, empty and repeated ones too; names that are not UTF-8 are tried on a real broker."""
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("a", None),
        ("", b""),
        ("ä", b""),
    ]
    message = Message(topic="orders", partition=0, offset=0, headers=headers)
    for _ in range(2):
        assert headers_of(message) == headers
    assert headers_of(Message(topic="orders", partition=0, offset=0)) == []
