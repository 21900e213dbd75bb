"""A payload that kills the process takes nothing with it: its batch is known, and each of its ids runs alone next."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_delayq.core import Broker
from tests.support.attempt_stage import make_job
from tests.support.supervisor_stage import Program, Slot, decided, record_of
from tests.support.worker_stage import eventually, places, put, put_payload


def batches(client: redis.Redis) -> list[list[str]]:
    """Each call of the handler: ``id attempt`` of all that it got."""
    return [entry.decode().split(",") for entry in client.lrange("batches", 0, -1)]


def test_t11_ids_that_shared_a_call_with_a_deadly_payload_run_alone_and_are_done(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    for ident in ("a", "b", "deadly", "z"):
        put_payload(broker, "explode", ident, "boom" if ident == "deadly" else "fine")
    put(broker, "wait", id="neighbour", delay_ms=86_400_000)
    running = program(threads=1)
    eventually(lambda: places(broker) == {"delayed": 1, "morgue": 1})
    first, together, *alone = batches(running.client)
    assert first == ["a 1"], "the queue has plain tasks too, so the worker begins with as much as one of those takes"
    assert together == ["b 1", "deadly 1", "z 1"]
    assert sorted(alone) == [["b 2"], ["deadly 2"], ["z 2"]]
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.job.id, grave.reason, grave.job.crashes) == ("deadly", "poison", 2)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


@pytest.mark.parametrize("merged", [False, True])
def test_t10_a_crash_in_the_last_permitted_attempt_leads_to_the_morgue(
    program: Callable[..., Program],
    broker: Broker,
    merged: bool,
) -> None:
    options: dict[str, Any] = {"options": b'{"max_attempts":1}'}
    if merged:
        put_payload(broker, "explode", "last", "boom", **options)
        put_payload(broker, "explode", "last", "later", score=2)
    else:
        put(broker, "always_exit", id="last", **options)
    running = program(threads=1)
    eventually(lambda: places(broker) == {"morgue": 1})
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.job.id, grave.reason, grave.job.failures) == ("last", "poison", 1)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_what_a_dead_child_held_is_settled_by_the_batch_that_it_ran() -> None:
    jobs = [make_job(id=ident, merged=True) for ident in ("first", "second", "waiting")]
    others = [make_job(id="second", merged=True, token=8), make_job(id="second", merged=True, queue="other")]
    running = record_of("first", beside=["second"])

    def said(planned: bool, record: Slot) -> list[str]:
        return [one.outcome for one in decided([*jobs, *others], [record], planned=planned)]

    stuck = record_of("first", beside=["second"], limit_at=2.0, timed_out=True)
    uncounted = ["released"] * 3
    assert said(False, running) == ["crashed", "crashed", *uncounted]
    assert said(True, running) == ["released", "released", *uncounted]
    assert said(True, stuck) == ["timeout", "timeout", *uncounted]
