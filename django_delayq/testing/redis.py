"""Redis in memory, and the broker on it: fakeredis with a Lua interpreter and a clock that stands still.

The scripts and everything above them are the real ones. Some names that fakeredis does not publish are used here: the
socket with its methods ``_name_to_func``, ``_run_command`` and ``_convert_…``, the ``time`` of a database, the
class of an error reply, and ``_convert_redis_arg``.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import msgpack
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..connections import DjangoBroker
from ..core import layouts
from ..core.job import NewJob
from ..core.layouts import Layout
from ..core.outcomes import ScheduleOutcome
from ..core.queue import Queue
from ..core.records import frames
from ..core.redis.connection import Connection, RedisConfig
from ..core.redis.pool import PoolLimits
from ..core.redis.scripts import Scripts, compose, script_names
from ..settings.conf import conf
from .clock import Clock

try:
    from fakeredis import FakeRedisConnection, FakeServer
    from fakeredis._commands import Signature
    from fakeredis._core import Database
    from fakeredis._helpers import SimpleError
    from fakeredis._socket import FakeSocket
    from fakeredis._socket._resp import extract_command
    from fakeredis.commands_mixins.scripting_mixin import _convert_redis_arg
    from lupa import lua51
except ImportError as error:
    raise ImportError(
        f"django_delayq.testing needs fakeredis with Lua, which cannot be imported ({error}): "
        "pip install 'django-delayq[testing]'"
    ) from error

DOWN: Final = "redis_down() of django_delayq.testing simulates an outage"

# -- broker ------------------------------------------------------------------------------------------------------------

#: outcomes after which the requested job waits
_WAITING: Final = (ScheduleOutcome.CREATED, ScheduleOutcome.MERGED, ScheduleOutcome.REPLACED)


class MemoryQueue(Queue):
    """Queue that reports new jobs to its broker."""

    deployment: MemoryBroker

    def schedule(self, new: NewJob, **options: Any) -> ScheduleOutcome:
        """See :meth:`Queue.schedule`."""
        outcome = super().schedule(*self._timed([new]), **options)
        self._report({new.id: outcome})
        return outcome

    def schedule_many(self, news: Iterable[NewJob], **options: Any) -> list[ScheduleOutcome]:
        """See :meth:`Queue.schedule_many`."""
        jobs = list(self._timed(news))
        outcomes = super().schedule_many(jobs, **options)
        self._report(dict(zip((new.id for new in jobs), outcomes, strict=True)))
        return outcomes

    def count_many(self, news: Iterable[NewJob], **options: Any) -> dict[str, int]:
        """See :meth:`Queue.count_many`."""
        return dict(Counter(self.schedule_many(news, **options)))

    def _timed(self, news: Iterable[NewJob]) -> Iterator[NewJob]:
        for new in news:
            if new.due_ms is not None:
                self.deployment.clock.catch_up()
            yield new

    def _report(self, outcomes: dict[str, ScheduleOutcome]) -> None:
        if self.deployment.on_scheduled is not None:
            self.deployment.on_scheduled(self, [ident for ident, outcome in outcomes.items() if outcome in _WAITING])


class MemoryBroker(DjangoBroker):
    """Broker with a server of its own in this process, and a clock that moves only on request.

    Attributes:
        clock: the clock of the server.
        server: the server.
        on_scheduled: called with the queue and the ids of jobs that were just scheduled; None = not called.
    """

    #: a test uses room at once, and a limit that it sets
    full_seconds = own_limits_seconds = 1e-9

    def __init__(self, clock: Clock | None = None, *, prefix: str = "delayq", lease_ms: int = 15_000) -> None:
        self.clock = clock or Clock()
        self.server = MemoryServer(self.clock)
        super().__init__(self.server.connection(), prefix=prefix, lease_ms=lease_ms)
        self.scripts = _Scripts(self.connection)
        self.on_scheduled: Callable[[Queue, list[str]], None] | None = None
        self._settings = conf()
        self.clock.on_set_back = self._forget_time

    def make_queue(self, name: str, layout: Layout) -> MemoryQueue:
        """See :meth:`Broker.make_queue`."""
        return MemoryQueue(self.registry, name, layout, self.tally)

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """See :meth:`DjangoBroker.queue`. A test may override the settings at any time."""
        former, settings = self._settings, conf()
        if former is not settings:
            self._settings = settings
            self._limited.clear()
            for gone in former.queues.keys() - settings.queues.keys():
                if self.existing(gone) is not None:
                    self.limit(gone, **layouts.NO_LIMITS)
        return super().queue(name, shards=shards, kind=kind)

    @contextmanager
    def reachable(self, reachable: bool = True) -> Iterator[None]:
        """Return a block in which the server can, or cannot, be reached."""
        before, self.server.down = self.server.down, not reachable
        try:
            yield
        finally:
            self.server.down = before

    def _forget_time(self) -> None:
        """Let the shards accept an earlier time. After a small step back their time would stand still instead."""
        with self.reachable():
            for queue in self.queues():
                for number in queue.numbers:
                    self.client.hdel(queue.shard(number).names["meta"], "clock")


class _Scripts(Scripts):
    """Scripts of a clock that stands still: the limiter's answers keep their order all the same, by their age."""

    _answered_us = 0.0

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any, confirm: bool = False) -> Any:
        """See :meth:`Scripts.call`."""
        reply = super().call(name, keys, *args, confirm=confirm)
        if name != "limit":
            return reply
        answer = frames.unpack_fields(reply)
        self._answered_us = answer["now"] = max(answer["now"], self._answered_us + 0.25)  # the least that a float holds
        return frames.pack(answer)


