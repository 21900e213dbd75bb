"""In-memory server of the testing kit in the place of a real Redis, for the tests of the core."""

from __future__ import annotations

import hashlib
import time

from django_delayq.core import Connection
from django_delayq.core.redis.scripts import compose, script_names
from django_delayq.testing.clock import Clock
from django_delayq.testing.redis import MemoryServer


class RunningClock(Clock):
    """Clock of the machine, as a server has it."""

    @property
    def us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    @us.setter
    def us(self, _: int) -> None:
        """Ignore a time that the kit sets."""


class StoppedClock(Clock):
    """Clock that a test sets."""

    def __init__(self, us: int) -> None:
        super().__init__(us / 1e6)
        self.us = us


def memory_connection(clock: Clock | None = None) -> Connection:
    """Return a connection to an empty server in this process, which also has the scripts with a test clock.

    Args:
        clock: of the server; None = that of the machine.
    """
    server = MemoryServer(clock or RunningClock())
    for name in script_names():
        source = compose(name, test_clock=True).encode()
        server.script_cache[hashlib.sha1(source).hexdigest().encode()] = source
    return server.connection()
