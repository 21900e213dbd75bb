"""Loader and caller of the Lua scripts. No other module handles their hashes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

from redis.exceptions import NoPermissionError, NoScriptError

from ..errors import Misconfigured, NotConfirmed, QueueFull, QueueUnavailable
from ..records.keys import SHARD_KEYS
from .composition import compose
from .confirmation import Confirmer
from .connection import ELSEWHERE, Connection
from .faults import REDIS_ERRORS, Fault, classify, without_permission
from .link import deadline_of_thread
from .probe import server_version

#: ``observe(verb, seconds, failed)``: the script's name, the caller's waiting time including retries, and True if the
#: call raised. It runs in the thread of the call, so it should be short and must not block.
Observer: TypeAlias = Callable[[str, float, bool], object]

logger: Final = logging.getLogger(__name__)

#: maximum number of packed call headers that are cached, 1.5 kB each
MOST_HEADS: Final = 20_000
#: keys of a script that works on one shard, with its wake list
_MOST_KEYS: Final = len(SHARD_KEYS) + 1
#: scripts of callers that do nothing else meanwhile. Loops over shards go on with the next one
_OF_PRODUCERS: Final = frozenset({"schedule", "schedule_fresh", "cancel", "reschedule"})
_SCRIPT_FLAGS_SINCE: Final = (7, 0)


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
        raise Misconfigured(without_permission(error)) from error
    if fault is Fault.CONFIG:
        raise Misconfigured(f"Redis refuses this client ({error}); check user, password and permissions") from error
    raise QueueUnavailable(f"Redis cannot be used now ({type(error).__name__}: {error}); try again") from error


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


class Reply(Protocol):
    """Function that waits for the reply to a call, until a moment (monotonic) or the end of the call's time limit."""

    def __call__(self, until: float | None = None) -> Any: ...