# -- server ------------------------------------------------------------------------------------------------------------

_INFO: Final = (
    b"# Server\r\nredis_version:7.0.0\r\nredis_mode:in-memory\r\nrun_id:0\r\n"
    b"# Memory\r\nused_memory:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
)
_INFO_SIGNATURE: Final = Signature("info", "info", (), (bytes,))  # type: ignore[arg-type]


class MemoryServer(FakeServer):
    """Server of one in-memory broker.

    Attributes:
        down: True while a test simulates an outage.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(version=(7, 0))
        self.clock = clock
        self.down = False
        self.dbs = defaultdict(lambda: _Database(self))
        # Without its script a server makes the sender repeat chunks of jobs, which may then arrive in another order.
        self.script_cache = dict(_queue_scripts())

    def connection(self) -> Connection:
        """Return the core's connection to the server. Its calls are not retried."""
        options = {"connection_class": _Connection, "server": self, "retry": Retry(NoBackoff(), 0)}
        options |= {"protocol": 2, "socket_timeout": None}
        return Connection(RedisConfig(host="in-memory"), options, PoolLimits(), {})


@cache
def _queue_scripts() -> dict[bytes, bytes]:
    sources = [compose(name).encode() for name in script_names()]
    return {_sha1hex(source): source for source in sources}


class _Database(Database):
    """Database whose keys expire on the server's clock."""

    def __init__(self, server: MemoryServer) -> None:
        self._clock = server.clock
        super().__init__(server.lock)

    @property
    def time(self) -> float:
        return self._clock.us / 1_000_000

    @time.setter
    def time(self, _: float) -> None:
        """Ignore the machine's time, which fakeredis sets before each command."""


class _Socket(FakeSocket):
    _server: MemoryServer

    def settimeout(self, seconds: float | None) -> None:
        """Ignore the time limit; replies come at once."""

    def gettimeout(self) -> float | None:
        return None

    def sendall(self, data: Any) -> None:
        if self._server.down:
            raise redis.ConnectionError(DOWN)
        super().sendall(data)

    def _name_to_func(self, name: str) -> tuple[Any, Any]:
        return (self.info, _INFO_SIGNATURE) if name == "info" else super()._name_to_func(name)

    # -- commands

    def info(self, *sections: bytes) -> bytes:
        return _INFO

    def time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self._server.clock.us, 1_000_000)]

    def eval(self, script: bytes, numkeys: int, *words: bytes) -> Any:
        return self.evalsha(self.script_load(script), numkeys, *words)

    def evalsha(self, sha: bytes, numkeys: int, *words: bytes) -> Any:
        script = self._server.script_cache.get(sha)
        if script is None:
            raise SimpleError("NOSCRIPT No matching script. Please use EVAL.")
        return _interpreter.run(script, list(words[:numkeys]), list(words[numkeys:]), self)

    def hrandfield(self, key: Any, *words: bytes) -> Any:
        fields = super().hrandfield(key, *words)
        return [] if fields is None and words else fields  # as Redis for a missing hash

    # ---

    def call(self, command: bytes, words: list[bytes]) -> Any:
        """Return the reply to a command of a script."""
        name, words = extract_command([command, *words])
        function, signature = self._name_to_func(name)
        return self._run_command(function, signature, words, True)


class _Connection(FakeRedisConnection):
    def _connect(self) -> _Socket:
        assert self._server is not None  # noqa: S101 (given with the options of the connection)
        return _Socket(self._server, client_class=self._client_class, db=self.db, client_info=self._client_info)


# -- Lua ---------------------------------------------------------------------------------------------------------------

