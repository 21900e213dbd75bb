"""Bulk operations of operators: chunked, atomic for each job, limited to jobs from before the call."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import bulk, events
from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import NewJob, Payload, Settlement, ack, bury, fail, new_key
from django_delayq.core.operations import fsck
from django_delayq.core.queue import Queue
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support.redis_box import RedisBox

from .stage import LEASE, T0, Stage
from .world import read_world, unchanged


@pytest.fixture
def wide(clocked: Broker) -> Stage:
    """Return a queue of three shards."""
    return Stage(clocked, shards=3, name="wide")


def merged_jobs(ids: int, payloads: int) -> Iterator[NewJob]:
    for number in range(payloads):
        for ident in range(ids):
            payload = Payload(b"%d of m%d" % (number, ident), str(number), new_key())
            yield NewJob(f"m{ident}", "sync", payload=payload, on_conflict="merge", due_policy="keep")


def fail_all(stage: Stage, **options: object) -> None:
    for number in stage.queue.numbers:
        while jobs := stage.take(250, number=number):
            assert all(stage.settle(*(fail(job, 1, 2, delay_ms=60_000, **options) for job in jobs)))  # type: ignore[arg-type]


def bury_all(queue: Queue) -> None:
    for number in queue.numbers:
        while jobs := queue.reserve(number, 250, worker="w").jobs:
            assert all(queue.settle([bury(job, 1, 2, reason="why") for job in jobs]))


def everything_in_morgue(stage: Stage, n: int) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(n))
    bury_all(stage.queue)


class Told:
    """Progress callback that records its calls and runs ``act`` at each of them."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.act = act

    def __call__(self, seen: int, total: int) -> None:
        self.steps.append((seen, total))
        self.act()


# --- the morgue


def test_many_jobs_are_kicked_by_id_or_by_id_and_key(wide: Stage) -> None:
    keys = [wide.in_morgue("twice") for _ in range(2)]
    for ident in ("a", "b", "stays", "in the way"):
        wide.in_morgue(ident)
    wide.put("in the way", at=7)
    told = Told()
    wanted = [
        "a",
        ("b", wide.broker.inspector.graves("wide", "b")[0].job.key),
        "nobody",
        ("twice", keys[0]),
        "in the way",
        ("twice", b"another key 1234"),
    ]
    found = bulk.kick_many(wide.queue, wanted, delay_ms=50, progress=told)
    assert found == {"kicked": 3, "live": 1, "gone": 2}
    assert told.steps == [(6, 6)]
    picture = wide.picture()
    assert sorted(picture["waiting"]) == ["a +50", "b +50", "in the way +7", "twice +50"]
    assert sorted(picture["morgue"]) == ["in the way buried", "stays buried", "twice buried"]
    assert [view.job.key for view in wide.broker.inspector.graves("wide", "twice")] == [keys[1]]
    assert bulk.kick_many(wide.queue, ["in the way"], replace=True) == {"kicked": 1}
    assert "in the way +0" in wide.picture()["waiting"]


def test_many_jobs_are_discarded(wide: Stage) -> None:
    everything_in_morgue(wide, 600)
    assert bulk.discard_many(wide.queue, (f"j{n}" for n in range(700))) == {"discarded": 600, "gone": 100}
    assert wide.picture() == {}
    assert wide.counters()["discarded"] == 600


@pytest.mark.parametrize("verb", [bulk.kick_many, bulk.discard_many])
@pytest.mark.parametrize("ident", ["", "x" * 256, "a\0b"])
def test_an_id_that_cannot_be_is_refused(wide: Stage, verb: Callable[..., object], ident: str) -> None:
    wide.in_morgue("a")
    with unchanged(wide.broker), pytest.raises(InvalidJob):
        verb(wide.queue, ["a", ident])


