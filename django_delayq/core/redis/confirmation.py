"""Confirmation of writes: a call returns only when replicas, or disks, have what it wrote (``WAIT``, ``WAITAOF``).

Both commands wait for the writes of their own connection. So the script, a small write and the wait travel over one
connection, in one round trip. The small write is there because a script that finds its work done already (a repeated
request, a conflict that is ignored) writes nothing, and a wait behind it would not cover the earlier write: since 7.2
it covers only what its connection wrote last. Both calls reach the same server, and its writes arrive in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from redis import exceptions as redis_errors

from ..errors import Misconfigured, NotConfirmed
from .probe import by_server, version_of

if TYPE_CHECKING:
    from .config import RedisConfig
    from .connection import Connection

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
    """Caller of commands whose writes are confirmed, over one deployment's connections."""

    def __init__(self, connection: Connection, rule: Confirmation) -> None:
        self._connection = connection
        self._rule = rule
        self._is_fit = False

    def obstacles(self) -> list[str]:
        """Return why the servers cannot confirm writes now, and what to do."""
        servers = self._servers()
        return [*self._rule.obstacles(servers), *self._rule.absences(servers)]

    def _servers(self) -> list[dict[str, Any]]:
        """Return ``INFO`` of each server."""
        info: dict[str, Any] = self._connection.client.info()
        return by_server(info)

    def exchange(self, words: tuple[object, ...], key: bytes, until: float) -> Any:
        """Send a command that changes a shard, and return its reply when what it wrote is confirmed.

        See :meth:`exchange_all`.

        Raises:
            NotConfirmed: the confirmation did not come in time.
        """
        (reply,), missing = self.exchange_all([words], key, until)
        if isinstance(reply, Exception):
            raise reply
        if missing is not None:
            missing.reply = reply
            raise missing
        return reply

    def exchange_all(
        self, calls: Sequence[tuple[object, ...]], key: bytes, until: float
    ) -> tuple[list[Any], NotConfirmed | None]:
        """Send commands that change shards of one node, and wait once for all that they write.

        Args:
            key: a key of one of the shards.
            until: end (monotonic) of the call; the time of the wait is added.

        Returns:
            A reply, or the error of Redis, for each command; and the error if the confirmation did not come in time.

        Raises:
            Misconfigured: the server cannot confirm writes; nothing was sent.
        """
        if not self._is_fit:
            for obstacle in self._rule.obstacles(self._servers()):
                raise Misconfigured(obstacle)
            self._is_fit = True
        pool = self._connection.pool(key)
        link: Any = pool.take(until)  # a connection of redis-py, too
        try:
            small_write = ("SET", key.rpartition(b":")[0] + b":confirm", b"", "EX", _KEY_AGE)
            commands = (*calls, small_write, self._rule.command)
            packed = b"".join(part for command in commands for part in link.pack_command(*command))
            *replies, written, confirmed = link.exchange(packed, partial(self._read, link, len(calls)))
        finally:
            pool.release(link)
        if all(isinstance(reply, Exception) for reply in replies):
            return replies, None  # nothing that could be confirmed
        return replies, self._missing(written, confirmed)

    def _read(self, link: Any, calls: int) -> list[Any]:
        """Return the replies to the commands, to the small write and to the wait; raise errors that allow a retry."""
        replies = [_read_one(link) for _ in range(calls + 1)]
        link.allow(self._rule.timeout + _GRACE)
        replies.append(_read_one(link))
        for reply in replies[:calls]:
            if isinstance(reply, Exception) and link.retry.retries(reply):
                raise reply
        return replies

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


def _read_one(link: Any) -> Any:
    try:
        return link.read_response()
    except redis_errors.ResponseError as error:
        return error
