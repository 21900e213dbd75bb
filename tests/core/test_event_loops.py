"""New jobs from an event loop: without a thread if nothing is in the way; with the outcomes, errors, retries and
deadline of the blocking verb in any case.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from django_delayq.core import (
    Broker,
    Connection,
    IdTaken,
    NewJob,
    QueueFull,
    QueueUnavailable,
    RedisConfig,
    connect,
    new_id,
)
from tests.support.core_values import ScheduleOutcome

from ..support.processes import wait_until
from ..support.redis_box import RedisBox
from ..support.sentinel_box import SentinelBox
from ..support.tcp_proxy import TcpProxy
from .epochs_stage import reshard
from .stage import Stage

pytestmark = pytest.mark.server

Factory = Callable[..., RedisBox]
Proxies = Callable[[Any], TcpProxy]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; fail if it began a thread."""
    before = threading.active_count()

    async def counted() -> Any:
        result = await main
        assert threading.active_count() <= before, "no thread was needed"
        return result

    return asyncio.run(counted())


async def put(broker: Broker, ident: str | None = None, **options: Any) -> ScheduleOutcome:
    """Schedule a job of the queue "q" from an event loop."""
    new = NewJob(ident or new_id(), "work", fresh=ident is None, **options)
    return await broker.queue("q").schedule_on_loop(new)


@pytest.fixture
def warm(broker: Broker) -> Broker:
    """Return a broker that has opened the queue "q" and loaded the scripts of these tests."""
    queue = broker.queue("q")
    queue.schedule(NewJob("warm", "work", fresh=True))
    queue.schedule(NewJob("up", "work"))
    for ident in ("warm", "up"):
        broker.inspector.get("q", ident)
        queue.run_now(ident)
        queue.cancel(ident)
    return broker


def test_a_coroutine_gets_the_outcomes_and_errors_of_the_blocking_verbs(warm: Broker) -> None:
    async def main() -> list[Any]:
        found: list[Any] = [await put(warm), await put(warm, "a", delay_ms=60_000), await put(warm, "a")]
        found.append(await put(warm, "a", on_conflict="ignore"))
        return found

    async def refused() -> None:
        with pytest.raises(IdTaken, match="another task"):
            await warm.queue("q").schedule_on_loop(NewJob("a", "other"))
        with pytest.raises(IdTaken, match="already lives"):
            await put(warm, "a", on_conflict="error")

    assert run(main()) == ["created", "created", "replaced", "ignored"]
    asyncio.run(refused())
    assert warm.inspector.counts("q").ready == 2


def test_a_call_that_finds_a_job_learns_its_key(warm: Broker) -> None:
    async def main() -> list[bytes]:
        await put(warm, "known")
        keys = []
        for on_loop in (True, False):
            new = NewJob("known", "work", on_conflict="ignore")
            if on_loop:
                await warm.queue("q").schedule_on_loop(new)
            else:
                warm.queue("q").schedule(new)
            keys.append(new.joined)
        return keys

    first, second = run(main())
    assert first == second and len(first) == 16


def test_a_thousand_calls_at_the_same_time_need_no_thread_and_share_the_connections_of_the_pool(
    redis_url: str, redis_client: redis.Redis, prefix: str
) -> None:
    connection = connect(RedisConfig.parse({"URL": redis_url, "MAX_CONNECTIONS": 5}))
    broker = Broker(connection, prefix=prefix)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))
    connection.close()
    last = max(int(one["id"]) for one in redis_client.client_list())
    most = 0

    def opened() -> int:
        return sum(int(one["id"]) > last for one in redis_client.client_list())

    async def main() -> list[ScheduleOutcome]:
        nonlocal most
        calls = asyncio.gather(*(put(broker) for _ in range(1000)))
        while not calls.done():
            await asyncio.sleep(0.01)
            most = max(most, opened())
        return await calls

    try:
        assert run(main()) == ["created"] * 1000
        assert 1 <= most <= 5
        assert broker.inspector.counts("q").ready == 1001
        wait_until(lambda: opened() <= 1)  # the loop's connections end with it
    finally:
        connection.close()


