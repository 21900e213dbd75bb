"""Throttling of bulk loads: rate and memory limits, and waiting times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..broker import Broker
from ..errors import DelayQError, InvalidJob, QueueFull
from ..inputs import check_int, short
from ..redis.faults import REDIS_ERRORS
from ..redis.scripts import clear_errors
from .bulk_loads import BulkLoad


class BulkLoadStopped(DelayQError):
    """Stop request during a wait. All rows written so far are recorded, so the bulk load can be resumed."""


@dataclass(frozen=True, slots=True)
class BulkLoadLimits:
    """Limits that make a bulk load yield to other work. Times are in seconds.

    Raises:
        InvalidJob: an invalid limit.
    """

    #: jobs a second of all senders of the bulk load together; None = no limit. Rows whose job lives in an older epoch
    #: of the queue, which are few, are not counted
    per_second: float | None = None
    #: longest wait without progress for a full or paused queue, or a full Redis
    patience: float = 600.0
    #: share of Redis's ``maxmemory`` above which sending pauses; 0 = no check
    most_memory: float = 0.85
    #: chunks between two checks of the memory
    look_every: int = 100

    def __post_init__(self) -> None:
        if self.per_second is not None and not 0.001 <= self.per_second < math.inf:
            raise InvalidJob(f"per_second is a number of jobs from 0.001 on, or None, not {short(self.per_second)}")
        if not 0 <= self.patience <= 86_400 * 365:
            raise InvalidJob(f"patience is a number of seconds from 0 on, not {short(self.patience)}")
        if not 0 <= self.most_memory <= 1:
            raise InvalidJob(f"most_memory is a part of the memory, 0 … 1, not {short(self.most_memory)}")
        check_int("look_every", self.look_every, 1, 1 << 31)


class BulkLoadWait:
    """Wait with growing pauses and a deadline.

    Args:
        seconds: time until the wait is given up.
        stop: called during the wait; True ends it.
        first: first pause, seconds.
        longest: longest pause, seconds.
        now: clock of the deadline.
        pause: sleeps for a time; see :func:`rest`.
    """

    def __init__(
        self,
        seconds: float,
        stop: Callable[[], bool],
        *,
        first: float = 0.05,
        longest: float = 2.0,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float, Callable[[], bool]], None] | None = None,
    ) -> None:
        self._now = now
        self._rest = pause or rest
        self._give_up_at = now() + seconds
        self._stop = stop
        self._pause = first
        self._longest = longest

    def rest(self, refusal: Exception) -> None:
        """Pause once; raise ``refusal`` instead after the deadline."""
        if self._now() >= self._give_up_at:
            raise refusal
        self._rest(self._pause, self._stop)
        self._pause = min(self._longest, self._pause * 2)


def rest(seconds: float, stop: Callable[[], bool]) -> None:
    """Sleep for the given time.

    Raises:
        BulkLoadStopped: ``stop()`` was true.
    """
    until = time.monotonic() + seconds
    while not stop():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.2))
    raise BulkLoadStopped("the bulk load was stopped while it waited; resume it to write the rest")


class Throttle:
    """Throttle of one sender: before each chunk it waits for Redis's memory limit, and to keep the rate."""

    def __init__(self, broker: Broker, load: BulkLoad, limits: BulkLoadLimits, stop: Callable[[], bool]) -> None:
        self._broker = broker
        self._load = load
        self._limits = limits
        self._stop = stop
        self._chunks = 0

    def hold(self, jobs: int, ledger: bytes, digest: bytes) -> None:
        """Wait until ``jobs`` jobs may be sent.

        Args:
            ledger: its key.
            digest: of the chunk in the ledger: a chunk that was written before does not count against the rate.

        Raises:
            QueueFull: memory was short for longer than ``patience``.
            BulkLoadStopped: ``stop()`` was true.
        """
        if self._limits.most_memory and self._chunks % self._limits.look_every == 0:
            self._wait_for_memory()
        self._chunks += 1
        if self._limits.per_second is not None and not self._is_known(ledger, digest):
            key = self._broker.key(f"pace:{self._load.id}").encode()
            ms = self._broker.scripts.call("pace", (key,), jobs, f"{self._limits.per_second:.6f}")
            rest(ms / 1000, self._stop)

    def _is_known(self, ledger: bytes, digest: bytes) -> bool:
        with clear_errors():
            return bool(self._broker.client.hexists(ledger, digest))

    def _wait_for_memory(self) -> None:
        wait = BulkLoadWait(self._limits.patience, self._stop, first=0.2, longest=5.0)
        while True:
            used, limit = self._memory()
            if not limit or used <= self._limits.most_memory * limit:
                return
            wait.rest(
                QueueFull(
                    f"Redis uses {used / limit:.0%} of its maxmemory, and bulk load {self._load.id!r} stops at "
                    f"{self._limits.most_memory:.0%}; give it memory and resume the bulk load"
                )
            )

    def _memory(self) -> tuple[int, int]:
        """Return bytes in use and the limit, for the node that is nearest to its limit."""
        nodes = memory_of(self._broker).values()
        pairs = [(int(node["used_memory"]), int(node.get("maxmemory", 0))) for node in nodes]
        return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)


def memory_of(broker: Broker) -> dict[str, dict[str, Any]]:
    """Return ``INFO memory`` of the server, under ""; on a cluster of each reachable master, by name (``host:port``).

    Each master may be the one that is full. An unreachable master is left out; callers that need it get its error
    later.

    Raises:
        DelayQError: no node answers.
    """
    client: Any = broker.client
    with clear_errors():
        if not broker.connection.cluster:
            return {"": client.info("memory")}
        by_node: dict[str, dict[str, Any]] = {}
        refusal: Exception | None = None
        for node in client.get_primaries():
            try:
                by_node[node.name] = client.info("memory", target_nodes=node)
            except REDIS_ERRORS as error:
                refusal = error
        if refusal is not None and not by_node:
            raise refusal
        return by_node
