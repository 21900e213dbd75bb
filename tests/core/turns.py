"""Actors that call Redis one at a time, in an order chosen by the test, to cover all interleavings of two."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django_delayq.core import Broker
from tests.support.core_calls import Call, SentCalls

PATIENCE = 20.0  # seconds; an actor that does not come to its next call by then hangs


class Actor:
    """One process. It stops before each call to Redis that uses a key for which ``matters`` is true.

    Args:
        broker: broker of this actor only, with a separate connection; its calls are observed.
        act: the actor's function.
        matters: returns True for the keys of calls to stop before.
    """

    def __init__(self, broker: Broker, act: Callable[[Broker], Any], matters: Callable[[bytes], bool]) -> None:
        self._broker = broker
        self._act = act
        self._matters = matters
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._told: Any = None
        self._error: BaseException | None = None
        self.done = False
        self._watch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.step()  # up to the first call

    def step(self) -> None:
        """Make one more call and stop before the next."""
        if not self.done:
            self._go.release()
            assert self._stands.acquire(timeout=PATIENCE), "it hangs"

    def finish(self) -> Any:
        """Make all remaining calls and return the result."""
        while not self.done:
            self.step()
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error
        return self._told

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._told = self._act(self._broker)
        except BaseException as error:
            self._error = error
        self.done = True
        self._stands.release()

    def _watch(self) -> None:
        client, scripts = self._broker.client, self._broker.scripts
        command, call, send_many = client.execute_command, scripts.call, scripts.send_many

        def before(key: Any) -> None:
            if self._matters(key if isinstance(key, bytes) else str(key).encode()):
                self._stands.release()
                self._go.acquire()

        def watched_command(*words: Any, **options: Any) -> Any:
            before(words[1] if len(words) > 1 else b"")
            return command(*words, **options)

        def watched_script(name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
            before(keys[-1])
            return call(name, keys, *args)

        def watched_send_many(calls: Sequence[Call]) -> SentCalls:
            before(calls[0].keys[-1])
            return send_many(calls)

        client.execute_command = watched_command  # type: ignore[method-assign]
        scripts.call, scripts.send_many = watched_script, watched_send_many  # type: ignore[method-assign]


def orders(mine: int, others: int) -> Iterator[tuple[bool, ...]]:
    """Yield every order of the turns of one actor (true) and those of another."""
    for places in itertools.combinations(range(mine + others), mine):
        yield tuple(place in places for place in range(mine + others))


def play(order: tuple[bool, ...], one: Actor, other: Actor, after_each: Callable[[], None]) -> tuple[Any, Any]:
    """Run the actors in the given order, then to their ends one after the other; return their results."""
    for turn in order:
        (one if turn else other).step()
        after_each()
    return one.finish(), other.finish()