def test_a_refused_call_counts_on_the_loop_and_in_the_thread_that_makes_it_again(warm: Broker) -> None:
    queue = warm.queue("q", shards=1)
    limit = warm.inspector.counts("q").ready + 2
    warm.limit("q", max_length=limit)

    async def main() -> list[Any]:
        outcomes: list[Any] = [await put(warm), await put(warm, "named")]
        for ident in (None, "other"):
            with pytest.raises(QueueFull):
                await put(warm, ident)
            queue.full_until = 0.0  # read the lengths again
        return outcomes

    assert asyncio.run(main()) == ["created"] * 2
    assert warm.inspector.counts("q").counters["refused"] == 4
    warm.limit("q", max_length=limit + 1)
    assert asyncio.run(put(warm)) == "created"
    assert warm.inspector.counts("q").counters["refused"] == 4


def test_a_script_that_the_server_has_lost_is_loaded_again(warm: Broker, redis_client: redis.Redis) -> None:
    async def main() -> list[Any]:
        first = await put(warm)
        redis_client.script_flush()
        return [first, await put(warm), await put(warm)]

    assert run(main()) == ["created"] * 3


@pytest.mark.one_server("the proxy stands before one")
def test_a_lost_connection_is_replaced_and_the_job_stored_once(
    redis_factory: Factory, proxy_factory: Proxies, prefix: str
) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection, prefix=prefix)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))

    async def main() -> list[Any]:
        found = [await put(broker)]
        proxy.reset_connections()
        found.append(await put(broker))
        return found

    try:
        assert asyncio.run(main()) == ["created", "created"]
        assert broker.inspector.counts("q").ready == 3
    finally:
        connection.close()


@pytest.mark.one_server("the server is stopped")
def test_an_unreachable_server_fails_each_call_within_its_deadline(redis_factory: Factory, prefix: str) -> None:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url)).hurried(0.5)
    broker = Broker(connection, prefix=prefix)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))
    box.pause()

    async def main() -> list[Any]:
        return await asyncio.gather(*(put(broker) for _ in range(300)), return_exceptions=True)

    try:
        began = time.monotonic()
        errors = asyncio.run(main())
        assert time.monotonic() - began < 5
        assert {type(error) for error in errors} == {QueueUnavailable}
    finally:
        box.resume()
        connection.close()


def test_a_cancelled_coroutine_leaves_no_half_read_reply(warm: Broker) -> None:
    async def main() -> list[Any]:
        calls = [asyncio.ensure_future(put(warm, f"j{n}", delay_ms=60_000)) for n in range(50)]
        await asyncio.sleep(0.001)
        for call in calls[::2]:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        return [*done[1::2], *[await put(warm, f"j{n}", on_conflict="ignore") for n in range(1, 50, 2)]]

    assert run(main()) == ["created"] * 25 + ["ignored"] * 25
    assert all(warm.inspector.get("q", f"j{n}") for n in range(1, 50, 2))


def test_a_job_finds_its_shard_while_the_number_of_shards_changes(stage: Stage) -> None:
    stage.put("old", at=60_000)
    broker = stage.broker
    stale = Broker(broker.connection, prefix=broker.prefix, lease_ms=broker.lease_ms, test_clock=True)
    stale.queue(stage.queue.name)
    reshard(stage, 3)

    async def main() -> list[Any]:
        news = [NewJob(ident, "work", due_ms=2_000_000_000_000) for ident in ("old", "new", "other", "third")]
        return [await stale.queue(stage.queue.name).schedule_on_loop(new) for new in news]

    assert asyncio.run(main()) == ["replaced", "created", "created", "created"]


