"""Concurrent calls on an event loop: ``aschedule()``, ``schedule()`` in threads, and bare commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

import bare
import django
from asgiref.sync import sync_to_async
from redis.asyncio import BlockingConnectionPool, Redis, UnixDomainSocketConnection

#: connections of redis-py's client, as many as the threads of a process may have
CONNECTIONS = 100

Call = Callable[[int], Awaitable[object]]


async def timed(call: Call, jobs: int) -> float:
    """Return the seconds of ``jobs`` calls at the same time."""
    started = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(jobs)))
    return time.perf_counter() - started


def bare_call(client: Redis) -> Call:
    """Return a call that stores a job by a bare script."""
    keys, body = ("bare:{0}:due", "bare:{0}:body"), b"b" * bare.BODY_BYTES

    async def call(number: int) -> object:
        return await client.eval(bare.INSERT, 2, *keys, f"{number:0{bare.ID_BYTES}}", 1e15, body)

    return call


async def main(jobs: int, rounds: int) -> None:
    """Run the contenders in interleaved rounds, after one that is not counted."""
    from benchmarks.site.tasks import blank
    from django_delayq import aschedule, schedule

    pool = BlockingConnectionPool(
        connection_class=UnixDomainSocketConnection,
        path=os.environ["BENCH_SOCKET"],
        max_connections=CONNECTIONS,
        timeout=None,
    )
    in_thread = sync_to_async(schedule, thread_sensitive=False)
    async with Redis.from_pool(pool) as client:
        calls: dict[str, Call] = {
            "ours": lambda number: aschedule(blank, str(number)),
            "threads": lambda number: in_thread(blank, str(number)),
            "bare asyncio": bare_call(client),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(rounds + 1):
            for name, call in calls.items():
                taken = await timed(call, jobs)
                if turn:
                    seconds[name].append(taken)
    print(json.dumps(seconds))


if __name__ == "__main__":
    django.setup()
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
