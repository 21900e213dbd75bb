"""Ticks: a tick stores its job once, whichever process fires it; losing that race is no refusal."""

from __future__ import annotations

import pytest

from django_delayq.core import NewJob
from tests.support.core_stored import last_tick

from .stage import T0, Stage


def job(ident: str = "nightly", **options: object) -> NewJob:
    return NewJob(ident, "work", on_conflict="ignore", **options)  # type: ignore[arg-type]


def test_a_tick_that_somebody_fired_already_changes_nothing_and_is_not_counted(stage: Stage) -> None:
    assert stage.queue.schedule_tick(job(), T0) == "created"
    picture, counters = stage.picture(), stage.counters()
    assert stage.queue.schedule_tick(job(), T0) == "fired"
    assert stage.queue.schedule_tick(job(), T0 - 60_000) == "fired"
    assert stage.picture() == picture == {"waiting": ["nightly +0"]}
    assert stage.counters() == counters == {"created": 1}
    assert last_tick(stage.queue, "nightly") == T0


def test_the_next_tick_is_fired_although_the_job_of_the_last_one_waits(stage: Stage) -> None:
    stage.queue.schedule_tick(job(), T0)
    assert stage.queue.schedule_tick(job(), T0 + 60_000) == "ignored"
    assert last_tick(stage.queue, "nightly") == T0 + 60_000
    assert stage.counters() == {"created": 1, "changed": 1}


@pytest.mark.parametrize(("rule", "outcome"), [({"paused_in": 0}, "paused"), ({"max_length": 1}, "full")])
def test_a_tick_that_was_refused_is_counted_as_such_and_not_remembered(
    stage: Stage, rule: dict[str, int], outcome: str
) -> None:
    stage.put("other")
    stage.queue.rule(0, rule)
    assert stage.queue.schedule_tick(job(), T0) == outcome
    assert last_tick(stage.queue, "nightly") is None
    assert stage.counters() == {"created": 1, "refused": 1}
    stage.queue.rule(0, {})
    assert stage.queue.schedule_tick(job(), T0) == "created"


def test_a_schedule_is_first_seen_once_and_anew_when_it_changed(stage: Stage) -> None:
    assert stage.queue.first_sight("nightly", "* * * * *") == T0
    stage.wait(5000)
    assert stage.queue.first_sight("nightly", "* * * * *") == T0
    assert stage.queue.first_sight("nightly", "@daily") == T0 + 5000
    assert last_tick(stage.queue, "nightly") is None


def test_a_tick_is_skipped_once_and_none_before_it_counts_any_more(stage: Stage) -> None:
    assert stage.queue.first_sight("nightly", "* * * * *") == T0
    stage.wait(60_000)
    assert stage.queue.skip_tick("nightly", "* * * * *", T0 + 30_000)
    assert not stage.queue.skip_tick("nightly", "* * * * *", T0 + 30_000)
    assert not stage.queue.skip_tick("nightly", "* * * * *", T0 + 20_000)
    assert stage.queue.first_sight("nightly", "* * * * *") == T0 + 30_000
    assert last_tick(stage.queue, "nightly") is None
    assert stage.queue.schedule_tick(job(), T0 + 60_000) == "created"
    assert not stage.queue.skip_tick("nightly", "* * * * *", T0 + 60_000)


def test_the_last_ticks_of_many_ids_are_told_in_their_order(stage: Stage) -> None:
    stage.queue.schedule_tick(job(), T0 + 1)
    stage.queue.schedule_tick(job(), T0 + 2)
    inspector = stage.broker.inspector
    assert inspector.last_ticks([(stage.queue, "never"), (stage.queue, "nightly")]) == [None, T0 + 2]
    assert inspector.last_ticks([]) == []