def test_observers_see_the_calls_of_coroutines(connection: Connection, prefix: str) -> None:
    seen: list[tuple[str, bool]] = []
    broker = Broker(connection, prefix=prefix, observe=lambda verb, _, failed: seen.append((verb, failed)))
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))
    seen.clear()
    run(put(broker))
    assert seen == [("schedule", False)]


def test_old_connections_are_replaced(redis_url: str, redis_client: redis.Redis, prefix: str) -> None:
    connection = connect(RedisConfig.parse({"URL": redis_url, "MAX_CONNECTION_AGE": 1}))
    broker = Broker(connection, prefix=prefix)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))
    connection.close()

    def lines() -> set[str]:
        return {line["id"] for line in redis_client.client_list() if line["cmd"].startswith("eval")}

    async def main() -> tuple[set[str], set[str]]:
        await put(broker)
        before = lines()
        await asyncio.sleep(1.1)
        await put(broker)
        await asyncio.sleep(0.05)
        return before, lines()

    before, after = asyncio.run(main())
    assert before and len(after - before) == 1 and not after & before


def test_closing_the_connection_closes_those_of_the_loops(warm: Broker, redis_client: redis.Redis) -> None:
    async def main() -> ScheduleOutcome:
        await put(warm)
        warm.connection.close()
        await asyncio.sleep(0.05)
        assert not [line for line in redis_client.client_list() if line["cmd"].startswith("eval")]
        return await put(warm)

    assert run(main()) == "created"


def test_closing_the_connection_closes_those_of_a_loop_that_rests_when_it_runs_again(
    warm: Broker, redis_client: redis.Redis
) -> None:
    def connections() -> list[Any]:
        return [line for line in redis_client.client_list() if line["cmd"].startswith("eval")]

    loop, ended = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        for one in (loop, ended):
            assert one.run_until_complete(put(warm)) == "created"
        ended.run_until_complete(ended.shutdown_asyncgens())
        ended.close()
        warm.connection.close()
        loop.run_until_complete(asyncio.sleep(0.05))
        assert not connections()
        assert loop.run_until_complete(put(warm)) == "created"
        assert len(connections()) == 1
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_calls_that_have_just_begun_outlive_the_end_of_their_connection(warm: Broker) -> None:
    async def main() -> list[ScheduleOutcome]:
        calls = [asyncio.ensure_future(put(warm)) for _ in range(10)]
        await asyncio.sleep(0)
        warm.connection.close()
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == ["created"] * 10


def test_over_sentinel_calls_go_to_the_new_master_after_a_failover(sentinel_box: SentinelBox) -> None:
    connection = connect(RedisConfig.parse({"SENTINELS": sentinel_box.addresses, "MASTER": sentinel_box.name}))
    broker = Broker(connection)
    broker.queue("q").schedule(NewJob(new_id(), "work", fresh=True))

    async def main() -> list[Any]:
        found: list[Any] = [await put(broker)]
        await asyncio.to_thread(sentinel_box.fail_over)
        until = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < until:
            try:
                found.append(await put(broker, "after", on_conflict="ignore"))
            except QueueUnavailable:
                await asyncio.sleep(0.1)
        return found

    try:
        found = asyncio.run(main())
        assert found[0] == "created" and found[1] in ("created", "ignored")
        assert connection.client.info("server")["tcp_port"] != sentinel_box.first.address[1]
    finally:
        connection.close()


def test_on_a_cluster_each_call_goes_to_the_node_of_its_shard(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=6)
    for number in range(12):
        queue.schedule(NewJob(f"warm{number}", "work"))
    queue.schedule(NewJob(new_id(), "work", fresh=True))

    async def main() -> list[Any]:
        many = await asyncio.gather(*(put(cluster_broker) for _ in range(200)))
        named = [await put(cluster_broker, f"warm{number}", on_conflict="ignore") for number in range(12)]
        return [set(many), set(named)]

    assert run(main()) == [{"created"}, {"ignored"}]
    assert cluster_broker.inspector.counts("q").ready == 213