@pytest.mark.parametrize("options", [{"delay_ms": -1}, {"per_second": 0}, {"per_second": -1.0}])
def test_a_pace_that_cannot_be_is_refused(wide: Stage, options: dict[str, int]) -> None:
    with pytest.raises(InvalidJob):
        bulk.kick_all(wide.queue, **options)  # type: ignore[arg-type]


def test_the_whole_morgue_comes_back_due_now_or_after_a_delay(wide: Stage) -> None:
    everything_in_morgue(wide, 800)
    told = Told()
    assert bulk.kick_all(wide.queue, delay_ms=500, progress=told) == {"kicked": 800}
    assert told.steps[-1] == (800, 800)
    assert len(told.steps) >= 4
    counts = wide.broker.inspector.counts("wide")
    assert (counts.delayed, counts.ready, counts.morgue) == (800, 0, 0)
    wide.wait(500)
    assert sum(len(wide.take(250, number=number)) for number in wide.queue.numbers for _ in range(2)) == 800


def test_a_kicked_morgue_may_come_back_spread_over_time(wide: Stage) -> None:
    everything_in_morgue(wide, 600)
    assert bulk.kick_all(wide.queue, delay_ms=1000, per_second=100) == {"kicked": 600}
    dues = sorted(score for number in wide.queue.numbers for _, _, score in read_world(wide.queue, number)["waiting"])
    assert [due - T0 for due in dues] == [1000 + 10 * n for n in range(600)]


def test_jobs_that_cannot_be_kicked_do_not_keep_the_others_waiting(wide: Stage) -> None:
    everything_in_morgue(wide, 700)
    wide.queue.schedule_many(NewJob(f"j{number}", "work", delay_ms=60_000) for number in range(0, 700, 2))
    assert bulk.kick_all(wide.queue) == {"kicked": 350, "live": 350}
    assert bulk.kick_all(wide.queue) == {"live": 350}
    assert bulk.kick_all(wide.queue, replace=True) == {"kicked": 350}


@pytest.mark.parametrize(("verb", "outcome"), [(bulk.kick_all, "kicked"), (bulk.discard_all, "discarded")])
def test_what_is_buried_after_the_call_stays(stage: Stage, verb: Callable[..., object], outcome: str) -> None:
    everything_in_morgue(stage, 600)
    late = iter(range(10**6))

    def bury_another() -> None:
        stage.wait(1)
        stage.in_morgue(f"late {next(late)}", priority=0, at=-1000)

    told = Told(bury_another)
    assert verb(stage.queue, progress=told) == {outcome: 600}
    assert stage.broker.inspector.counts("q").morgue == next(late) == len(told.steps)


def test_only_what_was_buried_before_a_moment_is_discarded(stage: Stage) -> None:
    stage.in_morgue("old")
    stage.wait(1000)
    stage.in_morgue("edge")
    stage.wait(1000)
    stage.in_morgue("new")
    assert bulk.discard_all(stage.queue, before_ms=T0 + 1000) == {"discarded": 1}
    assert stage.picture() == {"morgue": ["edge buried", "new buried"]}
    assert bulk.discard_all(stage.queue, before_ms=T0 + 1001) == {"discarded": 1}
    assert bulk.discard_all(stage.queue) == {"discarded": 1}
    assert stage.shard_is_empty()
    assert bulk.discard_all(stage.queue) == {}


# --- jobs that failed


def failed_scene(stage: Stage) -> None:
    """Create failed jobs, waiting and reserved, beside jobs that never failed."""
    for ident in ("failed", "retried"):
        stage.put(ident, args=ident.encode())
    stage.add("m", b"p")
    stage.add("m", b"q")
    for job in stage.take():
        stage.failed(job, 0 if job.id == "retried" else 60_000, error=b'{"message": "no"}')
    (again,) = stage.take()
    assert again.id == "retried"
    stage.put("fresh", at=70_000)
    stage.wait(10)


