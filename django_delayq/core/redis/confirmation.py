"""Confirmation of writes: a call returns only when replicas, or disks, have what it wrote (``WAIT``, ``WAITAOF``).

Both commands wait for the writes of their own connection. So the script, a small write and the wait travel over one
connection, in one round trip. The small write is there because a script that finds its work done already (a repeated
request, a conflict that is ignored) writes nothing, and a wait behind it would not cover the earlier write: since 7.2
it covers only what its connection wrote last. Both calls reach the same server, and its writes arrive in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from redis import exceptions as redis_errors

from ..errors import Misconfigured, NotConfirmed
from .config import RedisConfig
from .probe import by_server, version_of

#: first version with WAITAOF
_AOF_SINCE: Final = (7, 2)
#: seconds that the reply to a wait may come after the wait's own end
_GRACE: Final = 1.0
#: seconds after which the key of the small write expires
_KEY_AGE: Final = b"10"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Rule for what confirms a write.

    Attributes:
        replicas: number of replicas that have received it; with ``aof``, that have it on disk.
        aof: the server itself has it on disk.
        timeout: longest wait, in seconds.
        by_default: all jobs are confirmed, except those with ``wait_for_confirmation=False``; otherwise only
            those with ``wait_for_confirmation=True``, and durable ones.
    """

    replicas: int
    aof: bool
    timeout: float
    by_default: bool

    @classmethod
    def of(cls, config: RedisConfig) -> Self | None:
        """Return the confirmation that the settings of a deployment demand; None = none."""
        if not (config.wait_replicas or config.wait_aof):
            return None
        return cls(config.wait_replicas, config.wait_aof, config.wait_timeout, config.wait_default)

    @property
    def command(self) -> tuple[object, ...]:
        """Words of the Redis command ``WAIT`` or ``WAITAOF`` for this rule."""
        ms = max(1, round(self.timeout * 1000))  # 0 would wait for ever
        return ("WAITAOF", 1, self.replicas, ms) if self.aof else ("WAIT", self.replicas, ms)

    def missing(self, reply: Any) -> str:
        """Return what a reply to the command lacks; "" = nothing."""
        disks, replicas = reply if self.aof else (1, reply)
        lacks = [] if disks else ["the disk of Redis did not confirm it"]
        if replicas < self.replicas:
            where = " on disk" if self.aof else ""
            lacks.append(f"{replicas} of {self.replicas} replicas confirmed it{where}")
        return " and ".join(lacks)

    def obstacles(self, servers: list[dict[str, Any]]) -> Iterator[str]:
        """Yield why servers with these ``INFO`` cannot confirm writes, and what to do."""
        for info in servers if self.aof else ():
            if version_of(info) < _AOF_SINCE:
                release = info.get("redis_version", "")
                yield f"WAIT_AOF needs Redis 7.2 or newer, this is {release}: upgrade it, or use WAIT_REPLICAS alone"
            elif not info.get("aof_enabled", 1):
                yield "WAIT_AOF needs an append-only file: set `appendonly yes` in Redis, or use WAIT_REPLICAS alone"

    def absences(self, servers: list[dict[str, Any]]) -> Iterator[str]:
        """Yield which masters have fewer replicas now than must confirm."""
        for info in servers:
            connected = info.get("connected_slaves", self.replicas)
            if info.get("role") == "master" and connected < self.replicas:
                yield (
                    f"{connected} replicas are connected and WAIT_REPLICAS is {self.replicas}, so every confirmed call "
                    "ends in NotConfirmed: start the others, or lower it"
                )


class Confirmer:
    """Commands that confirm the writes of calls sent before them, and what their replies lack.

    Args:
        info: returns the reply to ``INFO``.
    """

    def __init__(self, info: Callable[[], dict[str, Any]], rule: Confirmation) -> None:
        self._info = info
        self._rule = rule
        self._is_fit = False

    def obstacles(self) -> list[str]:
        """Return why the servers cannot confirm writes now, and what to do."""
        servers = self._servers()
        return [*self._rule.obstacles(servers), *self._rule.absences(servers)]

    def _servers(self) -> list[dict[str, Any]]:
        """Return ``INFO`` of each server."""
        return by_server(self._info())

    def check(self) -> None:
        """Check once that the servers can confirm writes.

        Raises:
            Misconfigured: they cannot.
        """
        if not self._is_fit:
            for obstacle in self._rule.obstacles(self._servers()):
                raise Misconfigured(obstacle)
            self._is_fit = True

    def commands(self, key: bytes) -> tuple[tuple[object, ...], ...]:
        """Return the small write and the wait that are sent behind calls to the node of this key of a shard."""
        small_write = ("SET", key.rpartition(b":")[0] + b":confirm", b"", b"EX", _KEY_AGE)
        return small_write, self._rule.command

    def read(self, link: Any, replies: list[Any]) -> NotConfirmed | None:
        """Read the replies behind those of the calls; return the error if the confirmation did not come in time."""
        written = read_one(link)
        link.allow(self._rule.timeout + _GRACE)
        confirmed = read_one(link)
        if all(isinstance(reply, Exception) for reply in replies):
            return None  # nothing that could be confirmed
        return self._missing(written, confirmed)

    def _missing(self, written: Any, confirmed: Any) -> NotConfirmed | None:
        """Return the error for what the replies to the small write and to the wait lack."""
        for answer in (written, confirmed):
            if isinstance(answer, redis_errors.ResponseError):
                self._is_fit = False  # the server has changed: the next call checks what is missing
                reason = f"Redis refused to confirm it ({answer})"
                return NotConfirmed(f"Redis has the job, but {reason}: see manage.py delayq_check", reason=reason)
        missing = self._rule.missing(confirmed)
        if not missing:
            return None
        return NotConfirmed.because(f"within {self._rule.timeout:g} s {missing}")


def read_one(link: Any) -> Any:
    """Return the reply that is read next from a connection, or the error that Redis replied."""
    try:
        return link.read_response()
    except redis_errors.ResponseError as error:
        return error
