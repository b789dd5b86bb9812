"""The plan of a chaos run is what its seed says, and no more than Kafka can bear."""

from __future__ import annotations

from itertools import pairwise

from tests.chaos.plan import SERVICE_TRACK, Fault, broker_track, client_track, schedule

TRACKS = (SERVICE_TRACK, client_track(3), broker_track(3))


def test_a_seed_decides_the_faults() -> None:
    """The same again for the same seed and round, another one for others."""
    again = schedule(7, 1, 30.0, TRACKS)
    assert schedule(7, 1, 30.0, TRACKS) == again
    assert schedule(8, 1, 30.0, TRACKS) != again != schedule(7, 2, 30.0, TRACKS)


def test_never_two_brokers_at_once_and_all_is_healed_by_the_end() -> None:
    """Kafka keeps its offsets with one of three brokers away, and not with two."""
    for seed in range(200):
        injections = schedule(seed, 0, 30.0, TRACKS)
        assert all(0 < each.at_s <= each.until_s <= 30.0 for each in injections)
        brokers = [each for each in injections if each.fault in broker_track(3).faults]
        assert all(one.until_s < other.at_s for one, other in pairwise(brokers))


def test_every_fault_strikes_within_ten_minutes() -> None:
    """A run of that length leaves no kind of fault out."""
    for seed in range(20):
        injected = {
            each.fault for number in range(14) for each in schedule(seed, number, 30.0, TRACKS)
        }
        assert injected == set(Fault) - {Fault.IN_SILENCE, Fault.TOGETHER}
