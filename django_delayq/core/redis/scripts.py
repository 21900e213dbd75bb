"""Composition, loading and calls of the Lua scripts. No other module handles their hashes.

A script begins with a header and a line ``-- include a b c``: the pieces ``lua/lib/<name>.lua`` are inserted there, in
that order; a piece may include others. A piece with a line ``-- exports a b`` becomes a block, whose other names end
with it: Lua allows a script 200 local names at a time. Redis 7 and later reads the flags in the first line; for 6.2
that line is removed.

A confirmed call returns only when replicas, or disks, have what it wrote (``WAIT``, ``WAITAOF``). Both commands wait
for the writes of their own connection. So the script, a small write and the wait travel over one connection, in one
round trip. The small write is there because a script that finds its work done already (a repeated request, a conflict
that is ignored) writes nothing, and a wait behind it would not cover the earlier write: since 7.2 it covers only what
its connection wrote last. Both calls reach the same server, and its writes arrive in order.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, NoReturn, TypeAlias, cast

from redis import exceptions as redis_errors
from redis.exceptions import NoPermissionError, NoScriptError

from ..errors import Misconfigured, NotConfirmed, QueueFull, QueueUnavailable
from ..records.keys import SHARD_KEYS, Shard
from .config import Confirmation
from .connection import ELSEWHERE, PARTIAL_SECONDS, Connection
from .faults import REDIS_ERRORS, Fault, classify
from .pool import BoundedPool, end_of_call, within
from .probe import by_server, version_of

#: ``observe(verb, seconds, failed)``: the script's name, the caller's waiting time including retries, and True if the
#: call raised. It runs in the thread of the call, so it should be short and must not block.
Observer: TypeAlias = Callable[[str, float, bool], object]

logger: Final = logging.getLogger(__name__)

#: maximum number of packed call headers that are cached, 1.5 kB each
_MOST_HEADS: Final = 20_000
#: keys of a script that works on one shard, with its wake list
_MOST_KEYS: Final = len(SHARD_KEYS) + 1
#: scripts of callers that do nothing else meanwhile. Loops over shards go on with the next one
_OF_PRODUCERS: Final = frozenset({"schedule", "schedule_fresh", "change"})
_SCRIPT_FLAGS_SINCE: Final = (7, 0)
#: shortest time limit of a reply, seconds: one that has arrived is read although the time is over
_REPLY_SECONDS: Final = 0.001
#: seconds that the reply to a wait for confirmation may come after the wait's own end
_GRACE: Final = 1.0
#: seconds after which the key of the small write expires
_KEY_AGE: Final = b"10"
_LUA: Final = files("django_delayq.core") / "lua"
_INCLUDE: Final = re.compile(r"^ *-- include (.+)$", re.MULTILINE)
_EXPORTS: Final = re.compile(r"^-- exports (.+)$", re.MULTILINE)
_UNOBSERVED: Final = nullcontext()
_UNSENT: Final = redis_errors.ConnectionError("the call was not sent")


# --- sources


@cache
def script_names() -> tuple[str, ...]:
    """Return the names of all scripts."""
    names = (path.name for path in _LUA.iterdir())
    return tuple(sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua")))


@cache
def compose(name: str, *, flags: bool = True, test_clock: bool = False) -> str:
    """Return the source of a script with its pieces inserted.

    Args:
        flags: keep the first line, which Redis before 7 cannot read.
        test_clock: take the time from the shard's meta instead of Redis, so that a test can move it.
    """
    source = (_LUA / f"{name}.lua").read_text(encoding="utf-8")

    def paste(match: re.Match[str]) -> str:
        pieces = match[1].split()
        if test_clock:
            pieces = ["test_clock" if piece == "clock" else piece for piece in pieces]
        return "\n".join(in_block((_LUA / "lib" / f"{piece}.lua").read_text(encoding="utf-8")) for piece in pieces)

    def in_block(piece: str) -> str:
        """Return a piece with its own pieces, whose names, but for those that it exports, end with it."""
        exports, whole = " ".join(_EXPORTS.findall(piece)).split(), _INCLUDE.sub(paste, piece)
        return f"local {', '.join(exports)}\ndo\n{whole}\nend" if exports else whole

    source = _INCLUDE.sub(paste, source)
    if not flags and source.startswith("#!"):
        first, _, source = source.partition("\n")
        if "allow-oom" in first:
            # Before 7 a script may exceed the memory limit once it has written; this is a write that changes nothing.
            source = "redis.call('PERSIST', KEYS[1])\n" + source
    return source


# --- errors


@contextmanager
def clear_errors() -> Iterator[None]:
    """Translate errors of redis-py into the errors of this package; the original stays as the cause."""
    try:
        yield
    except REDIS_ERRORS as error:
        raise_clear(error)


def raise_clear(error: Exception) -> NoReturn:
    """Raise the error of this package for an error of redis-py; a bug of ours is raised unchanged."""
    fault = classify(error)
    if fault is Fault.BUG:
        raise error
    if fault is Fault.OVERLOAD:
        raise QueueFull(f"Redis has no memory left ({error}); free some or try again later") from error
    if isinstance(error, NoPermissionError):
        raise Misconfigured(f"the Redis user may not do what a queue does ({error}); extend its ACL") from error
    if fault is Fault.CONFIG:
        raise Misconfigured(
            f"Redis refuses this client ({error}); check user, password, permissions and certificates"
        ) from error
    raise QueueUnavailable(f"Redis cannot be used now ({type(error).__name__}: {error}); try again") from error


# --- calls


def pack_argument(value: Any) -> bytes:
    """Return a word of a command in wire format."""
    word = value if type(value) is bytes else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(word), word)


def pack_command(*words: Any) -> bytes:
    """Return a command in wire format."""
    return b"*%d\r\n" % len(words) + b"".join(map(pack_argument, words))


def _pack_head(sha: str, keys: tuple[bytes, ...], arguments: int) -> bytes:
    words = [b"EVALSHA", sha.encode(), len(keys), *keys]
    return b"*%d\r\n" % (len(words) + arguments) + b"".join(map(pack_argument, words))


#: Packing all the keys of a shard takes longer than all the rest of a schedule() call.
_head_of_shard: Final = lru_cache(_MOST_HEADS)(_pack_head)


def _pack_call(sha: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> bytes:
    # A single key is soon packed, and there may be one for each job; those of several shards would fill the cache.
    pack_head = _head_of_shard if 1 < len(keys) <= _MOST_KEYS else _pack_head
    return pack_head(sha, keys, len(args)) + b"".join(map(pack_argument, args))


@dataclass(slots=True, eq=False)
class Call:
    """Call of a script among others. It carries a request id, or a second call changes nothing: it may be sent again.

    Attributes:
        confirm: wait until its writes are confirmed (see above).
        reply: what the script returned; an error if it has not replied.
        missing: the error if its writes were made and not confirmed in time.
    """

    name: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    confirm: bool = False
    reply: Any = _UNSENT
    missing: NotConfirmed | None = None

    @classmethod
    def on_shard(cls, name: str, shard: Shard, *args: Any) -> Call:
        """Return a call on a shard that has no request id, because it may be repeated without one."""
        return cls(name, shard.keys, (b"", shard.constants, *args))

    @property
    def failed(self) -> bool:
        """True if there is no reply of the script."""
        return isinstance(self.reply, Exception)


class Scripts:
    """Lua scripts of one deployment. Calls are ``scripts.call(name, keys, *args)``.

    Args:
        connection: to the deployment.
        test_clock: see :class:`..deployment.Deployment`.
    """

    def __init__(self, connection: Connection, *, test_clock: bool = False) -> None:
        self._connection = connection
        self._test_clock = test_clock
        self._loaded: dict[str, tuple[str, str]] = {}
        self._flags: bool | None = None
        #: called after every call; its exceptions are only logged
        self.observer: Observer | None = None
        self._can_confirm = False

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any, confirm: bool = False) -> Any:
        """Run a script; load it if the server does not have it (restart, ``SCRIPT FLUSH``, failover).

        It ends ``patience`` of the connection from now, or at the deadline of this thread (:func:`.pool.within`).

        Args:
            confirm: wait until its writes are confirmed (see above), beyond that time.

        Raises:
            QueueUnavailable, QueueFull, Misconfigured: see :func:`clear_errors`.
            NotConfirmed: the writes were made, and were not confirmed in time.
        """
        if confirm:
            call = Call(name, keys, args, confirm=True)
            self.send_many([call]).read()
            if call.missing is not None:
                call.missing.reply = call.reply
                raise call.missing
            return call.reply
        with self.timed(name):
            until = end_of_call(self._connection.patience)
            try:
                packed = _pack_call(self.loaded(name)[0], keys, args)
                pool = self._connection.only_pool or self._connection.pool(keys[0])
                link = pool.take(until)
                try:
                    return link.exchange(packed)
                finally:
                    pool.release(link)
            except NoScriptError:
                pass  # EVAL loads and runs on the node that answers, inside one command
            except REDIS_ERRORS as error:
                if not (self._connection.cluster and isinstance(error, ELSEWHERE)):
                    raise_clear(error)
            return self._run(name, keys, args, until)

    def _run(self, name: str, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float) -> Any:
        """Run a script by its source, wherever its keys are now."""
        # A producer waits for the successor of a lost node, as long as it may take.
        outlasts = self._connection.cluster and name in _OF_PRODUCERS
        with clear_errors():
            return self._connection.run(self.loaded(name)[1], keys, *args, until=until, outlasts=outlasts)

    def call_many(self, calls: Sequence[Call], *, partial: bool = False) -> list[Any]:
        """Make calls in one round trip for each node; return their replies in order.

        Args:
            partial: on a cluster, return a :class:`QueueUnavailable` in place of each reply that a node did not give
                within ``PARTIAL_SECONDS``. For what people look at; decisions need all replies.

        Raises:
            QueueUnavailable, QueueFull, Misconfigured: a part of the calls failed; see :meth:`call`.
        """
        if partial and self._connection.cluster:
            # One node after the other, so that one that hangs costs the others nothing.
            for mine in self._by_node(calls).values():
                with within(time.monotonic() + PARTIAL_SECONDS):
                    try:
                        self.send_many(mine).read()
                    except QueueUnavailable as error:
                        for call in mine:
                            call.reply = error if call.failed else call.reply
        elif calls:
            self.send_many(calls).read()
        return [call.reply for call in calls]

    def send_many(self, calls: Sequence[Call]) -> SentCalls:
        """Send calls to their nodes, those of one node in one piece over one connection; the replies are read later.

        An observer gets the time until the replies are read, as of one call.

        Raises:
            Misconfigured: the server cannot confirm writes; nothing was sent.
        """
        with clear_errors():
            if not self._can_confirm and any(call.confirm for call in calls):
                self._check_confirmation()
            return SentCalls(self, calls, end_of_call(self._connection.patience))

    def _check_confirmation(self) -> None:
        for obstacle in cast(Confirmation, self._connection.confirmation).obstacles(self._servers()):
            raise Misconfigured(obstacle)
        self._can_confirm = True

    def _servers(self) -> list[dict[str, Any]]:
        """Return ``INFO`` of each server."""
        info: dict[str, Any] = self._connection.client.info()
        return by_server(info)

    def confirmation_obstacles(self) -> list[str]:
        """Return why the servers cannot confirm writes now as the settings demand, and what to do."""
        rule = self._connection.confirmation
        servers = [] if rule is None else self._servers()
        return [] if rule is None else [*rule.obstacles(servers), *rule.absences(servers)]

    def _by_node(self, calls: Sequence[Call]) -> dict[BoundedPool | None, list[Call]]:
        """Return the calls by the pool of their node; None = no node is known that has the slot."""
        parts: dict[BoundedPool | None, list[Call]] = {}
        for call in calls:
            pool: BoundedPool | None = None
            with suppress(*REDIS_ERRORS):
                pool = self._connection.pool(call.keys[0])
            parts.setdefault(pool, []).append(call)
        return parts

    def _make(self, call: Call, until: float) -> None:
        """Make a call alone, on the path that follows slots, loads scripts and replaces lost connections."""
        while call.failed:
            call.reply = self._run(call.name, call.keys, call.args, until)
            if call.confirm:  # its request id makes it a repeated one, which is confirmed like the first
                SentCalls(self, [call], until).read_once()

    def node(self, keys: tuple[bytes, ...]) -> int:
        """Return a number that calls with such keys share if they go to the same node."""
        with clear_errors():
            return id(self._connection.pool(keys[0]))

    def timed(self, name: str, began: float | None = None) -> AbstractContextManager[None]:
        """Return a block whose end tells the observer how long it took; with ``began``, since then."""
        observer = self.observer
        return _UNOBSERVED if observer is None else _observed(observer, name, began)

    def loaded(self, name: str) -> tuple[str, str]:
        """Return ``(sha, source)`` of a script in the form that this server needs."""
        script = self._loaded.get(name)
        if script is None:
            source = compose(name, flags=self._server_knows_flags(), test_clock=self._test_clock)
            script = self._loaded[name] = (hashlib.sha1(source.encode()).hexdigest(), source)  # noqa: S324 (Redis's own id)
        return script

    def _server_knows_flags(self) -> bool:
        if self._flags is None:
            servers = by_server(self._connection.client.info("server"))
            self._flags = min(map(version_of, servers)) >= _SCRIPT_FLAGS_SINCE
        return self._flags


@contextmanager
def _observed(observer: Observer, name: str, began_at: float | None) -> Iterator[None]:
    began, failed = time.perf_counter() if began_at is None else began_at, True
    try:
        yield
        failed = False
    finally:
        try:
            observer(name, time.perf_counter() - began, failed)
        except Exception:
            logger.exception("the observer of calls to Redis failed")


class SentCalls:
    """Calls that were sent together, and whose replies are read once, by :meth:`read`.

    From the first round trip on, one call for each node that failed (the slot has moved, the script is not loaded, the
    connection broke) is made alone, and the others that failed follow together.
    """

    def __init__(self, scripts: Scripts, calls: Sequence[Call], until: float) -> None:
        self._scripts = scripts
        self._calls = calls
        #: end (monotonic) of all attempts: after it the shards may have forgotten the request ids
        self._until = until
        self._began = time.perf_counter()
        self._unread: list[tuple[BoundedPool, Any, list[Call]]] = []
        # All callers take connections in one order of the nodes, so they never wait for each other in a circle.
        for pool, mine in sorted(scripts._by_node(calls).items(), key=lambda part: id(part[0])):
            if pool is not None:
                self._send(pool, mine)
        self._remaining = until - time.monotonic()
        if not all(pool.has_spare for pool, _, _ in self._unread):
            self.read_once()  # the last connection is not kept while its caller does something else

    def read(self) -> None:
        """Read the replies, each into its call; make the calls again that failed.

        Raises:
            QueueUnavailable, QueueFull, Misconfigured: see :meth:`Scripts.call`.
        """
        if not self._calls:
            return
        scripts, failed = self._scripts, self._calls
        with scripts.timed(self._calls[0].name, self._began):
            self.read_once()
            while failed := [call for call in failed if call.failed]:
                for mine in scripts._by_node(failed).values():
                    scripts._make(mine[0], self._until)
                SentCalls(scripts, [call for call in failed if call.failed], self._until).read_once()

    def read_once(self) -> None:
        """Read the replies that have come, each into its call."""
        until = time.monotonic() + self._remaining  # time that the caller spends before the read does not count
        while self._unread:
            pool, link, calls = self._unread.pop(0)
            try:
                self._read_node(link, calls, until)
            except BaseException as error:
                link.disconnect()  # half a reply may be left on it
                if not isinstance(error, REDIS_ERRORS):
                    raise
            finally:
                pool.release(link)

    def _send(self, pool: BoundedPool, calls: list[Call]) -> None:
        scripts, link = self._scripts, None
        try:
            packed = [_pack_call(scripts.loaded(call.name)[0], call.keys, call.args) for call in calls]
            if any(call.confirm for call in calls):
                small_write = (b"SET", calls[0].keys[0].rpartition(b":")[0] + b":confirm", b"", b"EX", _KEY_AGE)
                packed += [pack_command(*small_write), pack_command(*self._rule.command)]
            link = pool.take(self._until)
            link.send_packed_command([b"".join(packed)])
            self._unread.append((pool, link, calls))
        except REDIS_ERRORS:
            if link is not None:
                link.disconnect()
                pool.release(link)

    def _read_node(self, link: Any, calls: list[Call], until: float) -> None:
        link.allow(max(_REPLY_SECONDS, min(until - time.monotonic(), link.socket_timeout or math.inf)))
        replies = [_read_one(link) for _ in calls]
        missing = self._read_confirmation(link) if any(call.confirm for call in calls) else None
        for call, reply in zip(calls, replies, strict=True):
            call.reply = reply
            call.missing = missing if call.confirm and not call.failed else None
        if any(isinstance(reply, redis_errors.ReadOnlyError) for reply in replies):
            link.disconnect()  # the server is no master any more

    def _read_confirmation(self, link: Any) -> NotConfirmed | None:
        """Read the replies behind those of the calls; return the error if the confirmation did not come in time."""
        written = _read_one(link)
        link.allow(self._rule.timeout + _GRACE)
        confirmed = _read_one(link)
        for answer in (written, confirmed):
            if isinstance(answer, redis_errors.ResponseError):
                self._scripts._can_confirm = False  # the server has changed: the next call checks what is missing
                reason = f"Redis refused to confirm it ({answer})"
                return NotConfirmed(f"Redis has the job, but {reason}: see manage.py delayq_check", reason=reason)
        missing = self._rule.missing(confirmed)
        return NotConfirmed.because(f"within {self._rule.timeout:g} s {missing}") if missing else None

    @property
    def _rule(self) -> Confirmation:
        return cast(Confirmation, self._scripts._connection.confirmation)


def _read_one(link: Any) -> Any:
    """Return the reply that is read next from a connection, or the error that Redis replied."""
    try:
        return link.read_response()
    except redis_errors.ResponseError as error:
        return error
