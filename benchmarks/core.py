"""Direct use of the queue without Django, shared by several benchmarks."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import redis

import django_delayq.core
from benchmarks.processes import Worker
from benchmarks.server import Server
from django_delayq.core.broker import Broker
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.core.redis.scripts import compose

PREFIX = "delayq"
READY_SECONDS = 30.0


@contextlib.contextmanager
def broker_on(server: Server) -> Iterator[Broker]:
    """Yield a broker on the private server."""
    connection = connect(RedisConfig.parse(server.url))
    try:
        yield Broker(connection)
    finally:
        connection.close()


def counts_of(client: redis.Redis) -> int:
    """Return the number of waiting and running jobs in all shards, read from the keys themselves."""
    return sum(
        int(client.zcard(key))
        for key in client.scan_iter(match=f"{PREFIX}:*", count=1000, _type="zset")
        if (name := key.rsplit(b":", 1)[-1]) == b"lane" or name.startswith((b"due", b"lease", b"quarantine"))
    )


def wait_for_worker(client: redis.Redis, worker: Worker) -> None:
    """Wait until a worker is registered; raise with its output if that does not happen."""
    deadline = time.monotonic() + READY_SECONDS
    server = Server("", client.connection_pool.connection_kwargs["path"], 0)
    with broker_on(server) as broker:
        while not broker.workers():
            worker.require_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no worker announced itself in {READY_SECONDS:.0f} s\n{worker.output()}")
            time.sleep(0.05)


def script_names() -> dict[str, str]:
    """Return verbs by the digest of their script in Redis, with and without the flag line."""
    folder = Path(django_delayq.core.__path__[0]) / "lua"
    return {
        hashlib.sha1(compose(path.stem, flags=flags, test_clock=False).encode()).hexdigest(): path.stem
        for path in folder.glob("*.lua")
        for flags in (True, False)
    }
