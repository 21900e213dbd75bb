"""How a run makes way for others: its limits, and its patience."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DelayQError, InvalidJob, QueueFull
from ..inputs import check_int, short
from ..records.keys import pace_key
from ..redis.faults import REDIS_ERRORS
from ..redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..broker import Broker
    from .runs import Run


class RunStopped(DelayQError):
    """The sender was told to stop while it waited. What it wrote is known: the run can be gone on with."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a run makes way for others. Seconds, unless something else is said.

    Raises:
        InvalidJob: a limit that cannot be one.
    """

    #: jobs a second of all senders of the run together; None = as fast as it goes. Not for rows that find their job in
    #: an older epoch of the queue, which are few
    per_second: float | None = None
    #: how long a full or paused queue, or a full Redis, is waited for without that anything goes in
    patience: float = 600.0
    #: part of Redis's ``maxmemory`` beyond which nothing is sent; 0 = it is not looked at
    most_memory: float = 0.85
    #: chunks between two looks at it
    look_every: int = 100

    def __post_init__(self) -> None:
        if self.per_second is not None and not 0.001 <= self.per_second < math.inf:
            raise InvalidJob(f"per_second is a number of jobs from 0.001 on, or None, not {short(self.per_second)}")
        if not 0 <= self.patience <= 86_400 * 365:
            raise InvalidJob(f"patience is a number of seconds from 0 on, not {short(self.patience)}")
        if not 0 <= self.most_memory <= 1:
            raise InvalidJob(f"most_memory is a part of the memory, 0 … 1, not {short(self.most_memory)}")
        check_int("look_every", self.look_every, 1, 1 << 31)


class Wait:
    """One wait for something that cannot be hurried: longer and longer rests, up to an end.

    Args:
        seconds: when it is given up.
        stop: asked while it waits.
        longest: of one rest, seconds.
    """

    def __init__(self, seconds: float, stop: Callable[[], bool], *, first: float = 0.05, longest: float = 2.0) -> None:
        self._give_up_at = time.monotonic() + seconds
        self._stop = stop
        self._pause = first
        self._longest = longest

    def rest(self, refusal: Exception) -> None:
        """Rests once; raises ``refusal`` instead when it has taken too long."""
        if time.monotonic() >= self._give_up_at:
            raise refusal
        rest(self._pause, self._stop)
        self._pause = min(self._longest, self._pause * 2)


def rest(seconds: float, stop: Callable[[], bool]) -> None:
    """Waits.

    Raises:
        RunStopped: ``stop()`` was true.
    """
    until = time.monotonic() + seconds
    while not stop():
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.2))
    raise RunStopped("the bulk write was stopped while it waited; go on with the run to write the rest")


class Brakes:
    """Holds one sender back, before each chunk: as long as Redis is near its limit, and so that the rate is kept."""

    def __init__(self, broker: Broker, run: Run, limits: Limits, stop: Callable[[], bool]) -> None:
        self._broker = broker
        self._run = run
        self._limits = limits
        self._stop = stop
        self._chunks = 0

    def hold(self, jobs: int, ledger: bytes, digest: bytes) -> None:
        """Returns when ``jobs`` jobs may be sent.

        Args:
            ledger: its key.
            digest: by which it would know this chunk: what is in already takes nothing of the rate.

        Raises:
            QueueFull: there is no memory, for longer than the patience goes.
            RunStopped: ``stop()`` was true.
        """
        if self._limits.most_memory and self._chunks % self._limits.look_every == 0:
            self._wait_for_memory()
        self._chunks += 1
        if self._limits.per_second is not None and not self._is_known(ledger, digest):
            key = pace_key(self._broker.prefix, self._run.id).encode()
            ms = self._broker.scripts.call("pace", (key,), jobs, f"{self._limits.per_second:.6f}")
            rest(ms / 1000, self._stop)

    def _is_known(self, ledger: bytes, digest: bytes) -> bool:
        with clear_errors():
            return bool(self._broker.client.hexists(ledger, digest))

    def _wait_for_memory(self) -> None:
        wait = Wait(self._limits.patience, self._stop, first=0.2, longest=5.0)
        while True:
            used, limit = self._memory()
            if not limit or used <= self._limits.most_memory * limit:
                return
            wait.rest(
                QueueFull(
                    f"Redis uses {used / limit:.0%} of its maxmemory, and run {self._run.id!r} stops at "
                    f"{self._limits.most_memory:.0%}; give it memory and go on with the run"
                )
            )

    def _memory(self) -> tuple[int, int]:
        """Bytes in use and the limit, of the node that is nearest to its limit."""
        nodes = memory_of(self._broker).values()
        pairs = [(int(node["used_memory"]), int(node.get("maxmemory", 0))) for node in nodes]
        return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)


def memory_of(broker: Broker) -> dict[str, dict[str, Any]]:
    """``INFO memory``: of the server, under ""; on a cluster of each master that answers, by its name (``host:port``).

    Any of them may be the one that is full. A master that does not answer is left out: whoever needs it will be told.

    Raises:
        DelayQError: nobody answers.
    """
    client: Any = broker.client
    with clear_errors():
        if not broker.connection.cluster:
            return {"": client.info("memory")}
        told: dict[str, dict[str, Any]] = {}
        refusal: Exception | None = None
        for node in client.get_primaries():
            try:
                told[node.name] = client.info("memory", target_nodes=node)
            except REDIS_ERRORS as error:
                refusal = error
        if refusal is not None and not told:
            raise refusal
        return told