def test_failed_jobs_are_killed_and_the_others_left_alone(stage: Stage) -> None:
    failed_scene(stage)
    told = Told()
    assert bulk.kill_failed(stage.queue, progress=told) == {"killed": 2}
    assert told.steps == [(3, 3)]
    assert stage.picture() == {
        "waiting": ["fresh +70000"],
        "reserved": [f"retried by w until +{LEASE}"],
        "failed": ["retried x1"],
        "morgue": ["failed killed", "m killed"],
    }
    view = stage.broker.inspector.get("q", "failed")
    assert view is not None
    assert (view.reason, view.error, view.job.failures, view.due_ms) == ("killed", {"message": "no"}, 1, T0 + 60_000)
    assert stage.counters()["killed"] == 2
    (told_event,) = [event for event in events.read(stage.broker, "q", 0) if event.outcome == "bulk"]
    assert told_event.fields == {"jobs": "2", "created": "0", "verb": "killed"}
    assert bulk.kick_all(stage.queue) == {"kicked": 2}
    assert {job.id: [payload.data for payload in job.payloads] for job in stage.take()} == {
        "failed": [],
        "m": [b"p", b"q"],
    }


def test_failed_jobs_are_deleted_and_the_others_left_alone(stage: Stage) -> None:
    failed_scene(stage)
    assert bulk.delete_failed(stage.queue) == {"deleted": 2}
    assert stage.picture() == {
        "waiting": ["fresh +70000"],
        "reserved": [f"retried by w until +{LEASE}"],
        "failed": ["retried x1"],
    }
    assert stage.counters()["deleted"] == 2


@pytest.mark.parametrize(("verb", "outcome"), [(bulk.kill_failed, "killed"), (bulk.delete_failed, "deleted")])
def test_what_fails_after_the_call_is_left_alone(stage: Stage, verb: Callable[..., object], outcome: str) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(600))
    fail_all(stage)
    late = iter(range(10**6))

    def fail_another() -> None:
        stage.wait(1)
        stage.put(f"late {next(late)}", priority=0, at=0)
        stage.failed(stage.take_one(), 60_000)

    told = Told(fail_another)
    assert verb(stage.queue, progress=told) == {outcome: 600}
    assert stage.broker.inspector.counts("q").failed == next(late) == len(told.steps)


def test_a_killed_job_with_many_payloads_lies_in_several_graves_and_nothing_is_lost(stage: Stage) -> None:
    stage.queue.schedule_many(merged_jobs(3, 600))
    fail_all(stage)
    assert bulk.kill_failed(stage.queue) == {"killed": 3}
    assert stage.picture()["morgue"] == ["m0 killed"] * 3 + ["m1 killed"] * 3 + ["m2 killed"] * 3
    graves = stage.broker.inspector.graves("q", "m1")
    assert sorted(view.payload_count for view in graves) == [100, 250, 250]
    assert len({view.job.key for view in graves}) == 3
    assert bulk.kick_all(stage.queue) == {"kicked": 9}
    lives = read_world(stage.queue, 0)["lives"]
    assert {ident: [payload.data for payload in live["waiting"]] for ident, live in lives.items()} == {
        f"m{ident}": [b"%d of m%d" % (number, ident) for number in range(600)] for ident in range(3)
    }


