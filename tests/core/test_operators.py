"""Verbs of callers and operators: cancel, reschedule, run_now, kick, discard."""

from __future__ import annotations

import pytest

from django_delayq.core import IdTaken, InvalidJob, Job

from .stage import LEASE, T0, Stage
from .world import unchanged

NOWHERE = ("cancel", "reschedule", "run_now", "kick", "discard")


@pytest.mark.parametrize("verb", NOWHERE)
def test_nothing_is_done_to_an_id_that_is_nowhere(stage: Stage, verb: str) -> None:
    options = {"delay_ms": 5} if verb == "reschedule" else {}
    with unchanged(stage.broker):
        assert not getattr(stage.queue, verb)("nobody", **options)


@pytest.mark.parametrize("verb", NOWHERE)
@pytest.mark.parametrize("ident", ["", "x" * 256])
def test_an_id_that_cannot_be_is_refused(stage: Stage, verb: str, ident: str) -> None:
    options = {"delay_ms": 5} if verb == "reschedule" else {}
    with pytest.raises(InvalidJob):
        getattr(stage.queue, verb)(ident, **options)


# --- cancel


def test_a_waiting_job_that_is_cancelled_is_gone(stage: Stage) -> None:
    stage.put("a", at=1000)
    stage.add("m", b"p", at=1000)
    assert [stage.queue.cancel(ident) for ident in ("a", "m", "a")] == ["cancelled", "cancelled", ""]
    assert stage.shard_is_empty()


def test_a_job_that_failed_is_cancelled_with_its_counters(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), 1000)
    assert stage.queue.cancel("a") == "cancelled"
    assert stage.shard_is_empty()


def test_a_running_job_that_is_cancelled_goes_on_but_does_not_come_back(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.put("a", at=7)
    assert stage.queue.cancel("a") == "stopping"
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE} stopping"]}
    assert stage.queue.touch([job]) == ["stopping"]


def test_a_cancel_drops_the_payloads_that_wait_behind_the_run_and_only_those(stage: Stage) -> None:
    stage.add("a", b"p")
    stage.take()
    stage.add("a", b"p")
    stage.add("a", b"q")
    stage.queue.cancel("a")
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE} stopping"], "payloads": ["a: p"]}


def test_what_comes_after_a_cancel_runs_after_the_cancelled_run(stage: Stage) -> None:
    stage.put("a", args=b"old")
    job = stage.take_one()
    stage.queue.cancel("a")
    assert stage.put("a", args=b"new") == "gated"
    stage.failed(job, 1000)
    assert stage.take_one().args == b"new"


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "run_now"])
def test_the_job_of_another_task_is_left_alone(stage: Stage, verb: str) -> None:
    stage.put("a", at=1000)
    options = {"delay_ms": 5} if verb == "reschedule" else {}
    with unchanged(stage.broker), pytest.raises(IdTaken, match="belongs to a live job of another task, not to 'other'"):
        getattr(stage.queue, verb)("a", task="other", **options)
    assert getattr(stage.queue, verb)("a", task="work", **options)


def put_into(stage: Stage, state: str, merged: bool) -> Job | None:
    """Bring the id "x" into a state; return the held job, if it is held."""

    def schedule(at: int) -> None:
        stage.add("x", b"new" if at == 50 else b"old", at=at) if merged else stage.put("x", at=at)

    if state == "delayed":
        schedule(1000)
    elif state != "unknown":
        schedule(0)
    if state in ("unknown", "delayed", "ready"):
        return None
    job = stage.take_one()
    if state == "gated":
        schedule(50)
    elif state == "failed":
        stage.failed(job, 60_000)
    elif state == "buried":
        stage.buried(job)
    return job if state in ("reserved", "gated") else None


GONE = {
    "delayed": "cancelled",
    "ready": "cancelled",
    "failed": "cancelled",
    "reserved": "stopping",
    "gated": "stopping",
    "buried": "",
    "unknown": "",
}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("end", ["acked", "failed", "released", "buried"])
@pytest.mark.parametrize("state", GONE)
def test_t21_a_cancel_has_one_result_in_each_state_and_removes_nothing_half(
    stage: Stage, state: str, merged: bool, end: str
) -> None:
    stage.put("other", at=70_000)
    job = put_into(stage, state, merged)
    before = stage.picture()
    assert stage.queue.cancel("x") == GONE[state]
    others = {"waiting": ["other +70000"]}
    if state in ("buried", "unknown"):
        assert stage.picture() == before
        return
    if job is None:
        assert stage.picture() == others
        assert stage.queue.cancel("x") == ""
        assert stage.take() == []
        return
    payloads = {"payloads": ["x: old"]} if merged else {}
    assert stage.picture() == {**others, "reserved": [f"x by w until +{LEASE} stopping"], **payloads}
    assert stage.queue.touch([job]) == ["stopping"]
    assert stage.queue.cancel("x") == "stopping"
    assert {
        "acked": lambda: stage.done(job) == [True],
        "failed": lambda: stage.failed(job, 5),
        "released": lambda: stage.released(job),
        "buried": lambda: stage.buried(job),
    }[end]()
    assert stage.picture() == others
    assert stage.queue.cancel("x") == ""


