"""The base class: how it is started, and how much of pykka it keeps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from actors import Future, PooledActor

if TYPE_CHECKING:
    from actors import ActorSystem


class Account(PooledActor):
    """An actor with attributes and methods, as a proxy sees them."""

    def __init__(self, owner: str, *, balance: int = 0) -> None:
        super().__init__(owner, balance=balance)
        self.owner = owner
        self.balance = balance
        self.lineage_at_birth = self.lineage

    def deposit(self, amount: int) -> int:
        """Add to the balance."""
        self.balance += amount
        return self.balance

    def close(self) -> None:
        """Stop from within."""
        self.stop()


def test_it_is_started_by_a_system_only() -> None:
    """The start of pykka, which would need a thread, is refused with what to do instead."""
    with pytest.raises(TypeError, match=r"Account lives in an ActorSystem.*system\.spawn"):
        Account.start("ada")
    with pytest.raises(TypeError, match=r"system\.spawn"):
        PooledActor._create_actor_inbox()


def test_arguments_reach_the_constructor_in_the_spawning_thread(system: ActorSystem) -> None:
    """The place in the system is known in the constructor already, before super().__init__()."""
    proxy = system.spawn(Account, "ada", balance=5, name="ada").proxy()
    assert proxy.owner.get(timeout=10) == "ada"
    assert proxy.balance.get(timeout=10) == 5
    assert proxy.lineage_at_birth.get(timeout=10) == "/ada"


def test_pykka_proxies_work(system: ActorSystem) -> None:
    """Attributes are read and set, methods called, through messages; futures are ours."""
    ref = system.spawn(Account, "ada", name="ada")
    proxy = ref.proxy()
    proxy.balance = 10
    answer = proxy.deposit(5)
    assert isinstance(answer, Future)
    assert answer.get(timeout=10) == 15


def test_an_actor_can_stop_itself(system: ActorSystem) -> None:
    """stop() from within ends the actor after the messages that wait."""
    ref = system.spawn(Account, "ada", name="ada")
    stopped = ref.actor_stopped
    ref.proxy().close().get(timeout=10)
    assert stopped.wait(10)
    assert not ref.is_alive()


def test_pooled_actors_stay_out_of_the_global_registry(system: ActorSystem) -> None:
    """The registry of pykka, linear on removal and global, never hears of them."""
    before = pykka.ActorRegistry.get_all()
    system.spawn(Account, "ada", name="ada")
    assert pykka.ActorRegistry.get_all() == before


def test_the_thread_of_a_handler_is_the_pools(system: ActorSystem) -> None:
    """The constructor runs where spawn is called, the rest in a thread of the dispatcher."""

    class Threads(PooledActor):
        def __init__(self) -> None:
            super().__init__()
            self.born_in = threading.current_thread().name

        def on_receive(self, _message: Any) -> tuple[str, str]:
            return self.born_in, threading.current_thread().name

    born_in, lives_in = system.spawn(Threads, name="t").ask("where", timeout=10)
    assert born_in == threading.current_thread().name
    assert lives_in in {"test-0", "test-1"}
