"""Redis restarts, forgets its scripts, cannot be reached: no job is lost and no worker needs a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq.core.errors import QueueUnavailable
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .conftest import MakeMill
from .world import Mill, until

RedisFactory = Callable[..., RedisBox]


class Producer:
    """Schedules jobs as fast as it may. What Redis refused or may not have heard is scheduled again, with its id."""

    def __init__(self, mill: Mill, pause: float = 0.004, *, again: bool = True) -> None:
        self.accepted: dict[str, float] = {}
        self.errors: list[Exception] = []
        self._mill = mill
        self._pause = pause
        self._again = again
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _produce(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            self._put(f"job-{number}")

    def _put(self, ident: str) -> None:
        while not self._stop.is_set():
            try:
                self._mill.put("grind", id=ident, on_conflict="ignore")
            except QueueUnavailable as error:
                self.errors.append(error)
                if not self._again:
                    return
                self._stop.wait(0.02)
            else:
                self.accepted[ident] = time.time()
                return

    def wait_for(self, jobs: int) -> None:
        """Until so many more were accepted."""
        wanted = len(self.accepted) + jobs
        until(lambda: len(self.accepted) >= wanted, f"{wanted} accepted jobs")


def test_t12_redis_is_killed_under_load_and_nothing_is_lost(make_mill: MakeMill, redis_factory: RedisFactory) -> None:
    box = redis_factory(tcp=True, aof="always")
    mill = make_mill(box.url, lease=3.0)
    node = mill.start("--processes", 2, "--threads", 3)
    pids = node.children()
    with Producer(mill) as producer:
        for _ in range(4):
            producer.wait_for(60)
            box.restart()
        producer.wait_for(60)
    mill.wait_ended(producer.accepted)
    mill.wait_empty()
    assert node.children() == pids, "no worker was restarted"
    assert set(mill.starts_by_id()) >= set(producer.accepted)
    assert mill.counts().morgue == 0
    # A run whose acknowledgement fell into the outage is done again; there are at most six threads at each kill.
    extra = sum(mill.starts_by_id().values()) - len(mill.starts_by_id())
    assert extra <= 4 * 6 * 2, extra


def test_t12_scripts_that_are_flushed_all_the_time_disturb_nobody(make_mill: MakeMill, redis_box: RedisBox) -> None:
    mill = make_mill()
    node = mill.start("--threads", 3)
    stop = threading.Event()
    flushes = []

    def flush() -> None:
        client = redis_box.client(socket_timeout=10)
        while not stop.wait(0.002):
            client.script_flush()
            flushes.append(1)
        client.close()

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    try:
        with Producer(mill, 0.002) as producer:
            producer.wait_for(300)
        many = mill.put_many("grind", 1_000)
        mill.wait_ended([*producer.accepted, *many])
        mill.wait_empty()
        handle = mill.put("grind", delay_ms=3_600_000)
        assert mill.broker.queue("default").cancel(handle) == "cancelled"
    finally:
        stop.set()
        thread.join(10)
    assert len(flushes) > 50
    assert producer.errors == []
    assert mill.starts_by_id() == dict.fromkeys([*producer.accepted, *many], 1)
    assert "ERROR" not in node.said
    assert "no work with Redis" not in node.said


def test_t13_after_a_cut_of_the_line_all_loops_are_alive_and_it_was_logged_once(
    make_mill: MakeMill, redis_factory: RedisFactory, proxy_factory: Callable[..., TcpProxy]
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    mill = make_mill(box.url, lease=1.5)
    node = mill.start("--threads", 3, DELAYQ_TEST_URL=proxy.url)
    pids = node.children()
    ends = mill.put("wait_for", str(mill.gate("ends")), id="ends-while-the-line-is-cut")
    lasts = mill.put("touch_on", str(mill.gate("lasts")), id="lasts-longer")
    mill.wait_starts(ends)
    mill.wait_starts(lasts)
    proxy.refuse()
    until(lambda: "no work with Redis now" in node.said, "the first word of the outage")
    ghost = mill.put("grind", id="ghost")
    (reserved,) = mill.broker.queue("default").reserve(0, 1, worker="a holder that is never heard of again").jobs
    meanwhile = mill.put_many("grind", 20)
    mill.gate("ends").touch()
    mill.wait_ended([ends])
    threading.Event().wait(2.5)  # the length of the outage: longer than a lease, and every loop fails several times
    mill.broker.queue("default").touch([reserved])
    proxy.passing()
    back = time.monotonic()

    mill.wait_ended(meanwhile)  # the fetch loop
    announced = {worker["pid"]: worker["seen_ms"] for worker in mill.broker.workers()}
    until(lambda: [w for w in mill.broker.workers() if w["seen_ms"] > announced[w["pid"]]], "the heartbeat")
    until(lambda: "lease of worker a holder that is never" in node.said, "the dispatcher")
    assert time.monotonic() - back < 10, "all loops are back within ten seconds"
    mill.gate("lasts").touch()
    mill.wait_ended([ghost])
    mill.wait_empty()
    until(lambda: [c for c in box.client().client_list() if c["cmd"] == "blpop"], "the wake thread")
    put_at = time.time()
    assert mill.wait_starts(mill.put("grind", id="woken"))[0]["at"] - put_at < 1.0
    mill.wait_empty()
    assert [line["held"] for line in mill.lines("end", lasts)] == [True], "its lease was held over the outage"
    assert set(mill.starts_by_id().values()) == {1}
    assert node.children() == pids
    # Once, or once more if a connection slipped through while the line was being cut: not by each loop and each try.
    assert node.said.count("no work with Redis now") == node.said.count("Redis is back after") <= 2


def test_a_redis_that_stands_still_for_longer_than_a_lease_takes_no_job_from_its_holder(
    make_mill: MakeMill, redis_factory: RedisFactory
) -> None:
    box = redis_factory()
    mill = make_mill(box.url, lease=1.5)
    nodes = [mill.start("--threads", 2) for _ in range(2)]
    held = [mill.put("touch_on", str(mill.gate()), id=f"held-{number}") for number in range(3)]
    for ident in held:
        mill.wait_starts(ident)
    box.pause()
    threading.Event().wait(3.0)  # the length of the pause: two leases
    box.resume()
    # One lease later every deadline was renewed or forfeited.
    moment = mill.broker.now_ms() + 2_500
    until(lambda: mill.broker.now_ms() > moment, "the end of the hold")
    mill.gate().touch()
    mill.wait_ended(held)
    mill.wait_empty()
    assert mill.starts_by_id() == dict.fromkeys(held, 1)
    assert all(line["held"] for line in mill.lines("end"))
    assert all(node.process.poll() is None for node in nodes)


@pytest.mark.slow
def test_with_everysec_a_kill_loses_at_most_the_last_two_seconds(
    make_mill: MakeMill, redis_factory: RedisFactory
) -> None:
    """Measure the guarantee of ``appendfsync everysec``.

    Redis writes its log before it answers and only the fsync waits for up to a second, so the death of the process
    alone loses nothing that was written. Only while an fsync is under way is the write itself put off, for at most two
    seconds. (When the machine loses its power, all that was not synced is lost: again up to two seconds.)
    """
    losses: list[float] = []
    accepted = 0
    for _ in range(6):
        box = redis_factory(tcp=True, aof="everysec")
        mill = make_mill(box.url)
        with Producer(mill, 0.001, again=False) as producer:
            producer.wait_for(400)
            killed = time.time()
            box.kill()
        box.start()
        accepted += len(producer.accepted)
        for ident, at in producer.accepted.items():
            if at < killed and mill.view(ident) is None:
                losses.append(killed - at)
    print(f"{len(losses)} of {accepted} accepted jobs lost; the oldest was {max(losses, default=0):.3f} s old")
    assert all(age <= 2.0 for age in losses)


def test_a_monitor_sees_no_key_with_a_time_to_live(make_mill: MakeMill, redis_box: RedisBox) -> None:
    """A key that a job needs must not expire by itself, whatever the eviction policy is."""
    mill = make_mill()
    mill.start("--threads", 2)
    mill.put("stumble", options=b'{"max_attempts":1}', id="dead")
    mill.buried("dead")
    mill.put("grind", delay_ms=3_600_000)
    client: redis.Redis = redis_box.client()
    keys: list[Any] = [key for key in client.scan_iter(count=1000) if mill.prefix.encode() in key]
    assert keys
    assert {client.ttl(key) for key in keys} == {-1}
