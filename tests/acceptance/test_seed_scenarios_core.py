"""Known faults of the seed systems, one scenario each; the numbers are those of the consolidated list (T01 … T64).

Here are those that the core alone answers for; those that need a worker, Django or a network are in files beside.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode, decode_args
from django_delayq.core.errors import IdTaken, InvalidJob
from django_delayq.core.job import Job, NewJob, Payload, Undecodable, ack, fail, new_key, release
from django_delayq.core.operations import fsck
from django_delayq.core.redis.connection import Connection, RedisConfig, connect
from django_delayq.core.times import due_of
from django_delayq.worker.decision import raised
from django_delayq.worker.policy import Policy
from tests.core.stage import LEASE, T0, Stage
from tests.core.world import unchanged
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def stage(connection: Connection, prefix: str) -> Iterator[Stage]:
    """One queue at the moment T0; the invariants are asserted afterwards."""
    broker = Broker(connection, prefix=prefix, lease_ms=LEASE, test_clock=True)
    yield Stage(broker)
    fsck.assert_invariants(broker)


def script_us(broker: Broker, act: Callable[[], object]) -> float:
    """Mean time (µs) that the server spent in each script call of ``act``."""

    def spent() -> tuple[int, int]:
        stats = broker.client.info("commandstats")
        mine = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
        return sum(stat["usec"] for stat in mine), sum(stat["calls"] for stat in mine)

    usec, calls = spent()
    act()
    after_usec, after_calls = spent()
    return (after_usec - usec) / (after_calls - calls)


def test_t01_ten_thousand_jobs_due_in_the_same_millisecond(broker: Broker) -> None:
    queue = broker.queue("q")

    def put(n: int) -> None:
        queue.schedule_many(NewJob(f"j{number}", "work", due_ms=T0, delay_ms=None) for number in range(n))

    def drain() -> list[str]:
        taken: list[str] = []
        while jobs := queue.reserve(0, 250, worker="w").jobs:
            taken += [job.id for job in jobs]
            assert all(queue.settle([ack(job, 0, 0) for job in jobs]))
        return taken

    put(250)
    drain()  # loads the scripts
    few, many = [], []
    for _ in range(10):
        put(250)
        few.append(script_us(broker, drain))
    put(10_000)
    taken: list[str] = []
    many.append(script_us(broker, lambda: taken.extend(drain())))
    assert sorted(taken) == sorted(f"j{number}" for number in range(10_000))
    # Two in three calls of the small rounds find 250 jobs or settle them, nearly all of the large one do.
    assert many[0] < 4 * max(few)


def test_t02_ten_thousand_leases_expire_at_once(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(10_000))
    while stage.take(250, worker="dead"):
        pass
    stage.wait(LEASE)
    recovered: list[str] = []
    while found := stage.queue.expired(0):
        assert all(stage.settle(*(release(job, unclear=True, guard="expired") for job in found)))
        recovered += [job.id for job in found]
    assert len(recovered) == len(set(recovered)) == 10_000
    assert stage.broker.inspector.counts("q").ready == 10_000
    assert len(stage.take(250, worker="next")) == 250


def test_t06_an_id_scheduled_while_it_runs_runs_afterwards_exactly_once(stage: Stage) -> None:
    stage.put("x", args=b"first")
    job = stage.take_one()
    assert stage.put("x", args=b"second") == "gated"
    assert not stage.take(), "never beside the first run"
    stage.done(job)
    second = stage.take_one()
    assert (job.args, second.args) == (b"first", b"second")
    stage.done(second)
    assert not stage.take()
    assert stage.shard_is_empty()


def test_t07_when_the_first_run_fails_both_payloads_are_there_in_the_order_of_their_scores(stage: Stage) -> None:
    stage.add("x", b"second version", "2")
    job = stage.take_one()
    stage.add("x", b"third version", "3")
    stage.add("x", b"first version", "1")
    stage.failed(job, 3_600_000)
    again = stage.take_one()
    assert [payload.data for payload in again.payloads] == [b"first version", b"second version", b"third version"]


@pytest.mark.parametrize("merged", [True, False])
def test_t08_fifty_producers_schedule_one_id_a_thousand_times(broker: Broker, merged: bool) -> None:
    queue = broker.queue("q")
    start = threading.Barrier(50)

    def produce(number: int) -> list[str]:
        start.wait()
        outcomes = []
        for turn in range(20):
            data = b"%d/%d" % (number, turn)
            if merged:
                new = NewJob("x", "sync", on_conflict="merge", due_policy="keep", payload=Payload(data, "1", new_key()))
            else:
                new = NewJob("x", "work", args=data)
            outcomes.append(queue.schedule(new))
        return outcomes

    with ThreadPoolExecutor(50) as pool:
        outcomes = [outcome for outcomes in pool.map(produce, range(50)) for outcome in outcomes]
    assert outcomes.count("created") == 1
    assert outcomes.count("merged" if merged else "replaced") == 999
    assert broker.inspector.counts("q").ready == 1
    if not merged:
        (job,) = queue.reserve(0, 10, worker="w").jobs
        assert job.args.endswith(b"/19"), "the last one wins"
        return
    found: set[bytes] = set()
    while jobs := queue.reserve(0, 10, worker="w").jobs:
        found |= {payload.data for payload in jobs[0].payloads}
        queue.settle([ack(jobs[0], 0, 0)])
    assert found == {b"%d/%d" % (number, turn) for number in range(50) for turn in range(20)}


@pytest.mark.parametrize(
    "bytes_",
    [
        b"",
        b"\xff" * 5,
        b"\xff" * 100,
        b"\xe4\x01\x00" + b"k" * 30,
        b"\x24\xff\xff" + b"k" * 30,
        b"\x34\x01\x00" + b"k" * 16 + b"\xff\xff",
        b"\x2c\x01\x00" + b"k" * 16,
    ],
    ids=["empty", "short", "noise", "newer version", "unnamed task", "cut off", "merged without payloads"],
)
def test_t14_one_undecodable_body_among_a_thousand(stage: Stage, bytes_: bytes) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(1000))
    stage.broker.client.hset(stage.key("body"), "j500", bytes_)
    done = 0
    broken = []
    for _ in range(10):
        batch = stage.batch(250)
        broken += batch.broken
        good = [job for job in batch.jobs if job.args == b"" and not job.merged]
        done += sum(stage.done(*good))
        stage.settle(*(fail(job, 1, 2, delay_ms=10**9) for job in batch.jobs if job not in good))
    assert done == 999
    if bytes_[:1] == b"\x2c":  # readable after all: a merged job that lost its payloads, for its handler to refuse
        stage.queue.cancel("j500")
        return
    assert [item.job.id for item in broken] == ["j500"]
    view = stage.broker.inspector.get("q", "j500")
    assert view is not None
    assert (view.id, view.state, view.reason, view.error_class) == ("j500", "morgue", "undecodable", "Undecodable")
    assert view.error["message"]
    assert view.job.args == bytes_
    assert [view.id for view in stage.broker.inspector.page("q", "morgue").jobs] == ["j500"]
    assert stage.queue.discard("j500", key=view.job.key)
    marks = stage.queue.settled(0)  # noise may look like the key of a durable job, of whose end somebody wants to hear
    assert {mark.key for mark in marks} <= {view.job.key}
    stage.queue.settled(0, forget=marks)
    assert stage.shard_is_empty()


def test_t21_cancel_in_every_state(stage: Stage) -> None:
    stage.in_morgue("buried")
    stage.put("running")
    job = stage.take_one()
    stage.put("ready")
    stage.put("delayed", at=1000)
    with unchanged(stage.broker):
        assert stage.queue.cancel("buried") == ""
    assert stage.queue.cancel("delayed") == "cancelled"
    assert stage.queue.cancel("ready") == "cancelled"
    assert stage.queue.cancel("running") == "stopping"
    assert stage.picture() == {"reserved": [f"running by w until +{LEASE} stopping"], "morgue": ["buried buried"]}
    stage.failed(job)
    assert stage.picture() == {"morgue": ["buried buried"]}


def test_t22_an_ack_counts_once_and_only_for_who_holds_the_job(stage: Stage) -> None:
    stage.put("x")
    first = stage.take_one(worker="slow")
    stage.wait(LEASE)
    (found,) = stage.queue.expired(0)
    stage.settle(release(found, unclear=True, guard="expired"))
    second = stage.take_one(worker="next")
    with unchanged(stage.broker):
        assert stage.done(first) == [False]
    assert stage.done(second) == [True]
    assert stage.done(second) == [False]
    assert stage.shard_is_empty()


@pytest.mark.parametrize("reaper_first", [True, False])
def test_t23_a_release_and_the_reaper_race_and_exactly_one_wins(stage: Stage, reaper_first: bool) -> None:
    stage.put("x")
    job = stage.take_one()
    stage.wait(LEASE)
    (found,) = stage.queue.expired(0)
    by_holder = release(job, delay_ms=3_600_000)
    by_reaper = fail(found, 0, 0, delay_ms=0, outcome="crashed", guard="expired")
    rivals = (by_reaper, by_holder) if reaper_first else (by_holder, by_reaper)
    assert [stage.settle(rival)[0] for rival in rivals] == [True, False]
    due = LEASE if reaper_first else LEASE + 3_600_000
    assert stage.picture()["waiting"] == [f"x +{due}"]


def test_t23_the_same_from_two_threads_many_times(broker: Broker) -> None:
    quick = Broker(broker.connection, prefix=broker.prefix, lease_ms=1)
    queue = quick.queue("q")
    with ThreadPoolExecutor(2) as pool:
        for _ in range(100):
            queue.schedule(NewJob("x", "work"))
            (job,) = queue.reserve(0, 1, worker="w").jobs
            while not (found := queue.expired(0)):
                pass
            holder = pool.submit(queue.settle, [release(job, delay_ms=3_600_000)])
            reaper = pool.submit(queue.settle, [release(found[0], guard="expired")])
            assert sorted((*holder.result(), *reaper.result())) == [False, True]
            view = quick.inspector.get("q", "x")
            assert view is not None
            assert (view.due_ms > quick.now_ms() + 3_000_000) == holder.result()[0]


@pytest.mark.parametrize(
    ("at", "policy", "due"),
    [
        (500, "replace", 500),
        (1000, "replace", 1000),
        (2000, "replace", 2000),
        (500, "keep", 1000),
        (2000, "keep", 1000),
        (500, "earliest", 500),
        (2000, "earliest", 1000),
        (500, "latest", 1000),
        (2000, "latest", 2000),
    ],
)
def test_t24_an_id_scheduled_again_has_the_new_content_whatever_becomes_of_its_time(
    stage: Stage, at: int, policy: str, due: int
) -> None:
    stage.put("x", at=1000, args=b"old")
    assert stage.put("x", at=at, args=b"new", due_policy=policy) == "replaced"
    assert stage.picture() == {"waiting": [f"x +{due}"]}
    stage.wait(2000)
    assert stage.take_one().args == b"new"


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_t30_a_job_is_started_exactly_as_often_as_it_may_be(stage: Stage, max_attempts: int) -> None:
    stage.put("x")
    policy = Policy(max_attempts=max_attempts, retry_in=lambda n: 0)
    starts = 0
    while jobs := stage.take():
        starts += 1
        assert starts < 10
        stage.settle(raised(jobs[0], policy, ValueError("no"), 1, 2))
    assert starts == max_attempts
    view = stage.broker.inspector.get("q", "x")
    assert view is not None
    assert (view.state, view.outcome, view.job.failures) == ("morgue", "exhausted", max_attempts)


@pytest.mark.parametrize(
    "data",
    [b"", bytes(range(256)), bytes(range(256)) * 4096, b"\0", b"\r\n$5\r\n", "Grüße 💥".encode(), b"\xff\xfe"],
    ids=["empty", "every byte", "1 MiB", "zero", "protocol", "text", "not text"],
)
def test_t38_bytes_come_back_as_they_were(stage: Stage, data: bytes) -> None:
    stage.put("plain", args=data)
    stage.add("merged", data)
    jobs = {job.id: job for job in stage.take()}
    assert jobs["plain"].args == data
    assert [payload.data for payload in jobs["merged"].payloads] == [data]
    for job in jobs.values():
        stage.failed(job)
    jobs = {job.id: job for job in stage.take()}
    assert [payload.data for payload in jobs["merged"].payloads] == [data]
    for job in jobs.values():
        stage.buried(job)
    inspector = stage.broker.inspector
    assert inspector.graves("q", "plain")[0].job.args == data
    assert inspector.graves("q", "merged")[0].payloads[0].data == data


@pytest.mark.parametrize("ahead", [-300.0, 300.0])
def test_t43_due_times_and_leases_follow_the_clock_of_redis_not_the_callers(
    broker: Broker, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    queue = broker.queue("q")
    _, delay = due_of(delay=60)
    queue.schedule(NewJob("later", "work", delay_ms=delay))
    queue.schedule(NewJob("now", "work"))
    batch = queue.reserve(0, 10, worker="w")
    now = broker.now_ms()
    assert [job.id for job in batch.jobs] == ["now"]
    assert batch.next_due_ms == pytest.approx(60_000, abs=5000)
    assert abs(now - real() * 1000) < 60_000
    (lease,) = queue.leases(0)
    assert lease.deadline_ms == pytest.approx(now + broker.lease_ms, abs=5000)
    assert queue.expired(0) == []


def test_t46_looking_at_a_queue_changes_nothing(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    stage.take(1)
    stage.in_morgue("d", at=-1, priority=0)
    inspector = stage.broker.inspector
    with unchanged(stage.broker):
        for place in ("waiting", "reserved", "failed", "morgue"):
            inspector.page("q", place)
        inspector.peek("q")
        inspector.get("q", "a")
        inspector.all_counts()
        stage.queue.leases(0)
        fsck.check(stage.broker)


def test_t49_what_is_done_leaves_nothing_behind(stage: Stage) -> None:
    client = stage.broker.client

    def pass_through(n: int) -> None:
        for start in range(0, n, 1000):
            stage.queue.schedule_many(NewJob(f"j{start + number}", "work", args=b"x" * 50) for number in range(1000))
            jobs = stage.take(250)
            while jobs:
                acks = [ack(job, 0, 0, event=False) for job in jobs]
                counted, batch = stage.queue.settle_reserve(0, acks, 250, worker="w")
                assert all(counted)
                jobs = batch.jobs
            stage.wait(130_000)
            for _ in range(3):
                stage.queue.tick(0)

    pass_through(2000)
    keys, before = set(client.keys()), client.info("memory")["used_memory"]
    pass_through(20_000)
    assert stage.shard_is_empty()
    assert set(client.keys()) == keys
    assert client.info("memory")["used_memory"] - before < 200_000


class Trap:
    sprung: ClassVar[list[str]] = []

    def __reduce__(self) -> Any:
        return Trap.sprung.append, ("code of the payload ran",)


@pytest.mark.parametrize(
    "payload",
    [
        pickle.dumps(Trap()),
        b"\x04\x08o:\x0bObject\x00",
        b'{"@type":"com.sun.rowset.JdbcRowSetImpl"}',
        b"!!python/object/apply:os.system",
        b'{"$py":"os.system"}',
        b"__import__('os')",
        b"[" * 5000,
        b'{"$dec":"1e999999999"}',
        b"NaN",
    ],
    ids=["pickle", "Marshal", "fastjson", "yaml", "tag", "eval", "deep", "huge number", "NaN"],
)
def test_t55_hostile_bytes_run_nothing(stage: Stage, payload: bytes) -> None:
    stage.put("x", args=payload)
    job = stage.take_one()
    for read in (decode_args, decode):
        with contextlib.suppress(Undecodable, InvalidJob):
            read(job.args)
    assert Trap.sprung == []
    stage.done(job)


@pytest.mark.parametrize(
    "given",
    [
        {"delay": 1_800_000 * 1000},
        {"at": 1_700_000_000_000},
        {"delay": math.inf},
        {"delay": math.nan},
        {"delay": -1},
        {"delay": 1e300},
        {"at": 10**30},
    ],
)
def test_t56_milliseconds_where_seconds_are_expected_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidJob):
        due_of(**given)  # type: ignore[arg-type]


@pytest.fixture
def lossy(
    redis_factory: Callable[..., RedisBox], proxy_factory: Callable[..., TcpProxy]
) -> Iterator[tuple[Broker, TcpProxy]]:
    """A broker behind a line that can be cut, on a server of its own."""
    box = redis_factory()
    proxy = proxy_factory(str(box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection)
    yield broker, proxy
    proxy.passing()
    fsck.assert_invariants(broker)
    connection.close()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("verb", ["schedule", "reserve", "ack", "fail", "kick"])
def test_t60_a_call_whose_reply_is_lost_counts_once(lossy: tuple[Broker, TcpProxy], verb: str, applied: bool) -> None:
    broker, proxy = lossy
    queue = broker.queue("q")
    held: list[Job] = []
    if verb in ("ack", "fail"):
        queue.schedule(NewJob("x", "work"))
        held = queue.reserve(0, 1, worker="w").jobs
    elif verb == "reserve":
        queue.schedule(NewJob("x", "work"))
    elif verb == "kick":
        stage = Stage(broker, clock=False)
        stage.in_morgue("x")
    cut = proxy.cut_after_request if applied else proxy.cut_before_request
    done = proxy.cuts_done
    cut(1, when=lambda chunk: b"EVALSHA" in chunk)
    if verb == "schedule":
        assert queue.schedule(NewJob("x", "work", on_conflict="error")) == "created"
    elif verb == "reserve":
        assert [job.id for job in queue.reserve(0, 1, worker="w").jobs] == ["x"]
    elif verb == "ack":
        assert queue.settle([ack(held[0], 0, 0)]) == [True]
    elif verb == "fail":
        assert queue.settle([fail(held[0], 0, 0, delay_ms=0)]) == [True]
    else:
        assert queue.kick("x") == "kicked"
    assert proxy.cuts_done == done + 1
    counts = broker.inspector.counts("q")
    counted = {"schedule": "created", "reserve": "reserved", "ack": "acked", "fail": "failed", "kick": "kicked"}[verb]
    assert counts.counters[counted] == 1
    assert counts.counters.get("late", 0) == 0
    assert counts.ready + counts.delayed + counts.reserved == (0 if verb == "ack" else 1)


def test_t60_a_line_that_is_cut_again_and_again_loses_and_doubles_nothing(lossy: tuple[Broker, TcpProxy]) -> None:
    broker, proxy = lossy
    queue = broker.queue("q", shards=2)
    dice = random.Random(60)

    def cut_sometimes() -> None:
        cut = proxy.cut_after_request if dice.random() < 0.5 else proxy.cut_before_request
        cut(dice.randint(1, 3), when=lambda chunk: b"EVALSHA" in chunk)

    for number in range(40):
        cut_sometimes()
        assert queue.schedule(NewJob(f"j{number}", "work", on_conflict="error")) == "created"
    cut_sometimes()
    assert set(queue.schedule_many(NewJob(f"k{number}", "work", on_conflict="error") for number in range(1000))) == {
        "created"
    }
    seen: list[str] = []
    for turn in range(200):
        cut_sometimes()
        batch = queue.reserve(turn % 2, 20, worker="w")
        cut_sometimes()
        assert all(queue.settle([ack(job, 0, 0) for job in batch.jobs]))
        seen += [job.id for job in batch.jobs]
    assert sorted(seen) == sorted([f"j{n}" for n in range(40)] + [f"k{n}" for n in range(1000)])


def test_t64_the_token_is_a_fence_against_a_worker_that_rose_from_the_dead(stage: Stage) -> None:
    """A store that keeps the highest token it saw refuses the writes of every earlier holder."""
    stage.put("x")
    highest, tokens = 0, []
    for turn in range(5):
        job = stage.take_one(worker=f"w{turn}")
        tokens.append(job)
        stage.wait(LEASE if turn % 2 else -20)
        if found := stage.queue.expired(0):
            stage.settle(release(found[0], guard="expired"))
        else:
            stage.released(job)
    for job in tokens:
        assert job.token > highest
        highest = job.token
    assert stage.done(*tokens) == [False] * 5
    with pytest.raises(IdTaken):
        stage.put("x", on_conflict="error")
