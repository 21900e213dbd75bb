"""Operations on many jobs: all of a place, those that meet conditions, or those that an operator has selected.

They are chunked, atomic for each job, and limited to jobs from before the call, also while producers push.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
import pytest

from django_delayq.core import (
    Broker,
    Inspector,
    InvalidJob,
    JobView,
    NewJob,
    Payload,
    Queue,
    RedisConfig as Config,
    actions,
    connect,
    fail,
)
from tests.support.core_calls import watch_calls
from tests.support.core_stored import assert_invariants, shard_key
from tests.support.core_values import Generation, encode_args, new_key
from tests.support.event_entries import last_position, read_events
from tests.support.redis_box import RedisBox

from . import bulk_stage as bulk
from .bulk_stage import ProgressLog, act_in_shard, bury_all, everything_in_morgue
from .stage import LEASE, T0, Stage
from .world import read_world

Verb = Callable[..., dict[str, int]]


def change(stage: Stage, verb: bulk.Verb, **conditions: Any) -> dict[str, int]:
    return dict(bulk.change(stage.queue, verb, bulk.JobFilter(**conditions)).counts)


def waiting(stage: Stage) -> list[str]:
    return [view.id for view in stage.broker.inspector.page(stage.queue.name, "waiting", limit=250).jobs]


# -- failed jobs -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("verb", "done"), [(bulk.kill_failed, "killed"), (bulk.delete_failed, "deleted")])
def test_failed_jobs_are_ended_and_the_others_left_alone(stage: Stage, verb: Verb, done: str) -> None:
    failed_scene(stage)
    told = ProgressLog()
    assert verb(stage.queue, progress=told) == {done: 2}
    assert told.steps == [(3, 3)]
    morgue = {"morgue": ["failed buried", "m buried"]} if done == "killed" else {}
    assert stage.picture() == {
        "waiting": ["fresh +70000"],
        "reserved": [f"retried by w until +{LEASE}"],
        "failed": ["retried x1"],
        **morgue,
    }
    assert stage.counters()[done] == 2
    (event,) = [event for event in read_events(stage.broker, "q", 0) if event.outcome == "bulk"]
    assert event.fields == {"jobs": "2", "created": "0", "verb": done}
    if morgue:
        view = stage.view("failed")
        assert (view.reason, view.outcome) == ("buried by an operator", "buried")
        assert (view.error, view.job.failures, view.due_ms) == ({"message": "no"}, 1, T0 + 60_000)
        assert bulk.kick_all(stage.queue) == {"kicked": 2}
        back = {job.id: [payload.data for payload in job.payloads] for job in stage.take()}
        assert back == {"failed": [], "m": [b"p", b"q"]}


@pytest.mark.parametrize(
    ("verb", "done"),
    [
        (bulk.kill_failed, "killed"),
        (bulk.delete_failed, "deleted"),
        (bulk.kick_all, "kicked"),
        (bulk.discard_all, "discarded"),
    ],
)
def test_what_comes_after_the_call_is_left_alone(stage: Stage, verb: Verb, done: str) -> None:
    of_failed = done in ("killed", "deleted")
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(600))
    bulk.fail_all(stage) if of_failed else bury_all(stage.queue)
    late = iter(range(10**6))

    def another() -> None:
        stage.wait(1)
        stage.put(f"late {next(late)}", priority=0, at=-1000)
        (job,) = stage.take(1)
        stage.failed(job, 60_000) if of_failed else stage.buried(job)

    told = ProgressLog(another)
    assert verb(stage.queue, progress=told) == {done: 600}
    counts = stage.broker.inspector.counts("q")
    assert (counts.failed if of_failed else counts.morgue) == next(late) == len(told.steps)


def test_a_killed_job_with_many_payloads_lies_in_several_graves_and_nothing_is_lost(stage: Stage) -> None:
    stage.queue.schedule_many(bulk.merged_jobs(3, 600))
    for number in range(60):
        stage.add("large", b"%02d" % number + b"x" * 400_000, str(number))
    bulk.fail_all(stage)
    assert bulk.kill_failed(stage.queue) == {"killed": 4}
    for ident, counts in (("m1", [100, 250, 250]), ("large", [10, 25, 25])):
        graves = stage.broker.inspector.graves("q", ident)
        assert sorted(view.payload_count for view in graves) == counts, "no more than a run would get"
        assert len({view.job.key for view in graves}) == 3
    assert bulk.kick_all(stage.queue) == {"kicked": 12}
    lives = read_world(stage.queue, 0)["lives"]
    found = {ident: [payload.data[:10] for payload in live["waiting"]] for ident, live in lives.items()}
    assert [int(data[:2]) for data in found.pop("large")] == list(range(60))
    assert found == {f"m{ident}": [b"%d of m%d" % (number, ident) for number in range(600)] for ident in range(3)}


# -- the morgue --------------------------------------------------------------------------------------------------------


def test_many_jobs_are_kicked_and_discarded_by_id_or_by_id_and_key(wide: Stage) -> None:
    keys = [wide.in_morgue("twice") for _ in range(2)]
    for ident in ("a", "b", "stays", "in the way"):
        wide.in_morgue(ident)
    wide.put("in the way", at=7)
    wanted = [
        "a",
        ("b", wide.broker.inspector.graves("wide", "b")[0].job.key),
        "nobody",
        ("twice", keys[0]),
        "in the way",
        ("twice", b"another key 1234"),
    ]
    assert bulk.kick_many(wide.queue, wanted, delay_ms=50) == {"kicked": 3, "live": 1, "gone": 2}
    picture = wide.picture()
    assert sorted(picture["waiting"]) == ["a +50", "b +50", "in the way +7", "twice +50"]
    assert sorted(picture["morgue"]) == ["in the way buried", "stays buried", "twice buried"]
    assert [view.job.key for view in wide.broker.inspector.graves("wide", "twice")] == [keys[1]]
    assert bulk.kick_many(wide.queue, ["in the way"], replace=True) == {"kicked": 1}
    assert "in the way +0" in wide.picture()["waiting"]
    assert bulk.discard_many(wide.queue, ["stays", "twice", "nobody"]) == {"discarded": 2, "gone": 1}
    assert "morgue" not in wide.picture()
    assert wide.counters()["discarded"] == 2


@pytest.mark.parametrize("per_second", [float("nan"), 0, -1.0])
def test_a_pace_that_cannot_be_is_refused(wide: Stage, per_second: float) -> None:
    with pytest.raises(InvalidJob):
        bulk.kick_all(wide.queue, per_second=per_second)


def test_the_whole_morgue_comes_back_due_after_a_delay_or_spread_over_time(wide: Stage) -> None:
    everything_in_morgue(wide, 800)
    told = ProgressLog()
    assert bulk.kick_all(wide.queue, delay_ms=500, progress=told) == {"kicked": 800}
    assert told.steps[-1] == (800, 800)
    assert len(told.steps) >= 4
    counts = wide.broker.inspector.counts("wide")
    assert (counts.delayed, counts.ready, counts.morgue) == (800, 0, 0)
    wide.wait(500)
    bury_all(wide.queue)
    assert bulk.kick_all(wide.queue, delay_ms=1000, per_second=100) == {"kicked": 800}
    dues = sorted(score for number in wide.queue.numbers for _, _, score in read_world(wide.queue, number)["waiting"])
    assert [due - T0 for due in dues] == [1500 + 10 * n for n in range(800)]


# -- waiting jobs ------------------------------------------------------------------------------------------------------

#: jobs that one script may move
MOST_AT_ONCE = 500


def test_t33_all_jobs_run_now_in_their_order_with_their_failures_and_wake_a_consumer(stage: Stage) -> None:
    stage.put("failed", priority=2)
    stage.put("f2", priority=2)
    for job in stage.take():
        stage.failed(job, 60_000)
    stage.put("running", at=-6000)
    stage.take(1)
    stage.put("running", at=99_000)
    for place, ident in enumerate("cadb"):
        stage.put(ident, at=1000 + place)
    stage.put("urgent", at=500_000, priority=2)
    before = read_world(stage.queue, 0)["failed"]
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    assert bulk.run_all_now(stage.queue) == {"moved": 7}
    if not stage.broker.connection.cluster:
        assert stage.wake_list() == [b"0"]
    stage.put("overdue", at=-5000)
    order = ["failed +0 p2", "f2 +0 p2", "urgent +0 p2", "overdue -5000", "c +0", "a +0", "d +0", "b +0"]
    assert stage.picture()["waiting"] == order
    assert read_world(stage.queue, 0)["failed"] == before
    assert stage.picture()["gated"] == ["running +99000"]
    assert stage.broker.inspector.counts("q").lag_seconds == 5.0
    assert bulk.run_all_now(stage.queue) == {}


def test_t33_a_job_is_never_moved_to_a_later_time(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n:04}", "work", delay_ms=1 + n // 1000) for n in range(3000))
    names = shard_key(stage.queue, "due.4", 0)
    before = dict(stage.broker.client.zrange(names, 0, -1, withscores=True))
    with watch_calls(stage.broker, before=lambda _: stage.wait(0.25)):  # a chunk of 250 jobs takes longer
        bulk.run_all_now(stage.queue)
    after = dict(stage.broker.client.zrange(names, 0, -1, withscores=True))
    assert list(after) == list(before)
    assert all(after[ident] <= before[ident] for ident in before)


@pytest.mark.parametrize("total", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_t33_many_jobs_run_now_without_a_long_script(redis_factory: Callable[..., RedisBox], total: int) -> None:
    connection = connect(Config.parse(redis_factory().url))
    broker = Broker(connection)
    queue = broker.queue("q", shards=2)

    def cpu_seconds() -> float:
        used = broker.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    queue.count_many(NewJob(f"{n:06}", "work", delay_ms=3_600_000 + n * 7 % total) for n in range(total))
    due = [shard_key(queue, "due.4", number) for number in queue.numbers]
    before = [broker.client.zrange(key, 0, -1) for key in due]
    used = cpu_seconds()
    told = ProgressLog()
    assert bulk.run_all_now(queue, progress=told) == {"moved": total}
    moved = [now - then for (then, _), (now, _) in pairwise([(0, 0), *told.steps])]
    assert max(moved) <= MOST_AT_ONCE
    # The time of Redis's processor, not that of a clock: a machine that is busy elsewhere stops Redis now and then.
    used = cpu_seconds() - used
    assert told.steps[-1] == (total, total)
    assert used / len(moved) < 0.010, f"{used} s for {len(moved)} scripts"
    assert [broker.client.zrange(key, 0, -1) for key in due] == before
    counts = broker.inspector.counts("q")
    assert counts.ready + counts.delayed == total
    assert counts.lag_seconds < 60
    while counts.delayed:
        counts = broker.inspector.counts("q")
    connection.close()


# -- when the number of shards was changed -----------------------------------------------------------------------------

HALF = 50


@pytest.fixture
def grown(broker: Broker) -> Queue:
    """Create buried, failed and waiting jobs; half of each before the number of shards was raised."""
    queue = broker.queue("q", shards=2)
    for half in range(2):
        names = [f"{half} {number}" for number in range(HALF)]
        queue.schedule_many(NewJob(f"buried {name}", "work") for name in names)
        bury_all(queue)
        queue.schedule_many(NewJob(f"failed {name}", "work") for name in names)
        for number in queue.numbers:
            jobs = queue.reserve(number, 250, worker="w").jobs
            queue.settle([fail(job, 1, 2, delay_ms=3_600_000) for job in jobs])
        queue.schedule_many(NewJob(f"waiting {name}", "work", delay_ms=3_600_000) for name in names)
        if half == 0:
            broker.reshard("q", 3)
    assert len(queue.epochs) == 2
    return queue


def places(queue: Queue) -> list[int]:
    """Return how many times ``HALF`` jobs are ready, delayed, failed and in the morgue."""
    counts = Inspector(queue.registry).counts(queue.name)
    return [n // HALF for n in (counts.ready, counts.delayed, counts.failed, counts.morgue)]


def test_every_epoch_is_reached(grown: Queue) -> None:
    assert places(grown) == [0, 4, 2, 2]
    assert bulk.kill_failed(grown) == {"killed": 2 * HALF}
    assert places(grown) == [0, 2, 0, 4]
    assert bulk.run_all_now(grown) == {"moved": 2 * HALF}
    assert bulk.cancel_all(grown) == {"cancelled": 2 * HALF}
    assert bulk.kick_all(grown, delay_ms=3_600_000, per_second=10) == {"kicked": 4 * HALF}
    assert places(grown) == [0, 4, 0, 0]
    dues = sorted(view.due_ms for view in Inspector(grown.registry).page("q", "waiting", limit=250).jobs)
    assert dues[-1] - dues[0] == pytest.approx((4 * HALF - 1) * 100, abs=5000), "at one pace"
    # Nothing comes to life again in shards that take no new ids.
    old = [number for number in grown.numbers if number < 1024]
    assert [len(read_world(grown, number)["lives"]) for number in old] == [0, 0]


def test_ids_are_found_in_every_epoch(grown: Queue) -> None:
    names = [f"buried {half} {number}" for half in range(2) for number in range(HALF)]
    keys = {name: Inspector(grown.registry).graves("q", name)[0].job.key for name in names[::2]}
    late = Broker(grown.deployment.connection, prefix=grown.deployment.prefix).queue("q")
    wanted = [*keys.items(), *names[1::2][:20], "nobody"]
    assert bulk.kick_many(late, wanted, delay_ms=3_600_000) == {"kicked": HALF + 20, "gone": 1}
    assert bulk.discard_many(late, names) == {"discarded": HALF - 20, "gone": HALF + 20}


def test_a_selected_job_is_found_although_the_queue_has_an_old_epoch(broker: Broker) -> None:
    stage = Stage(broker, clock=False)
    stage.put("held")
    stage.take()
    broker.reshard("q", 2)
    cancelled, moved = put(stage, "cancelled", "moved")
    assert len(stage.queue.epochs) == 2
    assert bulk.cancel_selected().anywhere(stage.queue, "cancelled", Generation((cancelled[1],))) == "cancelled"
    move = bulk.reschedule_selected(due_ms=T0)
    assert move.anywhere(stage.queue, "moved", Generation((moved[1],))) == "moved"


# -- while producers push: a payload is deleted with its job, or is not lost -------------------------------------------

SECONDS = 1.0
#: deletions at least, on a machine that gets that far in MOST_SECONDS
DELETIONS = 21
MOST_SECONDS = 60.0


class Producer(threading.Thread):
    """Thread that is the only producer of its ids. A push that creates its job begins a new list of payloads."""

    def __init__(self, queue: Queue, idents: list[str], stop: threading.Event) -> None:
        super().__init__()
        self.queue = queue
        self.stop = stop
        self.expected: dict[str, list[bytes]] = {ident: [] for ident in idents}
        self.created = 0
        self.pushed = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.pushed += 1
                for ident in self.expected:
                    self.push(ident, self.pushed)
        except BaseException as error:
            self.error = error

    def push(self, ident: str, number: int) -> None:
        data = b"%06d" % number
        payload = Payload(data, str(number), new_key())
        outcome = self.queue.schedule(
            NewJob(ident, "sync", payload=payload, on_conflict="merge", due_policy="keep", max_payloads=100_000)
        )
        assert outcome in ("created", "merged", "gated"), outcome
        if outcome == "created":
            self.created += 1
            self.expected[ident] = []
        self.expected[ident].append(data)


def work(queue: Queue, stop: threading.Event) -> None:
    """Fail every job, so that there is always something to delete."""
    while not stop.is_set():
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 4, worker="w").jobs]
        queue.settle([fail(job, 1, 2, delay_ms=50) for job in jobs])


def cancel_matching(queue: Queue) -> Counter[str]:
    return bulk.change(queue, bulk.CANCEL, bulk.JobFilter(task="sync")).counts


@pytest.mark.parametrize(
    ("operate", "done"),
    [(bulk.delete_failed, "deleted"), (cancel_matching, "cancelled"), (bulk.kill_failed, "killed")],
)
def test_t19_a_payload_pushed_while_its_id_is_ended_under_full_load_is_not_lost(
    broker: Broker, operate: Callable[[Queue], dict[str, int]], done: str
) -> None:
    queue, stop = broker.queue("q", shards=2), threading.Event()
    producers = [Producer(queue, [f"{name}-{n}" for n in range(4)], stop) for name in "ab"]
    threads = [*producers, threading.Thread(target=work, args=(queue, stop))]
    for thread in threads:
        thread.start()
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < SECONDS or (counts[done] < DELETIONS and took < MOST_SECONDS):
        counts.update(operate(queue))
    stop.set()
    for thread in threads:
        thread.join()
    assert [producer.error for producer in producers] == [None, None]
    assert counts[done] >= DELETIONS, "they met the load"
    assert_invariants(broker)
    while done == "killed" and broker.inspector.counts("q").morgue:
        bulk.kick_all(queue)

    expected = {ident: payloads for producer in producers for ident, payloads in producer.expected.items()}
    found = {ident: [payload.data for payload in broker.inspector.payloads("q", ident)] for ident in expected}
    if done == "killed":
        pushed = {ident: producer.pushed for producer in producers for ident in producer.expected}
        assert found == {ident: [b"%06d" % number for number in range(1, n + 1)] for ident, n in pushed.items()}
        return
    # Each deletion of a job lets the next push create it. Behind the last one nothing may be missing.
    living = {ident for ident, payloads in found.items() if payloads}
    assert sum(producer.created for producer in producers) == counts[done] + len(living)
    assert {ident: found[ident] for ident in living} == {ident: expected[ident] for ident in living}


# -- jobs that an operator has selected: one is cancelled or moved only if it has not changed since --------------------

Named = tuple[str, bytes]


def cancel(stage: Stage, wanted: list[Named]) -> list[str]:
    return act_in_shard(stage.queue, 0, wanted, bulk.cancel_selected())


def move(stage: Stage, wanted: list[Named], **times: int) -> list[str]:
    return act_in_shard(stage.queue, 0, wanted, bulk.reschedule_selected(**times))


def key_of(stage: Stage, ident: str) -> Named:
    """Return id and key of the job that waits or runs under an id."""
    return ident, stage.view(ident).job.key


def put(stage: Stage, *idents: str, at: int = 60_000) -> list[Named]:
    for ident in idents:
        stage.put(ident, at=at)
    return [key_of(stage, ident) for ident in idents]


@pytest.mark.parametrize("times", [{}, {"due_ms": 1, "delay_ms": 1}, {"due_ms": -1}, {"delay_ms": 10**13}])
def test_a_move_needs_one_time_that_can_be(stage: Stage, times: dict[str, int]) -> None:
    with pytest.raises(InvalidJob):
        act_in_shard(stage.queue, 0, [], bulk.reschedule_selected(**times))
    if len(times) != 1:
        with pytest.raises(InvalidJob, match="either a delay or a due time"):
            stage.queue.reschedule("a", **times)


def test_a_gated_generation_goes_without_its_run_and_with_it(stage: Stage) -> None:
    run, behind = new_key(), new_key()
    stage.put("a")
    stage.put("b", key=run)
    stage.take()
    stage.put("a", key=behind)
    stage.put("b")
    assert cancel(stage, [("a", behind), ("b", run)]) == ["ungated", "stopping"]
    assert stage.picture() == {"reserved": ["a by w until +15000", "b by w until +15000 stopping"]}


def test_payloads_that_a_run_left_behind_are_not_taken_for_gated_ones(stage: Stage) -> None:
    stage.add_many("n", 251)
    (run,) = stage.take()
    stage.add("n", b"new", "999", at=60_000)
    (columns,) = bulk.read_jobs(stage.broker, bulk.Part("q", 0, "gated"))
    assert cancel(stage, [("n", bytes.fromhex(columns["key"][0]))]) == ["running"]
    assert stage.done(run) == [True]
    assert stage.picture()["payloads"] == ["n: 250 new"]


def test_a_cancellation_is_told_as_one_event_and_counted(stage: Stage) -> None:
    wanted = put(stage, *[f"{n:03}" for n in range(250)])
    last = last_position(stage.broker, "q", 0)
    assert cancel(stage, wanted) == ["cancelled"] * 250
    found = read_events(stage.broker, "q", 0, after=last)
    told = [(event.outcome, event.fields["jobs"], event.fields["verb"]) for event in found]
    assert told == [("bulk", jobs, "cancelled") for jobs in ("100", "100", "50")]
    assert stage.counters()["cancelled"] == 250


@pytest.mark.one_server("a cluster wakes by a channel, not by a list")
def test_the_workers_are_woken_when_work_came_nearer(stage: Stage) -> None:
    wanted = put(stage, "a")
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    move(stage, wanted, delay_ms=120_000)
    assert not stage.wake_list()
    move(stage, wanted, delay_ms=0)
    assert stage.wake_list()
    job = stage.take_one()
    stage.failed(job, 60_000)
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    act_in_shard(stage.queue, 0, wanted, actions.retry_failed())
    assert stage.wake_list()


def test_a_call_with_many_payloads_rests_in_between(stage: Stage) -> None:
    for ident in "abcdef":
        stage.add_many(ident, 300)
    seen = [key_of(stage, ident) for ident in "abcdef"]
    with watch_calls(stage.broker) as calls:
        assert cancel(stage, seen) == ["cancelled"] * 6
    assert [call.name for call in calls].count("change") == 2
    assert stage.shard_is_empty()


def test_a_job_that_is_killed_has_the_due_time_at_which_it_waited(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.failed(job, 60_000)
    assert act_in_shard(stage.queue, 0, [("a", job.key)], actions.kill_failed()) == ["buried"]
    assert stage.view("a").due_ms == T0 + 60_000


# -- jobs that meet conditions -----------------------------------------------------------------------------------------


@pytest.fixture
def spread(clocked: Broker) -> Stage:
    return Stage(clocked, shards=3)


def fill(spread: Stage, number: int = 6) -> None:
    """Schedule jobs of north and south in turn, a second apart."""
    for n in range(number):
        customer = "north" if n % 2 == 0 else "south"
        spread.put(f"{customer}-{n}", at=1000 * n + 1000, args=encode_args((customer, n), {}))


def test_each_verb_changes_the_jobs_that_match_and_no_others(spread: Stage) -> None:
    """The conditions themselves are those of a search (``test_search.py``)."""
    fill(spread)
    for ident, times in (("once", 1), ("twice", 2), ("thrice", 3), ("runs", 2)):
        spread.put(ident, at=-1)
        for _ in range(times):
            (job,) = spread.queue.reserve_id(ident, worker="w", early=True).jobs
            assert spread.failed(job, 60_000)
    assert spread.queue.reserve_id("runs", worker="w", early=True).jobs
    assert change(spread, bulk.CANCEL, prefix="north", due_from_ms=T0 + 2000) == {"cancelled": 2}
    assert change(spread, bulk.CANCEL, task="other") == change(spread, bulk.CANCEL, prefix="runs") == {}
    assert change(spread, bulk.RUN_NOW, text='"south"') == {"moved": 3}
    assert change(spread, bulk.KILL_FAILED, failures=3) == {"killed": 1}
    assert change(spread, bulk.DELETE_FAILED, failures=2) == {"deleted": 1}
    due = {view.id: view.due_ms - T0 for view in spread.broker.inspector.page("q", "waiting").jobs}
    assert due == {"south-1": 0, "south-3": 0, "south-5": 0, "north-0": 1000, "once": 60_000}
    assert spread.picture()["morgue"] == ["thrice buried"]


def test_it_stops_in_time_and_the_cursor_continues(spread: Stage) -> None:
    for n in range(700):
        spread.put(f"{'a' if n % 100 == 99 else 'b'}-{n}", at=n + 1)
    where, cursor, counts, calls = bulk.JobFilter(prefix="a"), "", 0, 0
    while cursor or not calls:
        changed = bulk.change(spread.queue, bulk.CANCEL, where, cursor=cursor, seconds=0)
        counts, cursor, calls = counts + changed.counts["cancelled"], changed.cursor, calls + 1
        assert changed.examined <= 250
    assert (counts, calls, len(waiting(spread))) == (7, 3, 250)
    told = ProgressLog()
    bulk.change(spread.queue, bulk.CANCEL, bulk.JobFilter(prefix="b"), progress=told)
    assert told.steps[-1] == (693, 693)


def test_a_job_that_was_replaced_since_it_was_read_is_left_alone(spread: Stage) -> None:
    fill(spread)

    def replace_the_others(view: JobView) -> bool:
        if view.id == "north-4":
            spread.queue.cancel("north-2")
            spread.put("north-2", at=9000)
            assert spread.queue.reserve_id("north-4", worker="w", early=True).jobs
        return True

    where = bulk.JobFilter(prefix="north")
    changed = bulk.change(spread.queue, bulk.CANCEL, where, accepts=replace_the_others)
    assert changed.counts == {"cancelled": 1}
    assert waiting(spread) == ["south-1", "south-3", "south-5", "north-2"]


def test_jobs_that_are_buried_again_meanwhile_are_not_read_twice(spread: Stage) -> None:
    everything_in_morgue(spread, 1600)  # of each shard more than two pages of its index
    pages: list[int] = []

    def bury_another(seen: int, total: int) -> None:
        pages.append(seen)
        spread.wait(1000)
        spread.in_morgue("a-new", at=-1)

    changed = bulk.change(spread.queue, bulk.DISCARD, bulk.JobFilter(task="work"), progress=bury_another)
    assert (changed.counts, changed.cursor, pages) == ({"discarded": 1600}, "", [*range(250, 1600, 250), 1600])
    assert spread.picture()["morgue"] == ["a-new buried"] * 7, "one behind each page"


def test_without_a_condition_all_jobs_are_changed_and_none_is_read(spread: Stage) -> None:
    for ident in "abc":
        spread.put(ident, at=5000)
    with watch_calls(spread.broker) as calls:
        assert change(spread, bulk.CANCEL) == {"cancelled": 3}
    requests = [msgpack.unpackb(call.args[2], raw=True) for call in calls if call.name == "read"]
    assert all(request[b"names"] for request in requests)
