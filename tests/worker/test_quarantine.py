"""A dead process stops no healthy work: what ran in it runs again in quarantine, and everything else goes on."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, fail, release
from django_delayq.worker.supervisor import LONG_LIFE, Place
from tests.support.attempt_stage import make_job
from tests.support.supervisor_stage import Program, Slot, alive, decided, record_of
from tests.support.worker_stage import DEADLINE, STARTED, config, eventually, places, put, registry_of, working

from ..support.seeds import seed_of_run

MakeProgram = Callable[..., Program]


def quarantine_workers(broker: Broker) -> list[dict[str, Any]]:
    return [worker for worker in broker.workers() if worker["quarantine"]]


def quarantined(broker: Broker, task: str, *args: Any, **options: Any) -> str:
    """Put a job in whose process died under it, as if a supervisor that is gone had settled it."""
    ident = put(broker, task, *args, **options)
    queue = broker.queue("default")
    (job,) = queue.reserve_id(ident, worker="dead").jobs
    assert queue.settle([fail(job, 0, 0, delay_ms=0, outcome="crashed", quarantine=True)]) == [True]
    return ident


def kill_the_process_of(begun: list[tuple[str, str, int, int]]) -> int:
    """SIGKILL for the one process in which these jobs run."""
    (pid,) = {entry[3] for entry in begun}
    os.kill(pid, signal.SIGKILL)
    return pid


def test_twenty_short_jobs_behind_five_suspects_do_not_wait(program: MakeProgram, broker: Broker) -> None:
    for number in range(5):
        put(broker, "wait", id=f"suspect-{number}")
    running = program(threads=5)
    dead = kill_the_process_of(running.await_words("begun", 5))
    again = running.await_words("begun", 7)[5:]
    for number in range(20):
        put(broker, "note", id=f"short-{number}")
    short = running.await_words("ran", 20)
    assert {entry[2] for entry in short} == {1}
    assert {entry[3] for entry in short}.isdisjoint({dead, *(entry[3] for entry in again)}), "quarantine runs suspects"
    running.client.rpush("release", *range(5))
    eventually(lambda: places(broker) == {})
    ended = [entry for entry in running.trace() if entry[0] == "ended"]
    assert sorted(entry[1:3] for entry in ended) == [(f"suspect-{number}", 2) for number in range(5)]
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_six_jobs_of_a_killed_child_run_again_each_in_a_process_of_its_own_as_many_at_once_as_allowed(
    program: MakeProgram,
    broker: Broker,
) -> None:
    for number in range(6):
        put(broker, "wait", id=f"long-{number}")
    running = program(threads=6, quarantine=3, heartbeat=0.2)
    kill_the_process_of(running.await_words("begun", 6))
    again = running.await_words("begun", 9)[6:]
    assert len({entry[3] for entry in again}) == 3
    (counts,) = [counts for counts in broker.inspector.all_counts() if counts.queue == "default"]
    assert (counts.quarantine, counts.reserved) == (3, 3)
    shown = eventually(lambda: len(found := [w for w in quarantine_workers(broker) if w["jobs"]]) == 3 and found)
    assert sorted(worker["jobs"][0]["id"] for worker in shown) == sorted(entry[1] for entry in again)
    assert {(worker["threads"], worker["dispatcher"]) for worker in shown} == {(1, False)}
    running.client.rpush("release", *range(6))
    eventually(lambda: places(broker) == {})
    assert sorted((ident, attempt) for word, ident, attempt, _ in running.trace() if word == "ended") == [
        (f"long-{number}", 2) for number in range(6)
    ]
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_the_loss_of_a_host_is_counted_and_quarantines_nothing(program: MakeProgram, broker: Broker) -> None:
    for number in range(3):
        put(broker, "wait", id=f"held-{number}")
    gone = program(threads=3, lease=1500, heartbeat=0.2)
    begun = gone.await_words("begun", 3)
    eventually(lambda: all(job.flags & STARTED for job in broker.queue("default").leases(0)), "known starts")
    gone.signal(signal.SIGKILL)
    kill_the_process_of(begun)
    gone.wait()
    stays = program(threads=3, lease=1500, heartbeat=0.2)
    again = stays.await_words("begun", 6)[3:]
    assert len({entry[3] for entry in again}) == 1, "all at the same time in one ordinary process"
    assert {entry[2] for entry in again} == {2}
    jobs = broker.queue("default").leases(0)
    assert {(job.quarantined, job.failures, job.crashes, job.own_crashes) for job in jobs} == {(False, 1, 1, 0)}
    assert quarantine_workers(broker) == []
    stays.client.rpush("release", *range(3))
    eventually(lambda: places(broker) == {})
    stays.signal(signal.SIGTERM)
    assert stays.wait() == 0


def test_a_quarantine_process_takes_the_next_job_and_ends_when_none_comes(program: MakeProgram, broker: Broker) -> None:
    quarantined(broker, "note", id="first")
    running = program(quarantine_idle=3.0)
    put(broker, "note", id="other")
    first, other = sorted(running.await_words("ran", 2), key=lambda entry: entry[1])
    assert (first[2], other[2], first[3] != other[3]) == (2, 1, True), "not in one process"
    put(broker, "wait", id="second")
    kill_the_process_of(running.await_words("begun"))
    again = running.await_words("begun", 2)[1]
    assert again[3] == first[3], "it was called"
    running.client.rpush("release", 1)
    eventually(lambda: not alive(first[3]), "the end of the quarantine process")
    assert quarantine_workers(broker) == [] and places(broker) == {}
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_job_in_quarantine_that_ignores_its_time_limit_pays_for_it_and_the_next_one_runs(
    program: MakeProgram,
    broker: Broker,
) -> None:
    quarantined(broker, "stubborn", id="stubborn", options=b'{"max_attempts":2}')
    quarantined(broker, "note", id="next")
    running = program(grace=0.5, patience=0.3, quarantine=1)
    running.await_words("ran")
    eventually(lambda: places(broker) == {"morgue": 1})
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.id, grave.reason, grave.job.crashes) == ("stubborn", "exhausted", 1)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


# --- without a supervisor


def test_a_worker_without_a_supervisor_runs_suspects_like_all_others(broker: Broker) -> None:
    gate, begun = threading.Event(), threading.Barrier(3)

    def work() -> None:
        begun.wait(DEADLINE)
        gate.wait(DEADLINE)

    quarantined(broker, "work", id="suspect")
    put(broker, "work", id="other")
    with working(broker, registry_of(work)):
        begun.wait(DEADLINE)  # both at the same time
        gate.set()
        eventually(lambda: places(broker) == {})


def test_the_start_of_a_job_that_was_lost_unclearly_is_recorded_before_it_happens(broker: Broker) -> None:
    queue = broker.queue("default")
    put(broker, "work", id="unclear")
    queue.settle([release(queue.reserve(0, 1, worker="dead").jobs[0], unclear=True)])
    known: list[bool] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        known.append(all(job.flags & STARTED for job in queue.leases(0)))

    with working(broker, registry_of(work), config(heartbeat=60.0)):
        eventually(lambda: places(broker) == {})
    assert known == [True]


# --- what a supervisor decides


@pytest.mark.parametrize(
    ("records", "own"),
    [
        ([record_of("a")], True),
        ([record_of("a"), record_of("b")], False),
        ([record_of("a"), record_of("b", ended=True)], False),
        ([record_of("a"), record_of("gone", ended=True)], True),
        ([record_of("a", ended=True)], True),
        ([record_of("a"), record_of("acked early")], False),
        ([record_of("a", beside=["another"])], False),
    ],
)
def test_a_crash_is_surely_a_jobs_own_only_if_nothing_else_can_have_caused_it(records: list[Slot], own: bool) -> None:
    """``gone`` ended and was acked; ``acked early`` runs and is in Redis no more."""
    jobs = [make_job(id="a"), make_job(id="b")]
    settlements = decided(jobs, records)
    (first, *_) = settlements
    assert (first.outcome, first.own_crash, first.quarantine) == ("crashed", own, True)


def test_nobody_is_suspected_when_a_process_ends_on_purpose() -> None:
    jobs = [make_job(id="a"), make_job(id="b", quarantined=True), make_job(id="waiting")]
    settlements = decided(jobs, [record_of("a"), record_of("b")], planned=True)
    assert [(one.outcome, one.quarantine) for one in settlements] == [
        ("released", False),
        ("released", True),
        ("released", False),
    ]


# --- the ids of a deadly call


def child(*, born: float, ready: bool = True) -> Any:
    return SimpleNamespace(born=born, board=SimpleNamespace(ready=born + 0.1 if ready else 0.0))


def pauses(place: Place, deaths: int, *, ready: bool = True, expected: bool = False) -> list[float]:
    """The pauses behind so many children that died a second after their start."""
    found = []
    for number in range(deaths):
        now = 100.0 * number
        place.plan_restart(child(born=now - 1, ready=ready), now, expected=expected)
        found.append(place.start_at - now)
    return found


def test_the_first_three_children_that_die_fast_are_replaced_at_once_and_the_next_ones_after_pauses() -> None:
    assert pauses(Place(0), 11) == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_child_that_lived_for_a_while_or_ended_on_purpose_ends_the_pauses() -> None:
    place = Place(0)
    assert pauses(place, 5)[-1] == 2
    place.plan_restart(child(born=1000 - LONG_LIFE), 1000, expected=False)
    assert (place.start_at, pauses(place, 4)) == (1000, [0, 0, 0, 1])
    assert pauses(place, 1, expected=True) == [0] and pauses(place, 3) == [0, 0, 0]


def test_a_quarantine_child_that_died_at_work_is_replaced_at_once_and_one_that_never_served_is_not() -> None:
    place = Place(3, quarantine=True)
    assert pauses(place, 6) == [0] * 6
    assert pauses(place, 5, ready=False) == [0, 0, 0, 1, 2]


# --- innocent jobs beside poisonous ones, in random worlds


CRASH_LIMIT = 2  # of the task "deadly"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_innocent_job_is_buried_beside_a_poisonous_one(
    program: Callable[..., Program],
    broker: Broker,
    seed: int,
) -> None:
    live_beside_poison(program, broker, random.Random(seed), innocents=40, poisonous=1)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(20))
def test_no_innocent_job_is_buried_beside_many_poisonous_ones(
    program: Callable[..., Program],
    broker: Broker,
    round_: int,
) -> None:
    seed = seed_of_run()
    live_beside_poison(program, broker, random.Random(seed), innocents=150, poisonous=random.Random(seed).randint(2, 5))


def live_beside_poison(
    program: Callable[..., Program],
    broker: Broker,
    dice: random.Random,
    *,
    innocents: int,
    poisonous: int,
) -> None:
    """Only poison is buried, for crashes of its own, and nothing else starts more than twice."""
    jobs = [("brief", f"innocent-{number}", dice.choice((1, 1, 2, 26))) for number in range(innocents)]
    jobs += [("deadly", f"poison-{number}", 26) for number in range(poisonous)]
    dice.shuffle(jobs)
    for task, ident, most in jobs:
        put(broker, task, dice.uniform(0, 0.1), id=ident, options=b'{"max_attempts":%d}' % most)
    running = program(processes=dice.randint(1, 3), threads=dice.randint(2, 4), quarantine=dice.randint(1, 3))
    eventually(lambda: hasten(broker, poisonous) and places(broker) == {"morgue": poisonous}, "an end", seconds=90)

    graves = {view.id: view for view in broker.inspector.page("default", "morgue", limit=250).jobs}
    assert sorted(graves) == sorted(ident for task, ident, _ in jobs if task == "deadly")
    starts = Counter(ident for word, ident, _, _ in running.trace() if word == "begun")
    for ident, view in graves.items():
        assert view.reason == "poison"
        # One crash beside others, of which nobody knows whose it was; from then on each is its own.
        assert CRASH_LIMIT <= view.job.crashes == starts[ident] <= CRASH_LIMIT + 1
    ended = Counter(ident for word, ident, _, _ in running.trace() if word == "ended")
    for task, ident, _ in jobs:
        if task == "brief":
            assert 1 <= ended[ident] <= starts[ident] <= 2, f"{ident}: nothing but its neighbour's crash runs it again"
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def hasten(broker: Broker, poisonous: int) -> bool:
    """The second and later crashes are tried again after ten seconds and more: do not wait for that."""
    for number in range(poisonous):
        broker.queue("default").run_now(f"poison-{number}")
    return True
