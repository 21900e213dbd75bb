"""Redis in memory for the queue of a test: fakeredis with an interpreter for the queue's scripts and a clock that
stands still.

The scripts and everything above them are the real ones. Some names that fakeredis does not publish are used here and
in :mod:`.interpreter`: the socket with its methods ``_name_to_func`` and ``_run_command``, the database's ``time``, and
the classes of simple replies.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..core.redis.connection import Connection, RedisConfig
from ..core.redis.pool import PoolLimits
from ..core.redis.scripts import compose, script_names
from .agenda import Agenda
from .times import Clock

try:
    from fakeredis import FakeRedisConnection, FakeServer
    from fakeredis._commands import Signature
    from fakeredis._core import CommandItem, Database
    from fakeredis._helpers import SimpleError
    from fakeredis._socket import FakeSocket
    from fakeredis._socket._resp import extract_command

    from .interpreter import Interpreter
except ImportError as error:
    raise ImportError(
        f"django_delayq.testing needs fakeredis with Lua, which cannot be imported ({error}): "
        "pip install 'django-delayq[testing]'"
    ) from error

DOWN: Final = "redis_down() of django_delayq.testing simulates an outage"
_INFO: Final = (
    b"# Server\r\nredis_version:7.0.0\r\nredis_mode:in-memory\r\nrun_id:0\r\n"
    b"# Memory\r\nused_memory:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
)
_interpreter: Final = Interpreter()


class MemoryServer(FakeServer):
    """Server of one in-memory broker.

    Attributes:
        down: True while a test simulates an outage.
        agenda: waiting jobs by due time.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(version=(7, 0))
        self.clock = clock
        self.agenda = Agenda(clock)
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
    return {hashlib.sha1(source).hexdigest().encode(): source for source in sources}  # noqa: S324 (Redis's own id)


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
        return _interpreter.run(script, list(words[:numkeys]), list(words[numkeys:]), self._call)

    def zadd(self, key: CommandItem, *words: bytes) -> Any:
        added = super().zadd(key, *words)
        self._server.agenda.note_due(key.key, words)
        return added

    def hset(self, key: CommandItem, *words: bytes) -> Any:
        added = super().hset(key, *words)
        self._server.agenda.note_gated(key.key, words)
        return added

    def hrandfield(self, key: CommandItem, *words: bytes) -> Any:
        fields = super().hrandfield(key, *words)
        return [] if fields is None and words else fields  # as Redis for a missing hash

    # ---

    def _call(self, command: bytes, words: list[bytes]) -> Any:
        name, words = extract_command([command, *words])
        function, signature = self._name_to_func(name)
        return self._run_command(function, signature, words, True)


class _Connection(FakeRedisConnection):
    def _connect(self) -> _Socket:
        assert self._server is not None  # noqa: S101 (given with the options of the connection)
        return _Socket(self._server, client_class=self._client_class, db=self.db, client_info=self._client_info)


_INFO_SIGNATURE: Final = Signature("info", "info", (), (bytes,))  # type: ignore[arg-type]
