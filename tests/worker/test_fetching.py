"""The fetch loop: how many jobs it takes, and jobs that it finds without a wake-up token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, Job, NewJob, QueueUnavailable, Task, TaskOptions, ack, bury, fail, release
from django_delayq.worker.fetch import ReadinessGate
from tests.support.attempt_stage import Attempt, make_attempt, make_job
from tests.support.core_calls import ScriptCall, held_by, watch_calls
from tests.support.duty_stage import Settling, source_of
from tests.support.worker_stage import (
    DEADLINE,
    Gate,
    Hooks,
    Limits,
    config,
    encode_args,
    eventually,
    is_resting,
    learn_all,
    places,
    put,
    put_unheard,
    registry_of,
    settled_by,
    working,
)


def test_a_worker_takes_no_more_jobs_than_it_is_allowed_to(broker: Broker) -> None:
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)

    put(broker, "work", 0)
    with working(broker, registry_of(work), config(max_jobs=3)) as worker:
        eventually(lambda: ran)
        queue = broker.queue("default")
        of_one_shard = [ident for ident in map(str, range(100)) if queue.shard_of(ident) == 0][:5]
        due = int(broker.now_ms()) + 200  # of all, so that one reserve finds them
        jobs = [NewJob(ident, "work", encode_args((1,), {}), due_ms=due, delay_ms=None) for ident in of_one_shard]
        queue.schedule_many(jobs)
        assert worker.done.wait(DEADLINE)
    assert len(ran) == 3


def test_a_busy_process_prefetches_from_one_shard_while_another_waits_for_its_limit(broker: Broker) -> None:
    gate, registry = Gate(), registry_of(print)
    registry.add(Task(gate.work, name="hold", options=TaskOptions()))
    settings = config(threads=1, queues=("limited", "quick"), limits={"limited": Limits(local=1)}, dispatcher=False)
    for queue in settings.queues:
        broker.queue(queue, shards=1)
    with working(broker, registry, settings) as worker:
        for number, queue in enumerate(("limited", "quick", "quick"), start=1):  # it learns that these jobs are short
            put(broker, "print", queue=queue)
            eventually(lambda expected=number: settled_by(worker) == expected)
        put(broker, "hold", queue="limited")
        gate.wait_begun()
        put(broker, "hold", queue="limited")
        put(broker, "print", queue="quick")
        learn_all(worker)
        eventually(lambda: places(broker, "quick") == {"reserved": 1}, "it holds the short job", seconds=5)
        assert places(broker, "limited") == {"reserved": 1, "ready": 1}
        gate.open()
        eventually(lambda: not places(broker, "quick") and not places(broker, "limited"))


def test_a_job_whose_wake_token_was_lost_is_found(broker: Broker) -> None:
    ran = threading.Event()

    def work() -> None:
        ran.set()

    with working(broker, registry_of(work), config(dispatcher=False, safety_check=0.2)) as worker:
        eventually(lambda: is_resting(worker))
        put_unheard(broker, "work")
        assert ran.wait(DEADLINE)


def test_jobs_of_a_reserve_whose_reply_was_lost_run_uncounted_when_their_leases_end(
    connection: Any, prefix: str
) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    attempts: list[int] = []

    def work() -> None:
        attempts.append(current_job().attempt)

    put(broker, "work")
    queue = broker.queue("default")
    assert queue.reserve(queue.numbers[0], 1, worker="me").jobs, "applied, but the worker never gets the reply"
    with working(broker, registry_of(work), config(name="me", heartbeat=0.1)):
        eventually(lambda: attempts)
    assert attempts == [1]


def test_a_job_whose_reserve_is_answered_after_its_lease_is_not_started_under_it(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    ran, lost = list[str](), list[ScriptCall]()

    def lose_the_first(call: ScriptCall) -> None:
        if call.name == "reserve" and not lost:
            lost.append(call)
            time.sleep(1.2)
            raise QueueUnavailable("gone")

    def work(ident: str) -> None:
        ran.append(ident)

    put(broker, "work", "late", queue="q")
    with (
        watch_calls(broker, after=lose_the_first),
        working(broker, registry_of(work), config(queues=("q",), dispatcher=False)),
    ):
        eventually(lambda: lost)
        put(broker, "work", "next", queue="q")
        eventually(lambda: ran)
        assert ran[0] == "next", "the other one is reserved again first"


# --- ends are stored with patience


LEASE = 15.0


def failing(times: int) -> Callable[[], str]:
    """A call that Redis answers only after so many tries."""
    left = iter(range(times))

    def call() -> str:
        if next(left, None) is not None:
            raise QueueUnavailable("away")
        return "answer"

    return call


@pytest.mark.parametrize("seconds_left", [[-20.0, 5.0], [-3 * LEASE], []])
def test_ends_are_sent_again_until_redis_answers(seconds_left: list[float]) -> None:
    """However long that takes: during an outage no lease is taken, so the end still counts; else the reply says so."""
    now = time.monotonic()
    attempts = [make_attempt(make_job(id=f"j{place}"), deadline=now + left) for place, left in enumerate(seconds_left)]
    settler, call, source = Settling(), failing(1), make_attempt().source
    assert settler.call(call, attempts, source) is None and settler.kept(source) == attempts
    assert settler.call(call, [], source) == "answer"


def test_an_end_that_cannot_be_stored_takes_no_other_with_it(broker: Broker) -> None:
    queue = broker.queue("default", shards=1)
    queue.schedule_many(NewJob(ident, "work") for ident in "abc")
    source = source_of(queue)
    attempts = [
        Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0) for job in queue.reserve(0, 9, worker="w").jobs
    ]
    unstorable: Any = "soon"
    attempts[0].settlement, attempts[2].settlement = ack(attempts[0].job, 1, 1), ack(attempts[2].job, 1, 1)
    attempts[1].settlement = fail(attempts[1].job, 1, 1, delay_ms=unstorable)
    settler = Settling(source)
    settler.settle(attempts)
    assert [job.id for job in held_by(queue, "w")] == ["b"]
    assert settler.settled == 2


def test_an_end_is_stored_although_the_reserve_that_it_was_sent_with_failed(broker: Broker) -> None:
    queue = broker.queue("default", shards=1)
    queue.schedule(NewJob("a", "work"))
    (job,) = queue.reserve(0, 1, worker="w").jobs
    source = source_of(queue)
    attempt = Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0)
    attempt.settlement = ack(job, 1, 1)
    settler = Settling(source)
    settler.held.add(attempt)

    def unreadable() -> None:
        raise ValueError("a reply that cannot be read")

    assert settler.call(unreadable, [attempt], source) is None
    assert (settler.settled, settler.held, list(held_by(queue, "w"))) == (1, set(), [])


def test_all_kinds_of_ends_are_stored_in_one_call_with_the_next_reserve(broker: Broker) -> None:
    """A retry, a release and a burial as well as acks; what is due again at once may come back with the reply."""
    queue = broker.queue("default", shards=1)
    queue.schedule_many(NewJob(ident, "work") for ident in ("done", "failed", "later", "again", "dead", "next"))
    source = source_of(queue)
    jobs = {job.id: job for job in queue.reserve(0, 5, worker="w").jobs}
    attempts = {ident: Attempt(job, source, 0.0, time.monotonic() + LEASE, 0.0) for ident, job in jobs.items()}
    for ident, settlement in (
        ("done", ack(jobs["done"], 1, 1)),
        ("failed", fail(jobs["failed"], 1, 1, delay_ms=60_000)),
        ("later", release(jobs["later"], delay_ms=60_000)),
        ("again", release(jobs["again"])),
        ("dead", bury(jobs["dead"], reason="no")),
    ):
        attempts[ident].settlement = settlement
    settler = Settling(source)
    with watch_calls(broker) as calls:
        fetched = settler.settle_and_reserve(list(attempts.values()), 9)
    assert [call.name for call in calls] == ["settle"]
    assert {attempt.job.id for attempt in fetched} == {"again", "next"}
    assert settler.settled == 5 and settler.held == set(fetched)
    counts = broker.inspector.counts("default")
    assert (counts.delayed, counts.failed, counts.morgue, counts.reserved) == (2, 1, 1, 2)
    assert {job.id for job in held_by(queue, "w")} == {"again", "next"}


# --- a process in which jobs cannot begin


@pytest.mark.one_server("the fetch loop is the same on a cluster")
def test_g1_while_the_database_is_away_few_jobs_are_taken_and_afterwards_all_are_done(broker: Broker) -> None:
    turned_away: list[str] = []
    done: list[int] = []
    away_until: list[float] = []

    def reach(job: Job) -> None:
        if not away_until:
            away_until.append(time.monotonic() + 0.6)
        if time.monotonic() < away_until[0]:
            turned_away.append(job.id)
            raise ConnectionError("the database is away")

    def work(number: int) -> None:
        done.append(number)

    for number in range(100):
        put(broker, "work", number)
    with working(broker, registry_of(work), config(threads=3), Hooks(before_job=reach)):
        eventually(lambda: len(done) == 100, "the end of all jobs")
    assert sorted(done) == list(range(100))
    assert 3 <= len(turned_away) <= 12, "two or three rounds of what three threads hold"


def test_pauses_grow_while_no_job_can_begin_and_end_with_the_first_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    readiness, pauses = ReadinessGate(), []
    for _ in range(7):
        readiness.unfit()
        readiness.unfit()  # the next job in hand
        pauses.append(readiness.until - now[0])
        now[0] = readiness.until
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0] and readiness.in_doubt
    readiness.fit()
    assert readiness.until == 0.0 and not readiness.in_doubt
    readiness.unfit()
    assert readiness.until - now[0] == 0.5
