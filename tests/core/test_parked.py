"""Jobs in lanes: behind a limit; a shard offers them, and hands them out if that is granted. All verbs know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Batch, NewJob, fail
from tests.support.core_stored import Block, Grant, LaneNotes, assert_invariants, check_stored

from .bulk_stage import Part, cancel_all, read_entries, read_jobs
from .stage import Stage

QUEUE, TASK = "queue:q", "task:limited"


def notes(*blocks: Block, grants: list[Grant] | None = None, **changes: Any) -> bytes:
    """Return what a caller says that knows one limited task."""
    said: dict[str, Any] = {"tasks": ["limited"], "most": 100} | changes
    return LaneNotes(**said, blocks=list(blocks), grants=grants or []).pack()


def asked(stage: Stage, n: int = 100, *blocks: Block, which: str = "all", **changes: Any) -> Batch:
    return stage.batch(n, lanes=notes(*blocks, **changes), which=which)


def granted(stage: Stage, jobs: int, n: int = 100, limits: tuple[str, ...] = (TASK,), **changes: Any) -> list[str]:
    """Reserve jobs behind limits: all offers together get so many."""
    grants = []
    for offer in asked(stage, n, **changes).offers:
        share = min(offer.jobs, jobs)
        jobs -= share
        grants += [Grant(offer, share, limits)] if share else []
    return [job.id for job in asked(stage, n, grants=grants, **changes).jobs]


def offered(batch: Batch) -> list[tuple[str, int]]:
    return [(offer.task, offer.jobs) for offer in batch.offers]


def parked(stage: Stage) -> list[str]:
    return [ident.decode() for ident in stage.broker.client.zrange(stage.key("lane"), 0, -1)]


def reserved(stage: Stage, n: int = 100, **options: Any) -> list[str]:
    return [job.id for job in stage.batch(n, **options).jobs]


@pytest.fixture
def behind(stage: Stage) -> Stage:
    """Three jobs in a lane."""
    for ident in ("a", "b", "c"):
        stage.put(ident, task="limited")
    batch = asked(stage)
    assert (batch.jobs, batch.moved, offered(batch), batch.next_due_ms) == ([], 3, [("limited", 3)], 0)
    return stage


# -- offers and grants -----------------------------------------------------------------------------------------------


def test_jobs_behind_a_limit_are_offered_and_others_are_handed_out(stage: Stage) -> None:
    for number in range(600):
        stage.put(f"limited-{number}", task="limited", priority=0)
    stage.put("other")
    batch = asked(stage, 10, most=2)
    assert [job.id for job in batch.jobs] == ["other"]
    assert (batch.moved, offered(batch)) == (600, [("limited", 2)])


def test_a_lane_is_handed_out_by_due_time_and_urgent_ones_are_offered_first(behind: Stage) -> None:
    behind.put("urgent", task="limited", priority=0)
    assert offered(asked(behind)) == [("limited", 1), ("limited", 3)]
    assert granted(behind, 2) == ["urgent", "a"]
    assert granted(behind, 9) == ["b", "c"]


def test_an_offer_is_bounded_by_the_room_and_by_what_the_caller_can_start(behind: Stage) -> None:
    assert offered(asked(behind, 2)) == [("limited", 2)]
    assert offered(asked(behind, 100, most=1)) == [("limited", 1)]
    assert offered(asked(behind, 0)) == []


def test_plain_jobs_and_lanes_share_the_room(behind: Stage) -> None:
    for number in range(20):
        behind.put(f"limited-{number}", task="limited")
    assert asked(behind).moved == 20
    for number in range(50):
        behind.put(f"plain-{number}")
    for _ in range(3):
        batch = asked(behind, 10)
        assert (len(batch.jobs), offered(batch)) == (5, [("limited", 5)])
        behind.wait(1)


def test_with_room_for_one_job_either_a_plain_one_or_a_lane_has_its_turn(behind: Stage) -> None:
    for number in range(40):
        behind.put(f"plain-{number}")
    turns = []
    for _ in range(40):
        batch = asked(behind, 1)
        turns.append(len(batch.jobs))
        assert len(batch.jobs) + len(batch.offers) == 1
        behind.wait(7)
    assert 10 <= sum(turns) <= 30


def test_a_granted_job_has_its_permit_until_its_end(behind: Stage) -> None:
    (offer,) = asked(behind).offers
    grant = Grant(offer, 2, (QUEUE, TASK))
    jobs = asked(behind, 100, grants=[grant], most=0).jobs
    assert [job.permit for job in jobs] == grant.permits
    name, *limits = jobs[0].permit.split(b"\0")
    assert (name.endswith(b".\1"), limits) == (True, [QUEUE.encode(), TASK.encode()])
    assert [one.permit for one in behind.queue.leases(0)] == grant.permits
    assert behind.released(jobs[0])
    (again,) = [job for job in behind.batch(100).jobs if job.id == "a"]
    assert again.permit == b""


def test_no_lease_ends_after_its_permit(behind: Stage) -> None:
    (offer,) = asked(behind).offers
    assert offer.ms == 16_500
    behind.wait(1501)
    assert asked(behind, 100, grants=[Grant(offer, 3, (TASK,))], most=0).jobs == []
    (offer,) = asked(behind).offers
    behind.wait(1500)
    assert len(asked(behind, 100, grants=[Grant(offer, 3, (TASK,))], most=0).jobs) == 3


def test_a_job_with_a_ttr_of_its_own_asks_for_a_permit_that_lasts_as_long(stage: Stage) -> None:
    stage.put("a", task="limited", options=b'{"ttr_ms":600000}')
    stage.put("b", task="limited")
    (offer,) = stage.batch(5, lanes=notes(), ttr_ms=60_000, prefer_own_ttr=True).offers
    assert (offer.jobs, offer.ms) == (2, 660_000)
    grants = [Grant(replace(offer, ends_ms=offer.ends_ms - 100_000), 2, (TASK,))]
    assert stage.batch(5, lanes=notes(grants=grants, most=0), ttr_ms=60_000, prefer_own_ttr=True).jobs == []
    grants = [Grant(offer, 2, (TASK,))]
    assert len(stage.batch(5, lanes=notes(grants=grants, most=0), ttr_ms=60_000, prefer_own_ttr=True).jobs) == 2


def test_a_caller_without_limits_takes_all(behind: Stage) -> None:
    asked(behind, 0, Block(TASK, 1, 5000, asked(behind).offers[0].lane[-3:-1]))
    assert reserved(behind) == ["a", "b", "c"]
    assert parked(behind) == []


def test_aliases_of_a_task_have_lanes_of_their_own_and_one_block(stage: Stage) -> None:
    stage.put("old", task="former")
    stage.put("new", task="limited")
    names = {"tasks": ["limited", "former"]}
    one, two = asked(stage, **names).offers
    assert {one.task, two.task} == {"former", "limited"}
    batch = asked(stage, 100, *(Block(TASK, 1, 5000, offer.lane[-3:-1]) for offer in (one, two)), **names)
    assert (batch.offers, batch.next_due_ms) == ([], 5000)
    assert len(asked(stage, 100, Block(TASK, 2), **names).offers) == 2


# -- blocks ----------------------------------------------------------------------------------------------------------


def code_of(stage: Stage) -> bytes:
    return bytes(stage.broker.client.zrange(stage.key("turns"), 0, 0)[0][-3:-1])


def test_a_blocked_task_rests_until_the_moment_that_the_limiter_named(behind: Stage) -> None:
    behind.put("other")
    batch = asked(behind, 100, Block(TASK, 10, 3000, code_of(behind)))
    assert ([job.id for job in batch.jobs], batch.offers, batch.next_due_ms) == (["other"], [], 3000)
    behind.wait(2999)
    assert asked(behind).next_due_ms == 1
    behind.wait(1)
    assert offered(asked(behind)) == [("limited", 3)]


@pytest.mark.parametrize("limit", [QUEUE, TASK])
def test_a_block_that_arrives_after_a_newer_release_is_ignored(behind: Stage, limit: str) -> None:
    block = Block(limit, 10, 3000, code_of(behind))
    asked(behind, 0, block, Block(limit, 12))
    assert len(asked(behind, 100, replace(block, at_us=11)).offers) == 1
    assert asked(behind, 100, replace(block, at_us=13)).offers == []
    asked(behind, 0, Block(limit, 12))
    assert asked(behind).offers == [], "an older release does not end a newer block"


@pytest.mark.parametrize("limit", [TASK, QUEUE])
@pytest.mark.parametrize("is_end_first", [True, False])
def test_a_block_and_its_end_in_the_same_reply_leave_no_block_in_whatever_order_they_arrive(
    behind: Stage, limit: str, is_end_first: bool
) -> None:
    answers = [Block(limit, 10, 3000, code_of(behind)), Block(limit, 10)]
    for answer in reversed(answers) if is_end_first else answers:
        asked(behind, 0, answer)
    assert len(asked(behind, 100).offers) == 1


def test_a_block_by_a_limiter_that_cannot_be_asked_has_no_age(behind: Stage) -> None:
    code = code_of(behind)
    asked(behind, 0, Block(TASK, 10**15, 0, code))
    assert asked(behind, 100, Block(TASK, 0, 1000, code)).offers == []
    assert len(asked(behind, 100, Block(TASK, 10**15 + 1)).offers) == 1


def test_a_release_wakes_a_consumer(behind: Stage) -> None:
    wake = behind.broker.wake_key("q")
    asked(behind, 100, Block(TASK, 10, 3000, code_of(behind)))
    assert not behind.broker.client.exists(wake)
    assert asked(behind, 0, Block(TASK, 11)).idle == []
    assert behind.broker.client.lrange(wake, 0, -1) == [b"0"]


def test_a_release_reports_when_nothing_waits_for_it(behind: Stage) -> None:
    code = code_of(behind)
    asked(behind, 0, Block(TASK, 10, 3000, code), Block(QUEUE, 10, 3000))
    assert asked(behind, 0, Block(TASK, 11)).idle == [TASK], "the queue is still blocked"
    assert asked(behind, 0, Block(QUEUE, 11)).idle == []
    cancel_all(behind.queue)
    assert asked(behind, 0, Block(TASK, 12), Block(QUEUE, 12)).idle == [TASK, ""]
    assert asked(behind, 0, Block("task:unknown", 12)).idle == ["task:unknown"]


def test_a_task_that_is_full_in_this_process_is_left_to_others(behind: Stage) -> None:
    wake = behind.broker.wake_key("q")
    behind.broker.client.delete(wake)
    batch = asked(behind, full=["limited"])
    assert (batch.offers, batch.passed_over, batch.next_due_ms) == ([], True, 250)
    assert behind.broker.client.lrange(wake, 0, -1) == [b"0"]
    behind.broker.client.delete(wake)
    behind.wait(100)
    assert asked(behind, full=["limited"]).next_due_ms == 150, "the token is repeated: who took it may be full, too"
    assert not behind.broker.client.exists(wake)
    behind.wait(150)
    asked(behind, full=["limited"])
    assert behind.broker.client.exists(wake)
    assert len(asked(behind).offers) == 1


# -- all verbs -------------------------------------------------------------------------------------------------------


def test_jobs_in_quarantine_are_offered_to_processes_of_theirs(stage: Stage) -> None:
    stage.put("suspect", task="limited")
    (job,) = stage.batch().jobs
    assert stage.settle(fail(job, 1, 2, delay_ms=0, outcome="crashed", quarantine=True)) == [True]
    (offer,) = asked(stage, which="quarantined").offers
    batch = asked(stage, 100, Block(TASK, 1, 5000, code_of(stage)), which="others")
    assert (batch.offers, batch.quarantine_due_ms) == ([], 5000), "behind a block it is not overdue"
    batch = asked(stage, 100, Block(TASK, 2), which="others")
    assert (batch.offers, batch.quarantine_due_ms) == ([], 0)
    assert [job.id for job in asked(stage, 100, grants=[Grant(offer, 1)], which="quarantined").jobs] == ["suspect"]


def test_parked_jobs_are_seen_everywhere_as_ready_ones(behind: Stage) -> None:
    counts = behind.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.parked, counts.lag_seconds) == (3, 0, 3, 0.0)
    view = behind.broker.inspector.get("q", "a")
    assert view is not None and (view.state, view.job.parked) == ("ready", True)
    page = behind.broker.inspector.page("q", "waiting")
    assert [one.id for one in page.jobs] == ["a", "b", "c"]
    part = Part("q", 0, "waiting")
    assert [ident for some in read_jobs(behind.broker, part) for ident in some["id"]] == ["a", "b", "c"]
    assert [ident for some in read_entries(behind.broker, part) for ident in some["id"]] == ["a", "b", "c"]


def test_a_paused_queue_keeps_its_parked_jobs_and_wakes_a_consumer_at_its_end(behind: Stage) -> None:
    wake = behind.broker.wake_key("q")
    (offer,) = asked(behind).offers
    behind.broker.pause("q", "out")
    assert asked(behind, 100, grants=[Grant(offer, 3)]).jobs == []
    assert asked(behind, 100, Block(QUEUE, 1)).idle == [""], "a freed permit is of no use here"
    behind.broker.client.delete(wake)
    behind.broker.resume("q", "out")
    assert behind.broker.client.lrange(wake, 0, -1) == [b"0"]
    assert granted(behind, 9) == ["a", "b", "c"]


def test_a_job_is_reserved_by_its_id_though_it_is_parked(behind: Stage) -> None:
    (job,) = behind.queue.reserve_id("b", worker="w").jobs
    assert (job.id, job.permit) == ("b", b"")
    assert parked(behind) == ["a", "c"]
    assert_invariants(behind.broker)


def test_a_tick_reports_when_jobs_in_lanes_may_be_asked_for(behind: Stage) -> None:
    asked(behind, 100, Block(QUEUE, 1, 5000))
    tick = behind.queue.tick(0)
    assert tick.next_due_ms is not None
    assert (tick.next_due_ms - tick.now_ms, tick.set_aside) == (5000, False)


def test_fsck_finds_and_mends_a_parked_job_without_order(behind: Stage) -> None:
    client, lane = behind.broker.client, b"\0" + code_of(behind) + b"\5"
    client.zpopmin(behind.key("lane_order"))
    client.zadd(behind.key("lane_order"), {b"\0\x70\x70\5" + b"\0" * 8 + b"ghost": 0})
    client.zadd(behind.key("turns"), {b"\0\x71\x71\5": 1, lane: 1})
    report = check_stored(behind.broker, repair=True)
    assert {line.split(": ")[-1] for line in report.violations} >= {
        "job in a lane without order or turn",
        "place in a lane without job",
        "turn of a lane before its first job",
    }
    assert_invariants(behind.broker)
    assert granted(behind, 9) == ["b", "c", "a"]


def test_ten_thousand_limited_jobs_at_the_head_do_not_delay_another_task(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"limited-{number}", "limited", priority=0) for number in range(10_000))
    asked(stage, 1, most=0)
    asked(stage, 0, Block(TASK, 1, 60_000, code_of(stage)))

    def takes_one_call(ident: str) -> bool:
        stage.put(ident)
        return [job.id for job in asked(stage, 1).jobs] == [ident]

    assert [takes_one_call(f"other-{number}") for number in range(12)] == [True] * 12
    assert len(parked(stage)) == 10_000
