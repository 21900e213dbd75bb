"""History of one job, as reported by its view."""

from __future__ import annotations

import time

from django_delayq.core import JobView, bury, fail
from django_delayq.core.outcomes import AttemptOutcome
from tests.support.core_values import JobCounts, created_ms, derived_key, is_durable, new_key

from .stage import Stage


def view(stage: Stage, ident: str = "a") -> JobView:
    found = stage.broker.inspector.get("q", ident)
    assert found is not None
    return found


def history(stage: Stage) -> tuple[int, int, int, int]:
    """Return reserves, failures, crashes and releases of a job."""
    told = view(stage).history
    return told["reserves"], told["failures"], told["crashes"], told["releases"]


def test_each_end_of_a_run_is_counted_where_it_belongs(stage: Stage) -> None:
    stage.put("a")
    assert history(stage) == (0, 0, 0, 0)
    job = stage.take_one()
    assert history(stage) == (1, 0, 0, 0)
    stage.released(job)
    assert history(stage) == (1, 0, 0, 1)
    stage.failed(stage.take_one())
    assert history(stage) == (2, 1, 0, 1)
    stage.failed(stage.take_one(), outcome="crashed")
    assert history(stage) == (3, 2, 1, 1)
    stage.failed(stage.take_one(), outcome="timeout")
    job = stage.take_one()
    assert history(stage) == (5, 3, 1, 1)
    stage.buried(job, "exhausted", outcome="exhausted")
    assert (view(stage).state, history(stage)) == ("morgue", (5, 4, 1, 1))
    stage.queue.kick("a")
    assert history(stage) == (0, 0, 0, 1)


def counts(stage: Stage) -> tuple[int, int, int, int]:
    """Return timeouts, releases, buries and kicks of a job."""
    told = view(stage).history
    return told["timeouts"], told["releases"], told["buries"], told["kicks"]


def test_timeouts_releases_buries_and_kicks_of_a_job_are_counted_over_its_whole_life(stage: Stage) -> None:
    """Row 95, beanstalkd's stats-job: reserves, timeouts, releases, buries, kicks, and the age."""
    stage.put("a")
    assert counts(stage) == (0, 0, 0, 0)
    assert stage.broker.client.hlen(stage.key("state")) == 0
    stage.released(stage.take_one())
    stage.failed(stage.take_one(), outcome="timeout")
    assert counts(stage) == (1, 1, 0, 0)
    stage.buried(stage.take_one())
    assert counts(stage) == (1, 1, 1, 0)
    stage.queue.kick("a")
    assert counts(stage) == (1, 1, 1, 1)
    stage.released(stage.take_one())
    stage.released(stage.take_one(), postpone=True, reason="no database")
    job = stage.take_one()
    assert (counts(stage), job.releases) == ((1, 3, 1, 1), 3)
    assert job.counts == JobCounts(timeouts=1, releases=1, buries=1, kicks=1)
    stage.buried(job)
    stage.queue.kick("a")
    assert counts(stage) == (1, 3, 2, 2)
    assert stage.done(stage.take_one()) == [True] and stage.shard_is_empty()


def test_a_lease_that_runs_out_is_a_timeout_and_so_is_a_limit_that_ended_the_last_attempt(stage: Stage) -> None:
    stage.put("a")
    stage.take_one()
    stage.wait(stage.broker.lease_ms + 1)
    stage.settle(fail(*stage.take_lost(), 1, 1, delay_ms=0, outcome=AttemptOutcome.CRASHED))
    assert counts(stage) == (1, 0, 0, 0)
    last = bury(stage.take_one(), 1, 1, reason="exhausted", outcome=AttemptOutcome.EXHAUSTED)
    last.timed_out = True
    stage.settle(last)
    assert counts(stage) == (2, 0, 1, 0)


def test_a_new_generation_of_the_id_counts_from_the_start(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), outcome="timeout")
    stage.put("a")
    assert counts(stage) == (0, 0, 0, 0)


def test_the_creation_of_a_job_is_known_through_retries_morgue_and_kick(stage: Stage) -> None:
    before = time.time() * 1000
    stage.put("a")
    created = view(stage).created_ms
    assert created is not None and before - 1 <= created <= time.time() * 1000
    stage.failed(stage.take_one())
    assert view(stage).created_ms == created_ms(stage.take_one().key) == created
    stage.wait(stage.broker.lease_ms + 1)
    stage.put("b")
    stage.buried(stage.take_one())
    stage.queue.kick("b")
    assert stage.take_one().key[:6] >= created.to_bytes(6, "big")


def test_a_key_has_the_time_of_the_call_unless_it_follows_from_a_request() -> None:
    now = time.time() * 1000
    for key in (new_key(), new_key(durable=True)):
        assert now - 1 <= (created_ms(key) or 0) <= now + 1000
    assert is_durable(new_key(durable=True)) and not is_durable(new_key())
    assert len({new_key()[7:] for _ in range(1000)}) == 1000
    for byte in range(256):
        key = derived_key(bytes((255,) * 6 + (byte,) + (255,) * 9))
        assert created_ms(key) is None and not is_durable(key)
    assert created_ms(b"short") is None


def test_a_body_that_nobody_could_read_did_not_fail_and_was_not_released(stage: Stage) -> None:
    stage.put("a")
    stage.buried(stage.take_one(), "undecodable", outcome="undecodable")
    assert history(stage) == (1, 0, 0, 0)