@pytest.mark.parametrize("merged", [False, True])
def test_t21_a_cancelled_id_may_be_scheduled_again_at_once(stage: Stage, merged: bool) -> None:
    for state in GONE:
        job = put_into(stage, state, merged)
        stage.queue.cancel("x")
        outcome = stage.add("x", b"again") if merged else stage.put("x", args=b"again")
        assert outcome == ("gated" if job else "created")
        if job:
            stage.failed(job, 60_000)
        again = stage.take_one()
        assert (again.failures, [payload.data for payload in again.payloads] or again.args) == (
            0,
            [b"again"] if merged else b"again",
        )
        stage.done(again)
        stage.queue.discard("x")
        assert stage.shard_is_empty()


# --- reschedule, run_now


def test_a_waiting_job_moves_to_a_moment_or_to_a_delay_from_now(stage: Stage) -> None:
    stage.put("a", at=1000, priority=0)
    stage.wait(10)
    assert stage.queue.reschedule("a", delay_ms=500)
    assert stage.picture() == {"waiting": ["a +510 p0"]}
    assert stage.queue.reschedule("a", due_ms=1_700_000_000_000)
    assert stage.picture() == {"waiting": ["a +0 p0"]}


@pytest.mark.parametrize("at", [500, 1000, 2000])
def test_t24_a_payload_that_comes_at_another_time_is_never_lost_and_a_move_keeps_them_all(
    stage: Stage, at: int
) -> None:
    stage.add("m", b"old", "1", at=1000)
    assert stage.add("m", b"new", "2", at=at, due_policy="replace") == "merged"
    assert stage.picture() == {"waiting": [f"m +{at}"], "payloads": ["m: old new"]}
    assert stage.queue.reschedule("m", due_ms=T0 + 3000 - at)
    assert stage.picture() == {"waiting": [f"m +{3000 - at}"], "payloads": ["m: old new"]}
    stage.wait(3000)
    assert [payload.data for payload in stage.take_one().payloads] == [b"old", b"new"]


@pytest.mark.parametrize("at", [-500, 0, 500, 1000, 2000])
def test_t24_a_move_changes_the_time_and_nothing_else(stage: Stage, at: int) -> None:
    stage.put("x", args=b"content", priority=2)
    stage.failed(stage.take_one(), 1000, error=b"why")
    assert stage.queue.reschedule("x", due_ms=T0 + at)
    stage.wait(2000)
    job = stage.take_one()
    assert (job.args, job.due_ms, job.failures, job.priority) == (b"content", T0 + at, 1, 2)


@pytest.mark.parametrize("options", [{}, {"due_ms": 1, "delay_ms": 1}])
def test_a_reschedule_needs_one_time(stage: Stage, options: dict[str, int]) -> None:
    with pytest.raises(InvalidJob, match="either a delay or a due time"):
        stage.queue.reschedule("a", **options)


def test_while_a_job_runs_only_what_is_gated_behind_it_moves(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    with unchanged(stage.broker):
        assert not stage.queue.reschedule("a", delay_ms=5)
    stage.put("a", at=1000)
    assert stage.queue.reschedule("a", delay_ms=5)
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE}"], "gated": ["a +5"]}


def test_run_now_makes_a_job_due_and_keeps_its_failures(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), 3_600_000)
    assert stage.queue.run_now("a")
    assert stage.picture() == {"waiting": ["a +0"], "failed": ["a x1"]}


def test_run_now_leaves_an_overdue_job_in_front_of_those_that_fell_due_after_it(stage: Stage) -> None:
    stage.put("a", at=10)
    stage.put("b", at=20)
    stage.wait(30)
    assert stage.queue.run_now("a")
    assert [job.id for job in stage.take(2)] == ["a", "b"]


# --- kick


