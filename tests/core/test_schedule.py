"""Scheduling: schedule and schedule_many."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob
from tests.support.event_entries import read_events

from .stage import Stage
from .world import unchanged


def test_a_thousand_jobs_of_one_millisecond_keep_the_order_of_the_calls(stage: Stage) -> None:
    idents = [f"j{number}" for number in range(999)]
    stage.queue.schedule_many(NewJob(ident, "work", due_ms=1) for ident in reversed(idents))
    taken = [job.id for _ in range(4) for job in stage.take(250)]
    assert taken == idents[::-1]
    assert not stage.take()


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


def test_a_job_without_a_payload_is_not_merged_and_a_limit_of_payloads_is_one_or_more(stage: Stage) -> None:
    with unchanged(stage.broker):
        with pytest.raises(InvalidJob, match="use on_conflict='replace'"):
            stage.put("a", on_conflict="merge")
        with pytest.raises(InvalidJob, match="use 1 or more"):
            stage.add("a", b"p", max_payloads=0)


# --- many at once


def test_many_jobs_answer_in_the_order_in_which_they_were_given(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    stage.put("x", at=9)
    stage.put("y", at=9, task="other")
    asked = (("a", "error"), ("x", "error"), ("x", "ignore"), ("y", "replace"), ("x", "replace"), ("b", "ignore"))
    news = [NewJob(ident, "work", on_conflict=conflict) for ident, conflict in asked]
    assert stage.queue.schedule_many(iter(news)) == ["created", "exists", "ignored", "taken", "replaced", "created"]


def test_any_number_of_jobs_is_sent_in_chunks_that_a_script_can_bear_each_of_which_tells_one_event(
    clocked: Broker,
) -> None:
    stage = Stage(clocked, shards=2)

    def chunks() -> list[int]:
        found = [event for n in range(2) for event in read_events(clocked, "q", n) if event.outcome == "bulk"]
        assert all(event.fields.keys() == {"jobs", "created"} for event in found)
        assert all(event.fields["jobs"] == event.fields["created"] for event in found)
        return [int(event.fields["jobs"]) for event in found]

    assert stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(1200)) == ["created"] * 1200
    sent = chunks()
    assert (max(sent), sum(sent)) == (250, 1200)
    stage.queue.schedule_many(NewJob(f"big{n}", "work", args=b"x" * 300_000) for n in range(8))
    assert len(chunks()) - len(sent) >= 2  # of 300 kB each, four at most


def test_a_call_that_counts_names_the_keys_of_the_jobs_that_it_met_also_when_it_is_repeated(stage: Stage) -> None:
    first = NewJob("a", "work", key=b"f" * 16)
    stage.queue.schedule(first)
    for _ in range(2):
        again = NewJob("a", "work", key=b"k" * 16, repeatable=True, on_conflict="ignore")
        assert stage.queue.count_many([again]) == {"ignored": 1}
        assert again.joined == first.key
