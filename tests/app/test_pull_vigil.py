"""Waiting for jobs in a coroutine (``django_delayq.pull.search.Search.run_async``), beside threads that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_delayq import Queue, connections
from django_delayq.core.broker import Broker
from django_delayq.pull import HeldJob
from django_delayq.pull.coordinator import coordinator_of
from django_delayq.pull.search import Holder, Search
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox

PATIENCE = 20.0


@pytest.fixture
def box(redis_factory: Callable[..., RedisBox], settings: Any) -> Iterator[RedisBox]:
    """The Redis of this test alone, so that it may stand still."""
    before, box = settings.DELAYQ, redis_factory()
    settings.DELAYQ = {**before, "REDIS": box.url}
    connections.close_broker()
    yield box
    settings.DELAYQ = before
    connections.close_broker()


@pytest.fixture(autouse=True)
def _feed(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    connections.broker().queue("feed")


async def kept(*, limit: int = 1, wait: float = PATIENCE) -> list[HeldJob]:
    """Return the jobs that an async wait reserves."""
    return await Search(coordinator_of(), ("feed",), limit, Holder("w", 60_000)).run_async(time.monotonic() + wait)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def asleep() -> int:
    return sum(waiter.sleeping for waiter in list(coordinator_of()._waiters))


def test_coroutines_and_threads_share_what_comes() -> None:
    async def scenario(team: ThreadPoolExecutor) -> list[list[HeldJob]]:
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(team, lambda: Queue("feed").reserve(wait=PATIENCE)) for _ in range(5)]
        vigils = [asyncio.ensure_future(kept()) for _ in range(5)]
        await until(lambda: asleep() == 10)
        await loop.run_in_executor(team, lambda: [Queue("feed").put(b"", id=number) for number in range(10)])
        return list(await asyncio.gather(*threads, *vigils))

    with ThreadPoolExecutor(6) as team:
        found = asyncio.run(scenario(team))
    assert sorted(int(job.id) for jobs in found for job in jobs) == list(range(10))
    assert all(job.ack() for jobs in found for job in jobs)


def test_a_vigil_that_is_over_brings_nothing() -> None:
    began = time.monotonic()
    assert asyncio.run(kept(wait=0.3)) == []
    assert 0.29 < time.monotonic() - began < PATIENCE
    assert coordinator_of()._waiters == []


def test_a_vigil_that_is_cancelled_in_its_sleep_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        vigil = asyncio.ensure_future(kept())
        await until(lambda: asleep() == 1)
        vigil.cancel()
        with pytest.raises(asyncio.CancelledError):
            await vigil

    asyncio.run(scenario())
    assert coordinator_of()._waiters == []


def test_what_a_look_brings_after_its_vigil_was_cancelled_goes_back(box: RedisBox) -> None:
    feed = Queue("feed")
    feed.put(b"", id="a")
    assert all(job.release() for job in feed.reserve())  # loads the scripts

    async def scenario() -> None:
        # A look at the queues would stand still before it.
        coordinator_of()._read_at["feed"] = time.monotonic() + PATIENCE
        box.pause()
        sent_at = time.monotonic()
        vigil = asyncio.ensure_future(kept())
        await until(lambda: any(place.sent_at > sent_at for place in coordinator_of()._places.values()))
        vigil.cancel()
        with pytest.raises(asyncio.CancelledError):
            await vigil
        box.resume()

    asyncio.run(scenario())
    counts = connections.broker().inspector.counts
    wait_until(lambda: counts("feed").counters.get("released") == 2, PATIENCE, "the job to be given back")
    (job,) = feed.reserve()
    assert (job.attempt, job.noe) == (1, 2)
    assert job.ack()


def test_the_callers_of_a_broker_share_one_listener_however_many_brokers_there_are(delayq: Broker) -> None:
    first = coordinator_of(delayq)
    others = [connections.broker(float(seconds)) for seconds in range(2, 12)]
    assert len({id(coordinator_of(one)) for one in [delayq, *others]}) == 11
    assert coordinator_of(delayq) is first
