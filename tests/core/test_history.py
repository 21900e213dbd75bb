"""History of one job, as reported by its view."""

from __future__ import annotations

from django_delayq.core.operations.inspector import JobView

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
    assert history(stage) == (0, 0, 0, 0)


def test_a_body_that_nobody_could_read_did_not_fail_and_was_not_released(stage: Stage) -> None:
    stage.put("a")
    stage.buried(stage.take_one(), "undecodable", outcome="undecodable")
    assert history(stage) == (1, 0, 0, 0)
