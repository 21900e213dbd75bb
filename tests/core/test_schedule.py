"""Scheduling: schedule and schedule_many."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, IdTaken, InvalidJob, NewJob
from tests.support.core_stored import assert_invariants

from .events_stage import read_events
from .stage import LEASE, Stage
from .world import unchanged


def test_a_new_job_waits_for_its_due_time(stage: Stage) -> None:
    assert stage.put("a", delay_ms=1000) == "created"
    assert stage.put("b", at=500) == "created"
    assert stage.picture() == {"waiting": ["b +500", "a +1000"]}


def test_a_delay_counts_from_the_clock_of_redis(stage: Stage) -> None:
    stage.wait(7)
    stage.put("a", delay_ms=10)
    assert stage.picture() == {"waiting": ["a +17"]}


def test_equal_due_times_keep_the_order_of_the_calls(stage: Stage) -> None:
    for ident in ("c", "a", "b"):
        stage.put(ident, at=5)
    assert stage.picture() == {"waiting": ["c +5", "a +5", "b +5"]}


def test_a_thousand_jobs_of_one_millisecond_keep_the_order_of_the_calls(stage: Stage) -> None:
    idents = [f"j{number}" for number in range(999)]
    stage.queue.schedule_many(NewJob(ident, "work", due_ms=1) for ident in reversed(idents))
    taken = [job.id for _ in range(4) for job in stage.take(250)]
    assert taken == idents[::-1]
    assert not stage.take()


EARLIER = [("keep", 1000), ("inherit", 1000), ("replace", 500), ("earliest", 500), ("latest", 1000)]
LATER = [("keep", 500), ("inherit", 500), ("replace", 1000), ("earliest", 500), ("latest", 1000)]


@pytest.mark.parametrize(("policy", "due"), EARLIER)
def test_an_earlier_due_time_for_a_waiting_id(stage: Stage, policy: str, due: int) -> None:
    stage.put("a", at=1000)
    assert stage.put("a", at=500, due_policy=policy) == "replaced"
    assert stage.picture() == {"waiting": [f"a +{due}"]}


@pytest.mark.parametrize(("policy", "due"), EARLIER)
def test_an_earlier_due_time_for_a_waiting_id_that_is_merged(stage: Stage, policy: str, due: int) -> None:
    stage.add("a", b"p", at=1000)
    assert stage.add("a", b"p", at=500, due_policy=policy) == "merged"
    assert stage.picture() == {"waiting": [f"a +{due}"], "payloads": ["a: p"]}


@pytest.mark.parametrize(("policy", "due"), LATER)
def test_a_later_due_time_for_a_waiting_id(stage: Stage, policy: str, due: int) -> None:
    stage.put("a", at=500)
    assert stage.put("a", at=1000, due_policy=policy) == "replaced"
    assert stage.picture() == {"waiting": [f"a +{due}"]}


def test_replace_takes_the_new_content_and_the_new_generation_key(stage: Stage) -> None:
    stage.put("a", args=b"old", key=b"k" * 16)
    stage.put("a", args=b"new", key=b"n" * 16)
    job = stage.take_one()
    assert (job.args, job.key) == (b"new", b"n" * 16)


def test_replace_forgets_failures_unless_told_to_keep_them(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), 1000)
    stage.put("a", at=5, reset_retries=False)
    assert stage.picture() == {"waiting": ["a +5"], "failed": ["a x1"]}
    stage.put("a", at=5)
    assert stage.picture() == {"waiting": ["a +5"]}


def test_ignore_leaves_the_waiting_job_as_it_is(stage: Stage) -> None:
    stage.put("a", at=5, args=b"old")
    with unchanged(stage.broker):
        assert stage.put("a", at=1, args=b"new", priority=0, on_conflict="ignore") == "ignored"


def test_error_refuses_a_live_id_and_changes_nothing(stage: Stage) -> None:
    stage.put("a", at=5)
    with unchanged(stage.broker), pytest.raises(IdTaken, match="already lives in queue 'q'"):
        stage.put("a", on_conflict="error")


@pytest.mark.parametrize("conflict", ["replace", "ignore", "error"])
def test_an_id_of_another_task_is_taken_whatever_is_asked_for(stage: Stage, conflict: str) -> None:
    stage.put("a", at=5)
    with unchanged(stage.broker), pytest.raises(IdTaken, match="belongs to a live job of another task"):
        stage.put("a", task="other", on_conflict=conflict)


def test_a_changed_priority_moves_a_waiting_job(stage: Stage) -> None:
    stage.put("a", at=5)
    stage.put("b", at=1)
    stage.put("a", at=5, priority=0)
    assert stage.picture() == {"waiting": ["a +5 p0", "b +1"]}


def test_content_for_a_running_id_is_gated(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    assert stage.put("a", at=7) == "gated"
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE}"], "gated": ["a +7"]}
    assert not stage.take()


def test_newer_gated_content_takes_the_place_of_older(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.put("a", args=b"1", at=0)
    stage.put("a", args=b"2", at=0)
    stage.done(job)
    assert stage.take_one().args == b"2"


def test_ignore_and_error_apply_at_once_to_a_running_id(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    with unchanged(stage.broker):
        assert stage.put("a", on_conflict="ignore") == "ignored"
        with pytest.raises(IdTaken):
            stage.put("a", on_conflict="error")


def test_payloads_of_one_id_lie_in_the_order_of_their_scores(stage: Stage) -> None:
    scores = {b"e": "1e3", b"b": "-1", b"a": "-1e3", b"d": "10", b"c": "9"}
    assert [stage.add("a", data, score) for data, score in scores.items()] == ["created", *["merged"] * 4]
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: a b c d e"]}


@pytest.mark.parametrize(("policy", "kept"), [("min", "1"), ("max", "3"), ("first", "2"), ("last", "3")])
def test_equal_payloads_are_one_with_the_score_of_the_policy(stage: Stage, policy: str, kept: str) -> None:
    for score in ("2", "1", "3"):
        stage.add("a", b"p", score, score_policy=policy)
    (payload,) = stage.take_one().payloads
    assert (payload.data, payload.score) == (b"p", kept)


def test_a_merged_job_replaced_has_only_the_new_payload(stage: Stage) -> None:
    stage.add("a", b"p")
    stage.add("a", b"q")
    assert stage.add("a", b"r", on_conflict="replace") == "replaced"
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: r"]}


def test_a_gated_payload_replaces_the_gated_ones_but_not_those_of_the_run(stage: Stage) -> None:
    stage.add("a", b"p")
    stage.take()
    stage.add("a", b"q")
    stage.add("a", b"p")
    stage.add("a", b"r", on_conflict="replace")
    assert stage.picture()["payloads"] == ["a: p | r"]


def test_a_job_without_a_payload_is_not_merged(stage: Stage) -> None:
    with unchanged(stage.broker), pytest.raises(InvalidJob, match="use on_conflict='replace'"):
        stage.put("a", on_conflict="merge")


def test_a_plain_and_a_merged_job_never_share_an_id(stage: Stage) -> None:
    stage.put("a", task="sync", at=5)
    with pytest.raises(IdTaken):
        stage.add("a", b"p")


def test_a_correction_does_not_wait_out_the_back_off_nor_does_it_hammer(stage: Stage) -> None:
    stage.add("a", b"p")
    stage.failed(stage.take_one(), 3_600_000)
    stage.wait(300)
    stage.add("a", b"q")  # due now, but not sooner than one second after the failure
    assert stage.picture() == {"waiting": ["a +1000"], "payloads": ["a: p q"], "failed": ["a x1"]}


def test_many_jobs_answer_in_the_order_in_which_they_were_given(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    stage.put("x", at=9)
    stage.put("y", at=9, task="other")
    asked = (("a", "error"), ("x", "error"), ("x", "ignore"), ("y", "replace"), ("x", "replace"), ("b", "ignore"))
    news = [NewJob(ident, "work", on_conflict=conflict) for ident, conflict in asked]
    assert stage.queue.schedule_many(iter(news)) == ["created", "exists", "ignored", "taken", "replaced", "created"]


def test_any_number_of_jobs_is_sent_in_chunks_that_a_script_can_bear(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)

    def chunks() -> list[int]:
        found = [event for n in range(2) for event in read_events(clocked, stage.queue.name, n)]
        return [int(event.fields["jobs"]) for event in found if event.outcome == "bulk"]

    assert stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(1200)) == ["created"] * 1200
    sent = chunks()
    assert max(sent) == 250
    assert sum(sent) == 1200
    stage.queue.schedule_many(NewJob(f"big{n}", "work", args=b"x" * 300_000) for n in range(8))
    assert len(chunks()) - len(sent) >= 2  # of 300 kB each, four at most


@pytest.mark.parametrize("ident", ["", "x" * 256, "é" * 128])
def test_an_id_has_one_to_255_bytes(stage: Stage, ident: str) -> None:
    with unchanged(stage.broker), pytest.raises(InvalidJob, match="an id has 1 to 255 bytes"):
        stage.put(ident)


@pytest.mark.parametrize("ident", ["\0", "a\0b", "a\0"])
def test_an_id_has_no_zero_character(stage: Stage, ident: str) -> None:
    """It ends the id in the names of payloads and morgue records, so "a" would match those of "a\\0b"."""
    with unchanged(stage.broker), pytest.raises(InvalidJob, match="zero character"):
        stage.put(ident)
    with pytest.raises(InvalidJob, match="zero character"):
        stage.queue.kick(ident)


@pytest.mark.parametrize("ident", ["é" * 127, "x" * 255, "{q:0.0}", "a:b", "\n", "💥", "0"])
def test_any_text_of_that_length_is_an_id(stage: Stage, ident: str) -> None:
    stage.put(ident)
    stage.add(ident + "x", b"p") if len(ident.encode()) < 255 else None
    assert {job.id for job in stage.take()} >= {ident}
    assert_invariants(stage.broker)


def test_one_bulk_event_tells_of_a_chunk(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(300))
    found = [(event.outcome, event.fields) for event in read_events(stage.broker, "q", 0)]
    assert found == [("bulk", {"jobs": "250", "created": "250"}), ("bulk", {"jobs": "50", "created": "50"})]


def test_a_call_that_counts_names_the_keys_of_the_jobs_that_it_met_also_when_it_is_repeated(stage: Stage) -> None:
    first = NewJob("a", "work", key=b"f" * 16)
    stage.queue.schedule(first)
    for _ in range(2):
        again = NewJob("a", "work", key=b"k" * 16, repeatable=True, on_conflict="ignore")
        assert stage.queue.count_many([again]) == {"ignored": 1}
        assert again.joined == first.key


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1), (8, 8), (70, 60)])
def test_a_correction_waits_a_second_for_each_failure_and_a_minute_at_most(
    stage: Stage, failures: int, seconds: int
) -> None:
    stage.add("a", b"wrong", "1")
    for _ in range(failures - 1):
        stage.failed(stage.take_one())
    stage.failed(stage.take_one(), 3_600_000)
    stage.add("a", b"right", "2")
    assert stage.picture()["waiting"] == [f"a +{seconds * 1000}"]
