"""Effects of a step of Redis's clock on jobs: due times and leases are stored as absolute times."""

from __future__ import annotations

import pytest

from .stage import LEASE, T0, Stage

HOUR = 3_600_000


def ids(stage: Stage) -> list[str]:
    return [job.id for job in stage.take()]


def test_after_a_step_back_by_an_hour_a_delay_lasts_an_hour_longer(stage: Stage) -> None:
    stage.put("a", delay_ms=60_000)
    stage.wait(-HOUR)
    stage.wait(60_000)
    batch = stage.batch()
    assert (batch.jobs, batch.next_due_ms) == ([], HOUR)
    stage.wait(HOUR - 1)
    assert ids(stage) == []
    stage.wait(1)
    assert ids(stage) == ["a"]


def test_after_a_step_back_what_was_due_and_had_not_started_waits_again(stage: Stage) -> None:
    stage.put("overdue", at=-60_000)
    stage.put("now")
    stage.wait(-HOUR)
    assert stage.batch().next_due_ms == HOUR - 60_000
    stage.wait(HOUR - 1)
    assert ids(stage) == ["overdue"]
    stage.wait(1)
    assert ids(stage) == ["now"]


def test_after_a_step_back_the_pause_after_a_failure_lasts_longer(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), 30_000)
    stage.wait(-HOUR)
    stage.wait(HOUR + 29_999)
    assert ids(stage) == []
    stage.wait(1)
    assert ids(stage) == ["a"]


def test_what_is_scheduled_or_moved_after_a_step_back_is_on_time(stage: Stage) -> None:
    stage.put("moved", delay_ms=60_000)
    stage.put("told to run", delay_ms=60_000)
    stage.wait(-HOUR)
    stage.put("at once")
    stage.put("soon", delay_ms=60_000)
    assert stage.queue.reschedule("moved", delay_ms=60_000)
    assert stage.queue.run_now("told to run")
    assert sorted(ids(stage)) == ["at once", "told to run"]
    stage.wait(60_000)
    assert sorted(ids(stage)) == ["moved", "soon"]


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_moment_is_waited_for_on_the_clock_as_it_is_now(stage: Stage, step: int) -> None:
    stage.put("a", at=2 * HOUR)
    stage.wait(step)
    stage.wait(2 * HOUR - step - 1)
    assert ids(stage) == []
    stage.wait(1)
    assert (stage.us // 1000 - T0, ids(stage)) == (2 * HOUR, ["a"])


def test_after_a_step_back_a_lease_lasts_longer_unless_its_holder_renews_it(stage: Stage) -> None:
    for ident in ("silent", "renewed"):
        stage.put(ident)
    _, renewed = stage.take()
    stage.wait(-HOUR)
    assert stage.queue.touch([renewed]) == ["held"]
    stage.wait(LEASE)
    assert [job.id for job in stage.queue.expired(0)] == ["renewed"]
    stage.wait(HOUR)
    assert {job.id for job in stage.queue.expired(0)} == {"silent", "renewed"}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_delay_counts_from_the_time_that_stands_still_after_a_small_step_back(stage: Stage, fresh: bool) -> None:
    """Also for a job whose id was just generated and that is not the shard's next."""
    stage.put("first", at=-60_000)
    stage.wait(-10_000)
    stage.put("second", delay_ms=5000, fresh=fresh)
    assert ids(stage) == ["first"]
    stage.wait(10_000 + 4999)
    assert ids(stage) == []
    stage.wait(1)
    assert ids(stage) == ["second"]


def test_a_delay_counts_from_the_clock_again_when_it_has_caught_up(stage: Stage) -> None:
    stage.put("first", at=-60_000)
    stage.wait(-10_000)
    stage.wait(10_000)
    stage.put("second", delay_ms=5000, fresh=True)
    stage.wait(4999)
    assert ids(stage) == ["first"]
    stage.wait(1)
    assert ids(stage) == ["second"]