def test_a_grave_gets_no_more_bytes_than_a_run_would(stage: Stage) -> None:
    for number in range(60):
        stage.add("a", b"%02d" % number + b"x" * 400_000, str(number))
    fail_all(stage)
    assert bulk.kill_failed(stage.queue) == {"killed": 1}
    graves = stage.broker.inspector.graves("q", "a")
    assert sorted(view.payload_count for view in graves) == [10, 25, 25]
    assert len({view.job.key for view in graves}) == 3
    found = sorted(payload.data[:2] for view in graves for payload in view.payloads)
    assert found == [b"%02d" % number for number in range(60)]


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [
        (bulk.kill_failed, "killed"),
        (bulk.delete_failed, "deleted"),
        (bulk.cancel_all, "cancelled"),
    ],
)
def test_a_call_with_many_payloads_rests_in_between(
    stage: Stage, verb: Callable[..., object], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.queue.schedule_many(merged_jobs(10, 300))
    fail_all(stage)
    calls: Counter[str] = Counter()
    call = stage.broker.scripts.call

    def counted(name: str, *args: object) -> object:
        calls[name] += 1
        return call(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(stage.broker.scripts, "call", counted)
    assert verb(stage.queue) == {outcome: 10}
    assert calls["end_failed"] + calls["cancel"] == 3
    if outcome == "killed":
        assert bulk.kick_all(stage.queue) == {"kicked": 20}
        assert calls["kick"] > 1
        assert stage.picture()["waiting"] == [f"m{number} +0" for number in range(10)]
    else:
        assert stage.shard_is_empty()


class Load:
    """Producers and workers on the real clock; half of the attempts fail."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.pushed: set[bytes] = set()
        self.done: set[bytes] = set()
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self.guarded, args=(act,))
            for act in (self.produce, self.produce, self.work, self.work)
        ]

    def guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self.errors.append(error)

    def produce(self) -> None:
        name, number = threading.get_ident(), 0
        while not self.stop.is_set():
            news = []
            for _ in range(20):
                number += 1
                data = b"%d %d" % (name, number)
                news.append(
                    NewJob(
                        f"m{number % 50}",
                        "sync",
                        payload=Payload(data, str(number), new_key()),
                        on_conflict="merge",
                        due_policy="keep",
                    )
                )
                with self.lock:
                    self.pushed.add(data)
            assert "taken" not in self.queue.schedule_many(news)

    def work(self) -> None:
        turn = 0
        while not self.stop.is_set():
            turn += 1
            self.round(turn)

    def round(self, turn: int) -> int:
        settlements: list[Settlement] = []
        jobs = [job for number in self.queue.numbers for job in self.queue.reserve(number, 10, worker="w").jobs]
        for place, job in enumerate(jobs):
            good = (turn + place) % 2 == 0
            settlements.append(ack(job, 1, 2) if good else fail(job, 1, 2, delay_ms=turn % 3 * 20))
        for job, settlement, counted in zip(jobs, settlements, self.queue.settle(settlements), strict=True):
            assert counted
            if settlement.verb == "ack":
                with self.lock:
                    self.done.update(payload.data for payload in job.payloads)
        return len(jobs)

    def run(self, seconds: float, operate: Callable[[], object]) -> None:
        for thread in self.threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.errors:
            operate()
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert self.errors == []


def test_t19_failed_jobs_are_killed_under_full_load_and_no_payload_is_lost(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = Load(queue)
    killed: Counter[str] = Counter()
    load.run(2.0, lambda: killed.update(bulk.kill_failed(queue)))
    assert killed["killed"] > 0
    assert load.done
    fsck.assert_invariants(broker)
    bulk.run_all_now(queue)
    bulk.kick_all(queue)
    while any(queue.reserve(number, 0, worker="w").next_due_ms is not None for number in queue.numbers):
        bulk.run_all_now(queue)
        load.round(0)
    assert load.done == load.pushed
    assert broker.inspector.counts("q").morgue == 0


def test_t19_failed_jobs_are_deleted_under_full_load_and_what_comes_later_is_not(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = Load(queue)
    deleted: Counter[str] = Counter()
    load.run(2.0, lambda: deleted.update(bulk.delete_failed(queue)))
    assert deleted["deleted"] > 0
    fsck.assert_invariants(broker)
    # Every payload was handled, was deleted with its failed job, or is still there: none is there twice or half.
    left = {
        payload.data
        for number in queue.numbers
        for live in read_world(queue, number)["lives"].values()
        for payload in live["waiting"]
    }
    assert left <= load.pushed
    assert load.done <= load.pushed
    assert len(load.pushed - left - load.done) > 0


def test_t19_what_is_pushed_behind_a_run_survives_the_deletion_of_failed_jobs(stage: Stage) -> None:
    stage.add("m", b"p")
    stage.failed(stage.take_one(), 0)
    job = stage.take_one()
    stage.add("m", b"q")
    with unchanged(stage.broker):
        assert bulk.delete_failed(stage.queue) == {}
        assert bulk.kill_failed(stage.queue) == {}
    stage.done(job)
    assert [payload.data for payload in stage.take_one().payloads] == [b"q"]


# --- jobs that wait


def test_all_waiting_jobs_are_cancelled_and_no_others(wide: Stage) -> None:
    wide.queue.schedule_many(NewJob(f"j{n}", "work", delay_ms=n, priority=n % 8) for n in range(1, 700))
    wide.put("running", at=-1, priority=0)
    (running,) = wide.take(number=wide.queue.shard_of("running"))
    wide.put("running", at=5)
    wide.in_morgue("buried", at=-1, priority=0)
    wide.add("m", b"p", at=9)
    told = Told()
    assert bulk.cancel_all(wide.queue, progress=told) == {"cancelled": 700}
    assert told.steps[-1] == (700, 700)
    assert wide.picture() == {
        "reserved": [f"running by w until +{LEASE}"],
        "gated": ["running +5"],
        "morgue": ["buried buried"],
    }
    assert wide.counters()["cancelled"] == 700
    assert wide.done(running) == [True]


def test_t33_all_jobs_run_now_in_their_order_and_with_their_failures(stage: Stage) -> None:
    stage.put("overdue", at=-5000)
    stage.put("failed", priority=2)
    stage.put("f2", priority=2)
    fail_all_but = stage.take(2)
    assert {job.id for job in fail_all_but} == {"failed", "f2"}
    for job in fail_all_but:
        stage.failed(job, 60_000)
    for place, ident in enumerate("cadb"):
        stage.put(ident, at=1000 + place)
    stage.put("urgent", at=500_000, priority=2)
    stage.put("running", at=-6000)
    stage.take(1)
    stage.put("running", at=99_000)
    before = read_world(stage.queue, 0)["failed"]
    assert bulk.run_all_now(stage.queue) == {"moved": 7}
    assert stage.picture()["waiting"] == [
        "failed +0 p2",
        "f2 +0 p2",
        "urgent +0 p2",
        "overdue -5000",
        "c +0",
        "a +0",
        "d +0",
        "b +0",
    ]
    assert read_world(stage.queue, 0)["failed"] == before
    assert stage.picture()["gated"] == ["running +99000"]
    assert stage.broker.inspector.counts("q").lag_seconds == 5.0
    assert bulk.run_all_now(stage.queue) == {}


def test_t33_a_job_is_never_moved_to_a_later_time(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n:04}", "work", delay_ms=1 + n // 1000) for n in range(3000))
    names = stage.queue.shard(0).names["due.4"]
    before = dict(stage.broker.client.zrange(names, 0, -1, withscores=True))
    order = list(before)
    bulk.run_all_now(stage.queue)
    after = dict(stage.broker.client.zrange(names, 0, -1, withscores=True))
    assert list(after) == order
    assert all(after[ident] <= before[ident] for ident in before)


def test_t33_a_hundred_thousand_jobs_run_now_without_a_long_script(redis_factory: Callable[..., RedisBox]) -> None:
    box = redis_factory()
    connection = connect(RedisConfig.parse(box.url))
    broker = Broker(connection)
    queue = broker.queue("q", shards=2)
    total = 100_000
    queue.count_many(NewJob(f"{n:06}", "work", delay_ms=3_600_000 + n * 7 % total) for n in range(total))
    due = [queue.shard(number).names["due.4"] for number in queue.numbers]
    before = [broker.client.zrange(key, 0, -1) for key in due]
    broker.client.config_set("slowlog-log-slower-than", 10_000)
    broker.client.config_set("slowlog-max-len", 1000)
    broker.client.slowlog_reset()
    told = Told()
    assert bulk.run_all_now(queue, progress=told) == {"moved": total}
    assert told.steps[-1] == (total, total)
    # A machine that is busy elsewhere stops Redis now and then; a script that is too long is so every time.
    assert broker.client.slowlog_len() <= len(told.steps) // 20
    assert [broker.client.zrange(key, 0, -1) for key in due] == before
    counts = broker.inspector.counts("q")
    assert counts.ready + counts.delayed == total
    assert counts.lag_seconds < 60
    while counts.delayed:
        counts = broker.inspector.counts("q")
    connection.close()


def test_t33_jobs_that_run_now_wake_a_consumer(stage: Stage) -> None:
    stage.put("a", at=1000)
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    assert bulk.run_all_now(stage.queue) == {"moved": 1}
    if not stage.broker.connection.cluster:
        assert stage.wake_list() == [b"0"]


# --- when the number of shards was changed


@pytest.fixture
def grown(broker: Broker) -> Queue:
    """Create 600 buried, 600 failed and 600 waiting jobs; half of each before the number of shards was raised."""
    queue = broker.queue("q", shards=2)
    for half in range(2):
        names = [f"{half} {number}" for number in range(300)]
        queue.schedule_many(NewJob(f"buried {name}", "work") for name in names)
        bury_all(queue)
        queue.schedule_many(NewJob(f"failed {name}", "work") for name in names)
        for number in queue.numbers:
            while jobs := queue.reserve(number, 250, worker="w").jobs:
                queue.settle([fail(job, 1, 2, delay_ms=3_600_000) for job in jobs])
        queue.schedule_many(NewJob(f"waiting {name}", "work", delay_ms=3_600_000) for name in names)
        if half == 0:
            broker.reshard("q", 3)
    assert len(queue.epochs) == 2
    return queue


def places(queue: Queue) -> tuple[int, int, int, int]:
    counts = queue.broker.inspector.counts(queue.name)
    return counts.ready, counts.delayed, counts.failed, counts.morgue


def test_every_epoch_is_reached(grown: Queue) -> None:
    assert places(grown) == (0, 1200, 600, 600)
    assert bulk.kill_failed(grown) == {"killed": 600}
    assert places(grown) == (0, 600, 0, 1200)
    assert bulk.run_all_now(grown) == {"moved": 600}
    assert bulk.cancel_all(grown) == {"cancelled": 600}
    assert bulk.kick_all(grown, delay_ms=3_600_000) == {"kicked": 1200}
    assert places(grown) == (0, 1200, 0, 0)
    # Nothing comes to life again in shards that take no new ids.
    old = [number for number in grown.numbers if number < 1024]
    assert [len(read_world(grown, number)["lives"]) for number in old] == [0, 0]


def test_ids_are_found_in_every_epoch(grown: Queue) -> None:
    names = [f"buried {half} {number}" for half in range(2) for number in range(300)]
    keys = {name: grown.broker.inspector.graves("q", name)[0].job.key for name in names[::2]}
    wanted = [*keys.items(), *names[1::2][:20], "nobody"]
    late = Broker(grown.broker.connection, prefix=grown.broker.prefix).queue("q")
    assert bulk.kick_many(late, wanted, delay_ms=3_600_000) == {"kicked": 320, "gone": 1}
    assert bulk.discard_many(late, names) == {"discarded": 280, "gone": 320}
    assert places(grown) == (0, 1520, 600, 0)


def test_a_morgue_of_several_epochs_comes_back_at_one_pace(grown: Queue) -> None:
    bulk.cancel_all(grown)
    assert bulk.kick_all(grown, delay_ms=600_000, per_second=10) == {"kicked": 600}
    dues = sorted(view.due_ms for view in grown.broker.inspector.page("q", "waiting", limit=250).jobs)
    assert dues[-1] - dues[0] == pytest.approx(249 * 100, abs=5000)
