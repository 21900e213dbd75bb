"""Bulk operations on waiting jobs, and on the jobs of several epochs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from django_delayq.core import Broker, Inspector, NewJob, Queue, RedisConfig, connect, fail
from tests.support.core_calls import watch_calls
from tests.support.core_stored import shard_key
from tests.support.redis_box import RedisBox

from .bulk_stage import ProgressLog, bury_all, cancel_all, discard_many, kick_all, kick_many, kill_failed, run_all_now
from .stage import LEASE, Stage
from .world import read_world

#: jobs that one script may move
MOST_AT_ONCE = 500


def cpu_seconds(broker: Broker) -> float:
    """Return the processor's time that Redis has used so far."""
    used = broker.client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def test_all_waiting_jobs_are_cancelled_and_no_others(wide: Stage) -> None:
    wide.queue.schedule_many(NewJob(f"j{n}", "work", delay_ms=n, priority=n % 8) for n in range(1, 700))
    wide.put("running", at=-1, priority=0)
    (running,) = wide.take(number=wide.queue.shard_of("running"))
    wide.put("running", at=5)
    wide.in_morgue("buried", at=-1, priority=0)
    wide.add("m", b"p", at=9)
    told = ProgressLog()
    assert cancel_all(wide.queue, progress=told) == {"cancelled": 700}
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
    assert run_all_now(stage.queue) == {"moved": 7}
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
    assert run_all_now(stage.queue) == {}


def test_t33_a_job_is_never_moved_to_a_later_time(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n:04}", "work", delay_ms=1 + n // 1000) for n in range(3000))
    names = shard_key(stage.queue, "due.4", 0)
    before = dict(stage.broker.client.zrange(names, 0, -1, withscores=True))
    order = list(before)
    with watch_calls(stage.broker, before=lambda _: stage.wait(0.25)):  # a chunk of 250 jobs takes longer
        run_all_now(stage.queue)
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
    due = [shard_key(queue, "due.4", number) for number in queue.numbers]
    before = [broker.client.zrange(key, 0, -1) for key in due]
    used = cpu_seconds(broker)
    told = ProgressLog()
    assert run_all_now(queue, progress=told) == {"moved": total}
    moved = [now - then for (then, _), (now, _) in pairwise([(0, 0), *told.steps])]
    assert max(moved) <= MOST_AT_ONCE
    # The time of Redis's processor, not that of a clock: a machine that is busy elsewhere stops Redis now and then.
    used = cpu_seconds(broker) - used
    assert told.steps[-1] == (total, total)
    assert used / len(moved) < 0.010, f"{used} s for {len(moved)} scripts"
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
    assert run_all_now(stage.queue) == {"moved": 1}
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
    counts = Inspector(queue.registry).counts(queue.name)
    return counts.ready, counts.delayed, counts.failed, counts.morgue


def test_every_epoch_is_reached(grown: Queue) -> None:
    assert places(grown) == (0, 1200, 600, 600)
    assert kill_failed(grown) == {"killed": 600}
    assert places(grown) == (0, 600, 0, 1200)
    assert run_all_now(grown) == {"moved": 600}
    assert cancel_all(grown) == {"cancelled": 600}
    assert kick_all(grown, delay_ms=3_600_000) == {"kicked": 1200}
    assert places(grown) == (0, 1200, 0, 0)
    # Nothing comes to life again in shards that take no new ids.
    old = [number for number in grown.numbers if number < 1024]
    assert [len(read_world(grown, number)["lives"]) for number in old] == [0, 0]


def test_ids_are_found_in_every_epoch(grown: Queue) -> None:
    names = [f"buried {half} {number}" for half in range(2) for number in range(300)]
    keys = {name: Inspector(grown.registry).graves("q", name)[0].job.key for name in names[::2]}
    wanted = [*keys.items(), *names[1::2][:20], "nobody"]
    late = Broker(grown.deployment.connection, prefix=grown.deployment.prefix).queue("q")
    assert kick_many(late, wanted, delay_ms=3_600_000) == {"kicked": 320, "gone": 1}
    assert discard_many(late, names) == {"discarded": 280, "gone": 320}
    assert places(grown) == (0, 1520, 600, 0)


def test_a_morgue_of_several_epochs_comes_back_at_one_pace(grown: Queue) -> None:
    cancel_all(grown)
    assert kick_all(grown, delay_ms=600_000, per_second=10) == {"kicked": 600}
    dues = sorted(view.due_ms for view in Inspector(grown.registry).page("q", "waiting", limit=250).jobs)
    assert dues[-1] - dues[0] == pytest.approx(249 * 100, abs=5000)
