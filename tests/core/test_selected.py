"""Operations on many displayed jobs: a job is cancelled or moved only if it has not changed since."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload
from tests.support.core_calls import watch_calls
from tests.support.core_values import Generation, new_key

from .bulk_stage import Part, act_in_shard, cancel_selected, read_jobs, reschedule_selected
from .events_stage import last_position, read_events
from .stage import T0, Stage

Named = tuple[str, bytes]


def cancel(stage: Stage, wanted: list[Named]) -> list[str]:
    return act_in_shard(stage.queue, 0, wanted, cancel_selected())


def move(stage: Stage, wanted: list[Named], **times: int) -> list[str]:
    return act_in_shard(stage.queue, 0, wanted, reschedule_selected(**times))


def key_of(stage: Stage, ident: str) -> Named:
    """Return id and key of the job that waits or runs under an id."""
    view = stage.broker.inspector.get("q", ident)
    assert view is not None
    return ident, view.job.key


def put(stage: Stage, *idents: str, at: int = 60_000) -> list[Named]:
    for ident in idents:
        stage.put(ident, at=at)
    return [key_of(stage, ident) for ident in idents]


def gated(stage: Stage, ident: str, *, at: int = 90_000) -> tuple[Named, Named]:
    """Create a running job with content gated behind it; return id and key of both."""
    key, behind = new_key(), new_key()
    stage.put(ident, key=key)
    stage.queue.reserve_id(ident, worker="w", early=True)
    stage.put(ident, at=at, key=behind)
    return (ident, key), (ident, behind)


def gated_of(stage: Stage, ident: str) -> Named:
    """Return id and key of the job that is gated under an id."""
    (columns,) = read_jobs(stage.broker, Part("q", 0, "gated"))
    return ident, bytes.fromhex(dict(zip(columns["id"], columns["key"], strict=True))[ident])


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_a_selected_job_is_found_although_the_queue_has_an_old_epoch(broker: Broker) -> None:
    stage = Stage(broker, clock=False)
    stage.put("held")
    stage.take()
    broker.reshard("q", 2)
    cancelled, moved = put(stage, "cancelled", "moved")
    assert len(stage.queue.epochs) == 2
    assert cancel_selected().anywhere(stage.queue, "cancelled", Generation((cancelled[1],))) == "cancelled"
    assert reschedule_selected(due_ms=T0).anywhere(stage.queue, "moved", Generation((moved[1],))) == "moved"


def test_what_was_seen_is_cancelled_and_what_changed_is_left_alone(stage: Stage) -> None:
    seen = put(stage, "same", "replaced", "gone", "anew", "running")
    stage.put("replaced", at=70_000)
    stage.queue.cancel("gone")
    stage.queue.cancel("anew")
    stage.put("anew", at=70_000)
    stage.queue.reserve_id("running", worker="w", early=True)
    wanted = [*seen, ("nobody", new_key())]
    assert cancel(stage, wanted) == ["cancelled", "gone", "gone", "gone", "stopping", "gone"]
    assert stage.picture() == {
        "waiting": ["replaced +70000", "anew +70000"],
        "reserved": ["running by w until +15000 stopping"],
    }
    assert cancel(stage, seen[:1]) == ["gone"]


def test_a_failed_job_that_waits_is_cancelled_with_its_failures(stage: Stage) -> None:
    (a,) = put(stage, "a", at=0)
    assert stage.failed(stage.take_one(), 60_000)
    assert cancel(stage, [a]) == ["cancelled"]
    assert stage.picture() == {}


def test_a_gated_generation_goes_without_its_run_and_with_it(stage: Stage) -> None:
    _, behind = gated(stage, "a")
    run, _ = gated(stage, "b")
    assert cancel(stage, [behind, run]) == ["ungated", "stopping"]
    assert stage.picture() == {"reserved": ["a by w until +15000", "b by w until +15000 stopping"]}
    assert cancel(stage, [behind]) == ["gone"]


def test_the_payloads_of_merged_jobs_go_with_them(stage: Stage) -> None:
    for data in (b"1", b"2"):
        stage.add("m", data, at=60_000)
        stage.add("n", data)
    (run,) = stage.take()
    stage.add("n", b"3", at=60_000)
    wanted = [key_of(stage, "m"), (run.id, run.key)]
    assert cancel(stage, wanted) == ["cancelled", "stopping"]
    assert stage.picture()["payloads"] == ["n: 1 2"]
    assert stage.done(run) == [True]
    assert stage.picture() == {}


def test_gated_payloads_go_and_those_of_the_run_stay(stage: Stage) -> None:
    stage.add("n", b"1")
    (run,) = stage.take()
    stage.add("n", b"2", at=60_000)
    assert cancel(stage, [gated_of(stage, "n")]) == ["ungated"]
    assert stage.picture() == {"reserved": ["n by w until +15000"], "payloads": ["n: 1"]}
    assert stage.failed(run, 0)
    assert stage.picture()["payloads"] == ["n: 1"]


def test_payloads_that_a_run_left_behind_are_not_taken_for_gated_ones(stage: Stage) -> None:
    for n in range(251):
        stage.add("n", b"%d" % n, str(n))
    (run,) = stage.take()
    stage.add("n", b"new", "999", at=60_000)
    assert cancel(stage, [gated_of(stage, "n")]) == ["running"]
    assert stage.done(run) == [True]
    assert stage.picture()["payloads"] == ["n: 250 new"]


def test_the_end_of_a_durable_generation_is_marked(stage: Stage) -> None:
    stage.durable = True
    (a,) = put(stage, "a")
    _, behind = gated(stage, "b")
    stage.queue.cancel("b")
    key, other = new_key(), new_key(durable=True)
    stage.put("c", key=key)
    stage.queue.reserve_id("c", worker="w", early=True)
    stage.put("c", key=other)
    stage.add("m", b"1", at=60_000)
    merged = key_of(stage, "m")
    (payload,) = stage.broker.inspector.payloads("q", "m")
    stage.taken_marks()
    assert cancel(stage, [a, behind, ("c", other), merged]) == [
        "cancelled",
        "gone",
        "ungated",
        "cancelled",
    ]
    assert stage.taken_marks() == {a[1]: "done", other: "done", payload.key: "done"}


def test_a_cancellation_is_told_as_one_event_and_counted(stage: Stage) -> None:
    wanted = put(stage, *[f"{n:03}" for n in range(250)])
    last = last_position(stage.broker, "q", 0)
    assert cancel(stage, wanted) == ["cancelled"] * 250
    found = read_events(stage.broker, "q", 0, after=last)
    assert [(event.outcome, event.fields["jobs"], event.fields["verb"]) for event in found] == [
        ("bulk", "100", "cancelled"),
        ("bulk", "100", "cancelled"),
        ("bulk", "50", "cancelled"),
    ]
    assert stage.counters()["cancelled"] == 250


def test_jobs_with_many_payloads_go_a_few_at_a_time(stage: Stage) -> None:
    for ident in ("m", "n", "o"):
        stage.queue.schedule_many(
            NewJob(ident, "sync", payload=Payload(b"%d" % n, str(n), new_key()), on_conflict="merge", delay_ms=60_000)
            for n in range(700)
        )
    wanted = [key_of(stage, ident) for ident in ("m", "n", "o")]
    assert cancel(stage, wanted) == ["cancelled"] * 3
    assert stage.picture() == {}


# -- move --------------------------------------------------------------------------------------------------------------


def test_what_was_seen_is_moved_and_what_changed_is_left_alone(stage: Stage) -> None:
    seen = put(stage, "same", "replaced", "gone", "running")
    run, behind = gated(stage, "held")
    stage.put("replaced", at=70_000)
    stage.queue.cancel("gone")
    stage.queue.reserve_id("running", worker="w", early=True)
    stage.wait(1000)
    assert move(stage, [*seen, run, behind], delay_ms=5000) == [
        "moved",
        "gone",
        "gone",
        "running",
        "running",
        "moved",
    ]
    assert stage.picture() == {
        "waiting": ["same +6000", "replaced +70000"],
        "reserved": ["held by w until +15000", "running by w until +15000"],
        "gated": ["held +6000"],
    }
    assert move(stage, [seen[0], behind], due_ms=T0 + 7) == ["moved", "moved"]
    assert stage.picture()["waiting"][0] == "same +7"
    assert stage.picture()["gated"] == ["held +7"]


def test_a_failed_job_keeps_its_failures_when_it_is_moved(stage: Stage) -> None:
    (a,) = put(stage, "a", at=0)
    assert stage.failed(stage.take_one(), 60_000)
    assert move(stage, [a], delay_ms=0) == ["moved"]
    assert stage.picture() == {"waiting": ["a +0"], "failed": ["a x1"]}


def test_those_of_another_priority_stay_in_their_class(stage: Stage) -> None:
    stage.put("a", at=60_000, priority=1)
    assert move(stage, [key_of(stage, "a")], due_ms=T0) == ["moved"]
    assert stage.picture() == {"waiting": ["a +0 p1"]}


@pytest.mark.one_server("a cluster wakes by a channel, not by a list")
def test_the_workers_are_woken_when_work_came_nearer(stage: Stage) -> None:
    wanted = put(stage, "a")
    stage.broker.client.delete(f"{stage.broker.prefix}:wake:q")
    move(stage, wanted, delay_ms=120_000)
    assert not stage.wake_list()
    move(stage, wanted, delay_ms=0)
    assert stage.wake_list()


def test_any_number_is_moved_in_chunks(stage: Stage) -> None:
    wanted = put(stage, *[f"{n:03}" for n in range(600)])
    assert move(stage, wanted, due_ms=T0 + 5) == ["moved"] * 600
    assert {line.partition(" ")[2] for line in stage.picture()["waiting"]} == {"+5"}


@pytest.mark.parametrize("times", [{}, {"due_ms": 1, "delay_ms": 1}, {"due_ms": -1}, {"delay_ms": 10**13}])
def test_a_time_that_cannot_be_is_refused(stage: Stage, times: dict[str, int]) -> None:
    with pytest.raises(InvalidJob):
        move(stage, [], **times)


def test_a_call_with_many_payloads_rests_in_between(stage: Stage) -> None:
    for ident in "abcdef":
        for number in range(300):
            stage.add(ident, b"%03d" % number, at=60_000)
    seen = [key_of(stage, ident) for ident in "abcdef"]
    with watch_calls(stage.broker) as calls:
        assert cancel(stage, seen) == ["cancelled"] * 6
    assert [call.name for call in calls].count("change") == 2
    assert stage.shard_is_empty()