_LIBRARIES: Final = """
function(call, sha1hex, pack, unpack, pack_messages, unpack_messages)
  redis = { call = call, sha1hex = sha1hex }
  function redis.pcall(...)
    local ok, reply = pcall(call, ...)
    return ok and reply or { err = tostring(reply) }
  end
  function redis.status_reply(text) return { ok = text } end
  function redis.error_reply(text) return { err = text } end
  struct = { pack = pack, unpack = unpack }
  cmsgpack = { pack = pack_messages, unpack = unpack_messages }
end
"""
_SET_ARGUMENTS: Final = "function(keys, argv) KEYS, ARGV = keys, argv end"


class Interpreter:
    """Lua 5.1 with the functions of Redis, and its libraries ``struct`` and ``cmsgpack``.

    The interpreter of fakeredis compiles a script anew for each call, and lacks both libraries. All servers of the
    process share this one, so that a script is compiled once.
    """

    _socket: _Socket

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._lua.eval(_LIBRARIES)(self._on_call, _sha1hex, pack, unpack, pack_messages, self._unpack_messages)
        self._set_arguments = self._lua.eval(_SET_ARGUMENTS)
        self._compiled: dict[bytes, Callable[[], Any]] = {}
        self._lock = threading.Lock()

    def run(self, source: bytes, keys: list[bytes], argv: list[bytes], socket: _Socket) -> Any:
        """Return the reply of a script in the form in which fakeredis stores replies.

        Args:
            socket: runs its commands.

        Raises:
            SimpleError: the script, or a command in it, failed.
        """
        with self._lock:
            self._socket = socket
            try:
                script = self._compiled.get(source)
                if script is None:
                    # Redis reads the flags in the first line, Lua does not.
                    script = self._compiled[source] = self._lua.compile(re.sub(rb"^#!", b"--", source))
                self._set_arguments(self._lua.table_from(keys), self._lua.table_from(argv))
                return socket._convert_lua_result(script(), nested=False)
            except lua51.LuaError as error:
                raise SimpleError(f"ERR Error running script: {error}") from error

    def _on_call(self, command: bytes, *arguments: bytes | float) -> Any:
        reply = self._socket.call(command, [_convert_redis_arg(argument) for argument in arguments])
        return self._socket._convert_redis_result(self._lua, reply)

    def _unpack_messages(self, data: bytes) -> tuple[Any, ...]:
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=0)
        unpacker.feed(data)
        values = []
        try:
            while unpacker.tell() < len(data):
                values.append(unpacker.unpack())
        except msgpack.OutOfData as error:
            raise SimpleError("ERR Missing bytes in input.") from error
        tables = self._lua.table_from(values, recursive=True)
        return tuple(tables[place] for place in range(1, len(values) + 1))


def _sha1hex(data: bytes) -> bytes:
    return hashlib.sha1(data).hexdigest().encode()  # noqa: S324 (Redis's own function)


@cache
def _layout_of(text: bytes) -> tuple[struct.Struct, bool]:
    """Return the numbers of a layout, and True if a string follows them, whose length is the last number."""
    codes = text.decode().replace("I2", "H").replace("I4", "I")
    return struct.Struct(codes.removesuffix("c0")), codes.endswith("c0")


def pack(text: bytes, *values: Any) -> bytes:
    """Return values in a layout of the Lua library ``struct``, as far as the queue's scripts use it."""
    layout, has_string = _layout_of(text)
    numbers, rest = (values[:-1], values[-1]) if has_string else (values, b"")
    # As Lua, which takes the text of a number for the number.
    codes = zip(layout.format[1:], map(float, numbers), strict=True)
    return layout.pack(*(number if code == "d" else int(number) for code, number in codes)) + bytes(rest)


def unpack(text: bytes, data: bytes, position: float = 1) -> tuple[Any, ...]:
    """Return the values at a position (counted from 1), and the position behind them."""
    layout, has_string = _layout_of(text)
    start = int(position) - 1
    end = start + layout.size
    values: tuple[Any, ...] = layout.unpack_from(data.ljust(end, b"\0"), start)
    if has_string:
        end += values[-1]
        values = (*values[:-1], data[end - values[-1] : end])
    if end > len(data):
        raise SimpleError("ERR data string too short")
    return (*values, end + 1)


def pack_messages(*values: Any) -> bytes:
    """Return values one after another as Redis's library ``cmsgpack`` packs them, but for the length of fractions."""
    packed = [msgpack.packb(_plain(value), unicode_errors="surrogateescape") for value in values]
    return b"".join(map(bytes, packed))


def _plain(value: Any) -> Any:
    """Return a Lua value as one of Python. The library knows no other type of bytes than strings."""
    if lua51.lua_type(value) != "table":
        return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
    entries = {_plain(key): _plain(entry) for key, entry in value.items()}
    places = range(1, len(entries) + 1)
    return [entries[place] for place in places] if entries.keys() == set(places) else entries


_interpreter: Final = Interpreter()