class Scripts:
    """Lua scripts of one deployment. Calls are ``scripts.call(name, keys, *args)``.

    Args:
        connection: to the deployment.
        test_clock: see :class:`.broker.Broker`.
        most_heads: number of shards whose commands are kept packed, times the scripts.
    """

    def __init__(self, connection: Connection, *, test_clock: bool = False, most_heads: int = MOST_HEADS) -> None:
        self._connection = connection
        self._most_heads = most_heads
        self._test_clock = test_clock
        self._loaded: dict[str, tuple[str, str]] = {}
        self._heads: dict[tuple[str, bytes, bytes, int], bytes] = {}
        self._flags: bool | None = None
        #: called after every call; its exceptions are only logged
        self.observer: Observer | None = None
        #: None = the settings demand no confirmation
        self.confirmer = Confirmer(connection, rule) if (rule := connection.confirmation) else None

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        """Run a script; load it if the server does not have it (restart, ``SCRIPT FLUSH``, failover).

        Args:
            until: end (monotonic) of the call; None = ``patience`` of the connection from now, or the deadline of this
                thread (:func:`.link.within`).

        Raises:
            QueueUnavailable, QueueFull, Misconfigured: see :func:`clear_errors`.
        """
        if self.observer is None:
            return self._call(name, keys, *args, until=until)
        with self._timed(name):
            return self._call(name, keys, *args, until=until)

    def _call(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        if until is None:
            until = deadline_of_thread() or time.monotonic() + self._connection.patience
        try:
            sha, source = self.loaded(name)
            try:
                pool = self._connection.only_pool
                if pool is None:
                    pool = self._connection.pool(keys[0])
                link = pool.take(until)
                try:
                    return link.exchange(self._command(sha, keys, args))
                finally:
                    pool.release(link)
            except NoScriptError:
                pass  # EVAL loads and runs on the node that answers, inside one command
            except ELSEWHERE:
                if not self._connection.cluster:
                    raise
            return self._connection.run(source, keys, *args, until=until, outlasts=self._outlasts(name))
        except REDIS_ERRORS as error:
            raise_clear(error)

    def call_confirmed(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """Run a script, see :meth:`call`, and return when its writes are confirmed (:mod:`.confirmation`).

        Raises:
            NotConfirmed: they were made, and were not confirmed in time.
        """
        until = time.monotonic() + self._connection.patience
        with self._timed(name), clear_errors():
            (sha, source), confirmer = self.loaded(name), cast(Confirmer, self.confirmer)
            script: tuple[str, str] = ("EVALSHA", sha)
            while True:
                try:
                    return confirmer.exchange((*script, len(keys), *keys, *args), keys[0], until)
                except NoScriptError:
                    script = ("EVAL", source)
                except ELSEWHERE:
                    if not self._connection.cluster:
                        raise
                    # It finds the node and remembers it. The request id makes the call above a repeated one.
                    self._connection.run(source, keys, *args, until=until, outlasts=self._outlasts(name))

    def call_all_confirmed(
        self, name: str, calls: Sequence[tuple[tuple[bytes, ...], tuple[Any, ...]]]
    ) -> tuple[list[Any], NotConfirmed | None]:
        """Run a script on several shards of one node, each with its keys and arguments, and wait once for all.

        Returns:
            See :meth:`.confirmation.Confirmer.exchange_all`. Calls with an error must be made one by one.
        """
        until = time.monotonic() + self._connection.patience
        with self._timed(name), clear_errors():
            (sha, _), confirmer = self.loaded(name), cast(Confirmer, self.confirmer)
            commands = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            return confirmer.exchange_all(commands, calls[0][0][0], until)

    def node(self, keys: tuple[bytes, ...]) -> int:
        """Return a number that calls with such keys share if they go to the same node."""
        with clear_errors():
            return id(self._connection.pool(keys[0]))

    async def call_on_loop(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float) -> Any:
        """Run a script from the running event loop, once; see :meth:`call`.

        Raises:
            QueueUnavailable, QueueFull, Misconfigured: also for what :meth:`call` repeats, or waits for.
        """
        exchange = self._connection.exchange_on_loop
        with self._timed(name), clear_errors():
            if self._flags is None:
                await asyncio.to_thread(self._server_knows_flags)
            sha, source = self.loaded(name)
            try:
                return await exchange(keys[0], self._command(sha, keys, args), until)
            except NoScriptError:
                return await exchange(keys[0], pack_command(b"EVAL", source, len(keys), *keys, *args), until)

    def _outlasts(self, name: str) -> bool:
        """Return True for a call that waits for the successor of a lost node, as long as it may take."""
        return self._connection.cluster and name in _OF_PRODUCERS

    def begin(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Reply:
        """Send a call and return a function that waits for its reply; the function must be called.

        Calls to several nodes of a cluster run at the same time. If anything goes wrong, the call is repeated as a
        whole. With a request id that is safe until the time limit of the call; after that, the shard may have forgotten
        it. An observer gets the time until the reply is read.
        """
        began_at = time.perf_counter()
        last = until = time.monotonic() + self._connection.patience
        pending = None
        with suppress(*REDIS_ERRORS):
            sha, _ = self.loaded(name)
            pending = self._connection.pool(keys[0]).begin(self._command(sha, keys, args), until)
            if pending is None:
                last = math.inf  # nothing was sent
        remaining = until - time.monotonic()

        def finish(until: float | None = None) -> Any:
            if until is None:
                until = time.monotonic() + remaining  # time that the caller spends before the read does not count
            with self._timed(name, began_at):
                if pending is not None:
                    with suppress(*REDIS_ERRORS):
                        return pending.reply(until)
                return self._repeat(name, keys, args, min(until, last) if args[0] else until)

        return finish

    def _repeat(self, name: str, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float) -> Any:
        """Make a call again that was begun and lost."""
        return self._call(name, keys, *args, until=until)

    @contextmanager
    def _timed(self, name: str, began_at: float | None = None) -> Iterator[None]:
        """Tell the observer how long the block takes; with ``began_at`` (performance counter), since then."""
        observer = self.observer
        if observer is None:
            yield
            return
        began, failed = time.perf_counter() if began_at is None else began_at, True
        try:
            yield
            failed = False
        finally:
            try:
                observer(name, time.perf_counter() - began, failed)
            except Exception:
                logger.exception("the observer of calls to Redis failed")

    def _command(self, sha: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> bytes:
        return self._packed(sha, keys, len(args)) + b"".join(map(pack_argument, args))

    def _packed(self, sha: str, keys: tuple[bytes, ...], arguments: int) -> bytes:
        """Return the constant part of a script's command on a shard, in wire format.

        Packing all the keys of a shard takes redis-py longer than all the rest of a schedule() call.
        """
        # A single key is soon packed, and there may be one for each job; the first and the last one do not identify the
        # keys of several shards.
        if not 1 < len(keys) <= _MOST_KEYS:
            return _pack_head(sha, keys, arguments)
        of = (sha, keys[0], keys[-1], arguments)
        head = self._heads.get(of)
        if head is None:
            head = _pack_head(sha, keys, arguments)
            if len(self._heads) >= self._most_heads:  # queues and epochs come and go; those in use are packed again
                self._heads.clear()
            self._heads[of] = head
        return head

    def loaded(self, name: str) -> tuple[str, str]:
        """Return ``(sha, source)`` of a script in the form that this server needs."""
        script = self._loaded.get(name)
        if script is None:
            source = compose(name, flags=self._server_knows_flags(), test_clock=self._test_clock)
            script = self._loaded[name] = (hashlib.sha1(source.encode()).hexdigest(), source)  # noqa: S324 (Redis's own id)
        return script

    def _server_knows_flags(self) -> bool:
        if self._flags is None:
            self._flags = server_version(self._connection.client.info) >= _SCRIPT_FLAGS_SINCE
        return self._flags
