"""Reserving, and the combined settle_reserve."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_delayq import priority_of_u32
from django_delayq.core import InvalidJob, Job, NewJob, ack
from tests.support.core_stored import LaneNotes, check_stored

from .bulk_stage import Part, cancel_all, read_entries, read_jobs, run_all_now, search
from .epochs_stage import epoch_of, reshard
from .stage import LEASE, T0, Stage


def test_the_limit_holds_and_all_jobs_of_a_batch_share_a_token(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(300))
    first, second = stage.take(5), stage.take(1000)
    assert (len(first), len(second)) == (5, 250)
    assert len({job.token for job in first}) == 1
    assert second[0].token > first[0].token


def test_the_fused_move_answers_for_each_ack_in_order(stage: Stage) -> None:
    for ident in "abcd":
        stage.put(ident)
    a, b, c = stage.take(3)
    stage.done(b)
    acks = [ack(a, 0, 0), ack(b, 0, 0), ack(c, 0, 0), ack(a, 0, 0)]
    counted, batch = stage.queue.settle_reserve(0, acks, 5, worker="w")
    assert counted == [True, False, True, False]
    assert [job.id for job in batch.jobs] == ["d"]


@pytest.mark.parametrize(
    "options", [b'{"expires', b'["expires_ms"]', b'{"expires_ms":"soon"}', b"[" * 60_000 + b'"expires']
)
def test_a_limit_that_cannot_be_read_holds_up_no_other_job(stage: Stage, options: bytes) -> None:
    """The worker reports the malformed limit when the job is due, whatever wrote it."""
    stage.put("a", options=options)
    stage.put("b")
    assert [job.id for job in stage.take()] == ["a", "b"]


def test_sent_again_the_call_hands_out_nothing_of_another_worker(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    first = stage.batch(1, worker="one", request=b"1" * 16)
    second = stage.batch(1, worker="two", request=b"2" * 16)
    assert [job.id for job in stage.batch(1, worker="one", request=b"1" * 16).jobs] == ["a"]
    assert [job.id for job in stage.batch(1, worker="two", request=b"2" * 16).jobs] == ["b"]
    assert first.jobs[0].token != second.jobs[0].token


def test_a_batch_of_large_jobs_ends_where_a_reply_can_bear_no_more(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number:03d}", "work", args=b"x" * 100_000) for number in range(100))
    first = stage.take()
    size = sum(len(job.args) for job in first)
    assert 4 * 1024 * 1024 < size < 8 * 1024 * 1024
    assert [job.id for job in first + stage.take()] == [f"j{number:03d}" for number in range(100)]


def test_the_merged_jobs_of_a_batch_share_what_a_reply_can_bear(stage: Stage) -> None:
    for ident in "abc":
        for number in range(60):
            stage.add(ident, b"%03d" % number + b"x" * 100_000, str(number))
    found: dict[str, list[int]] = {}
    sizes = []
    while jobs := stage.take():
        sizes.append(sum(len(payload.data) for job in jobs for payload in job.payloads))
        for job in jobs:
            found.setdefault(job.id, []).extend(int(payload.data[:3]) for payload in job.payloads)
        stage.done(*jobs)
    assert max(sizes) < 12 * 1024 * 1024, "as if each of them had a reply of its own"
    assert found == {ident: list(range(60)) for ident in "abc"}


# -- row 8: priorities of other systems as classes of a queue ----------------------------------------------------------


U32 = st.integers(0, 2**32 - 1)


@given(U32, U32)
def test_a_more_urgent_job_never_gets_a_later_class(one: int, other: int) -> None:
    assert priority_of_u32(min(one, other)) <= priority_of_u32(max(one, other))


def test_the_classes_begin_where_the_document_says_and_what_is_no_u32_is_refused() -> None:
    begins = [0, 1, 16, 512, 8192, 262_144, 4_194_304, 134_217_728]
    assert [priority_of_u32(first) for first in begins] == list(range(8))
    assert [priority_of_u32(first - 1) for first in begins[1:]] == list(range(7))
    assert (priority_of_u32(2**32 - 1), priority_of_u32(65_536)) == (7, 4)
    wrong: Any
    for wrong in (-1, 2**32, 1.0, True, "5", None):
        with pytest.raises(InvalidJob, match=r"priority must be (0 to 4294967295|an int)"):
            priority_of_u32(wrong)


# -- row 26: strict priorities with a bound. A due job that has waited too long goes before more urgent ones -----------


@pytest.fixture
def bounded(stage: Stage) -> Stage:
    """Return a queue whose due jobs starve after a second."""
    stage.broker.limit("q", starve_after=1)
    return stage


def fill(stage: Stage, priority: int, jobs: int = 20, *, at: int | None = None) -> None:
    """Schedule jobs "<priority>-<n>"."""
    due: dict[str, Any] = {} if at is None else {"due_ms": T0 + at, "delay_ms": None}
    stage.queue.schedule_many(NewJob(f"{priority}-{n}", "work", priority=priority, **due) for n in range(jobs))


def classes(ids: list[str]) -> dict[str, int]:
    """Return how many jobs of each class are among some ids."""
    return dict(Counter(ident.partition("-")[0] for ident in ids))


def ids(stage: Stage, n: int) -> list[str]:
    """Reserve jobs; return their ids in their order."""
    return [job.id for job in stage.take(n)]


#: what is scheduled: after how many ms, in which class, how many jobs; the due jobs taken at the end, by class
STARVING: dict[str, tuple[list[tuple[int, int, int]], dict[str, int]]] = {
    "nobody below the bound": ([(0, 7, 20), (999, 0, 20)], {"0": 12}),
    "at the bound the first place": ([(0, 7, 20), (1000, 0, 3)], {"7": 1, "0": 3}),
    "a quarter, so that urgent ones do not starve in turn": (
        [(0, 7, 20), (0, 0, 20), (60_000, 0, 0)],
        {"7": 3, "0": 9},
    ),
    "the class that starves longest": ([(0, 5, 20), (10, 3, 20), (2000, 0, 20)], {"5": 3, "0": 9}),
    "only jobs beyond the bound": ([(0, 7, 1), (1000, 6, 20), (0, 0, 20)], {"7": 1, "0": 11}),
}


@pytest.mark.parametrize("name", STARVING)
def test_t52_jobs_that_wait_longer_than_the_bound_get_a_quarter_of_the_places(bounded: Stage, name: str) -> None:
    scheduled, expected = STARVING[name]
    for ms, priority, jobs in scheduled:
        bounded.wait(ms)
        fill(bounded, priority, jobs)
    found = ids(bounded, sum(expected.values()))
    assert classes(found) == expected
    if name == "at the bound the first place":
        assert found[0] == "7-0"


def test_a_delayed_job_starves_from_its_due_time_on(bounded: Stage) -> None:
    fill(bounded, 7, at=5000)
    fill(bounded, 0)
    bounded.wait(5999)
    assert classes(ids(bounded, 4)) == {"0": 4}
    bounded.wait(1)
    assert classes(ids(bounded, 4)) == {"7": 1, "0": 3}


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_t52_the_share_holds_for_calls_for_few_jobs(bounded: Stage, limit: int) -> None:
    fill(bounded, 7, 200)
    fill(bounded, 0, 600)
    bounded.wait(60_000)
    found: Counter[str] = Counter()
    for _ in range(240 // limit):
        bounded.wait(1.37)
        found.update(classes(ids(bounded, limit)))
    assert sum(found.values()) == 240
    assert found["7"] == pytest.approx(60, abs=12), found


def test_a_bound_holds_for_weighted_classes_too(bounded: Stage) -> None:
    bounded.broker.limit("q", priorities="weighted")
    for priority in range(8):
        fill(bounded, priority, 60)
    bounded.wait(60_000)
    assert all(set(classes(ids(bounded, 12)).values()) != {12} for _ in range(20))


def test_a_job_that_starves_keeps_to_the_limit_of_its_task(bounded: Stage) -> None:
    for n in range(20):
        bounded.put(f"7-{n}", priority=7, task="limited")
    bounded.wait(1000)
    fill(bounded, 0)
    batch = bounded.batch(12, lanes=LaneNotes(["limited"], most=1).pack())
    assert classes([job.id for job in batch.jobs]) == {"0": 11}
    assert (batch.moved, [offer.jobs for offer in batch.offers]) == (20, [1])


@pytest.mark.server
@pytest.mark.one_server("counts the commands of one server")
def test_a_bound_costs_nothing_where_there_is_none(stage: Stage) -> None:
    def commands() -> int:
        before = stage.broker.client.info("commandstats")["cmdstat_zrange"]["calls"]
        stage.take(4)
        after: int = stage.broker.client.info("commandstats")["cmdstat_zrange"]["calls"]
        return after - before

    for priority in (0, 4, 7):
        fill(stage, priority)
    without = commands()
    stage.broker.limit("q", morgue_max=1000)
    assert commands() == without
    stage.broker.limit("q", starve_after=60)
    assert commands() == without + 3  # one for each class in use


# -- quarantined jobs: in a separate set, from which jobs are reserved only on request ---------------------------------


def suspect(stage: Stage, ident: str, *, delay_ms: int = 0, **options: object) -> Job:
    """Schedule a job and let its process die during the attempt."""
    stage.put(ident, **options)
    (job,) = stage.batch(which="others").jobs
    assert stage.failed(job, delay_ms, outcome="crashed", quarantine=True)
    return job


def reserved(stage: Stage, which: str, n: int = 10) -> list[str]:
    return [job.id for job in stage.batch(n, which=which).jobs]


def test_quarantined_jobs_are_counted_and_do_not_make_the_queue_lag(stage: Stage) -> None:
    suspect(stage, "suspect")
    stage.wait(73_000)
    stage.put("later", at=90_000)
    counts = stage.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.quarantine, counts.lag_seconds) == (1, 1, 1, 0)


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_crash_wakes_somebody_who_sees_that_a_job_waits_for_quarantine(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    stage.failed(job, outcome="crashed", quarantine=True)
    assert stage.wake_list() == [b"0"]
    assert reserved(stage, "quarantined") == ["a"]
    assert stage.wake_list() == [b"0"], "who takes quarantined jobs leaves the tokens alone"


def test_everything_that_is_done_with_waiting_jobs_finds_the_quarantined_ones(stage: Stage) -> None:
    job = suspect(stage, "a", delay_ms=5_000, args=b'["needle"]', priority=2)
    inspector, part = stage.broker.inspector, Part("q", 0, "waiting")
    assert [view.id for view in inspector.page("q", "waiting").jobs] == ["a"]
    view = inspector.get("q", "a")
    assert view is not None and (view.state, view.job.quarantined) == ("delayed", True)
    assert [found.id for found in search(stage.broker, "needle", places=("waiting",))] == ["a"]
    assert [columns["id"] for columns in read_jobs(stage.broker, part)] == [["a"]]
    assert [columns["id"] for columns in read_entries(stage.broker, part)] == [["a"]]
    assert check_stored(stage.broker).violations == []
    assert stage.queue.reschedule("a", delay_ms=9_000)
    assert stage.picture()["waiting"] == ["a +9000 quarantined"]
    assert run_all_now(stage.queue) == {"moved": 1}
    assert stage.picture()["waiting"] == ["a +0 quarantined"]
    assert stage.queue.reserve_id("a", worker="w").jobs[0].key == job.key
    suspect(stage, "b")
    assert cancel_all(stage.queue) == {"cancelled": 1}
    suspect(stage, "c")
    assert stage.queue.cancel("c") == "cancelled"
    assert stage.picture()["reserved"] == [f"a by w until +{LEASE} quarantined"]


def test_a_quarantined_job_in_a_wrong_place_is_found_and_mended(stage: Stage) -> None:
    suspect(stage, "a")
    stage.broker.client.zrem(stage.key("quarantine"), "a")
    stage.broker.client.zadd(stage.key("due.4"), {"a": 5})
    assert "wrong priority class" in check_stored(stage.broker, repair=True).violations[0]
    assert check_stored(stage.broker).violations == []
    assert reserved(stage, "quarantined") == ["a"]


# -- reserve of a buried job by its id; beanstalkd's ``reserve-job`` is the model --------------------------------------


def take(stage: Stage, ident: str, *, worker: str = "w", **options: Any) -> Job | None:
    batch = stage.queue.reserve_id(ident, worker=worker, buried=True, **options)
    return batch.jobs[0] if batch.jobs else None


def test_a_buried_job_is_reserved_by_its_id_unless_its_queue_is_paused(stage: Stage) -> None:
    stage.in_morgue("a")
    stage.broker.pause("q", "out")
    assert take(stage, "a") is None
    assert stage.picture() == {"morgue": ["a buried"]}
    stage.broker.resume("q", "out")
    assert take(stage, "a", ttr_ms=2000) is not None
    assert stage.picture() == {"reserved": ["a by w until +2000"]}, "and nobody says that it has begun"


@pytest.mark.usefixtures("impatient")
def test_a_record_of_an_old_epoch_comes_back_in_the_new_one(full: Stage) -> None:
    reshard(full, 5)
    job = take(full, "dead")
    assert job is not None
    assert (epoch_of(full.queue, "dead"), job.args) == (1, b"[9]")
    assert "morgue" not in full.picture()


@pytest.mark.usefixtures("impatient")
def test_a_job_that_waits_in_an_old_epoch_is_no_reason_to_kick(full: Stage) -> None:
    full.in_morgue("both")
    full.put("both", at=800_000)
    reshard(full, 5)
    assert take(full, "both") is None
    assert "both buried" in full.picture()["morgue"]