def test_a_kicked_job_is_due_now_or_after_a_delay_with_its_failures_forgotten(stage: Stage) -> None:
    key = stage.in_morgue("a", args=b"[1]")
    stage.in_morgue("b")
    assert stage.queue.kick("a") == "kicked"
    assert stage.queue.kick("b", delay_ms=900) == "kicked"
    assert stage.picture() == {"waiting": ["a +0", "b +900"]}
    job = stage.take_one()
    assert (job.key, job.args, job.failures, job.reserves) == (key, b"[1]", 0, 1)


def test_the_generation_buried_last_is_kicked_unless_one_is_named(stage: Stage) -> None:
    keys = [stage.in_morgue("a") for _ in range(3)]
    stage.queue.kick("a", key=keys[0])
    assert stage.take_one().key == keys[0]
    stage.queue.kick("a", replace=True)
    assert [view.job.key for view in stage.broker.inspector.graves("q", "a")] == [keys[1]]
    assert stage.queue.kick("a", key=b"never was there!") == ""


def test_a_live_plain_job_stands_in_the_way_unless_it_may_be_replaced(stage: Stage) -> None:
    stage.in_morgue("a", args=b"old")
    stage.put("a", at=1000, args=b"live", priority=0)
    with unchanged(stage.broker):
        assert stage.queue.kick("a") == "live"
    assert stage.queue.kick("a", replace=True) == "kicked"
    assert stage.picture() == {"waiting": ["a +0"]}
    assert stage.take_one().args == b"old"


def test_a_running_plain_job_has_the_kicked_one_gated_behind_it(stage: Stage) -> None:
    stage.in_morgue("a", args=b"old")
    stage.put("a", args=b"live")
    job = stage.take_one()
    assert stage.queue.kick("a") == "live"
    assert stage.queue.kick("a", replace=True, delay_ms=5) == "kicked"
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE}"], "gated": ["a +5"]}
    stage.done(job)
    stage.wait(5)
    assert stage.take_one().args == b"old"


def test_a_kicked_merged_job_is_united_with_the_live_one(stage: Stage) -> None:
    stage.in_morgue("a", data=b"p", score="2")
    stage.add("a", b"p", "1", at=1000)
    stage.add("a", b"q", "3", at=1000)
    assert stage.queue.kick("a") == "kicked"
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: p q"]}
    assert [payload.score for payload in stage.take_one().payloads] == ["1", "3"]


@pytest.mark.parametrize(("at", "due"), [(500, 500), (1500, 900)])
def test_a_merged_job_that_is_kicked_later_does_not_put_the_live_one_off(stage: Stage, at: int, due: int) -> None:
    stage.in_morgue("a", data=b"p")
    stage.add("a", b"q", at=at)
    assert stage.queue.kick("a", delay_ms=900) == "kicked"
    assert stage.picture() == {"waiting": [f"a +{due}"], "payloads": ["a: p q"]}


def test_a_merged_job_kicked_behind_its_run_comes_at_the_earlier_due_time(stage: Stage) -> None:
    stage.in_morgue("a", data=b"p")
    stage.add("a", b"q")
    stage.take()
    stage.add("a", b"r", at=500)
    assert stage.queue.kick("a", delay_ms=900) == "kicked"
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE}"], "gated": ["a +500"], "payloads": ["a: q | p r"]}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_a_job_of_the_other_kind_or_task_stands_in_the_way(stage: Stage, merged: bool, replace: bool) -> None:
    stage.in_morgue("a", task="t", **({"data": b"p"} if merged else {}))
    stage.put("a", task="t") if merged else stage.add("a", b"p", task="t")
    with unchanged(stage.broker):
        assert stage.queue.kick("a", replace=replace) == "live"
    stage.queue.cancel("a")
    stage.put("a", task="other")
    with unchanged(stage.broker):
        assert stage.queue.kick("a", replace=replace) == "live"


# --- discard


def test_a_discarded_job_leaves_nothing(stage: Stage) -> None:
    key = stage.in_morgue("a")
    stage.in_morgue("a")
    assert stage.queue.discard("a", key=key)
    assert stage.queue.discard("a")
    assert not stage.queue.discard("a")
    assert stage.shard_is_empty()


def test_a_discard_leaves_the_live_job_of_the_id_alone(stage: Stage) -> None:
    stage.in_morgue("a")
    stage.put("a", at=5)
    assert stage.queue.discard("a")
    assert stage.picture() == {"waiting": ["a +5"]}
