"""Settlement of the jobs of a dead child by its supervisor: the order, and failures of Redis on the way."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_delayq.core import Broker, Job, QueueUnavailable, Settlement
from tests.support.core_calls import watch_calls
from tests.support.supervisor_stage import record_of, salvage_of
from tests.support.worker_stage import Hooks, events_of, fails_once, places, put, registry_of


def work() -> None: ...


def early() -> None: ...


def hold(broker: Broker, ident: str, queue: str = "default") -> Job:
    """Return a job that the dead child held."""
    put(broker, "work", id=ident, queue=queue)
    (job,) = broker.queue(queue).reserve(0, 1, worker="child").jobs
    return job


#: jobs of the task go to the morgue with their first crash
ONCE = registry_of(work, max_attempts=1)


@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize(("script", "at"), [("settle", 1), ("settle", 2)])
def test_the_verdict_outlives_a_redis_that_fails_at_any_step(
    broker: Broker, script: str, at: int, applied: bool
) -> None:
    culprit = hold(broker, "culprit")
    hold(broker, "bystander")
    told: list[str] = []
    hooks = Hooks(wants=lambda event, task: True, notify=lambda event, **details: told.append(event))
    salvage = salvage_of([record_of(culprit)], ONCE, hooks)
    queues = [broker.queue("default")]
    fails = {"after" if applied else "before": fails_once(script, at)}
    with watch_calls(broker, **fails), pytest.raises(QueueUnavailable):
        salvage(broker, queues)
    salvage(broker, queues)
    calls = 2 if script == "settle" and at == 2 and not applied else 1  # listeners are called at least once
    assert (places(broker), told) == ({"ready": 1, "morgue": 1}, ["job_buried"] * calls)
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.job.id, grave.reason) == ("culprit", "poison")


def test_jobs_whose_ends_nothing_is_called_for_do_not_wait_for_a_slow_listener(broker: Broker) -> None:
    begun = hold(broker, "begun")
    first, second = broker.queue("default"), broker.queue("second")
    assert first.settle([Settlement(begun, verb="ack_early", event=False)]) == [True]
    culprit = hold(broker, "culprit")
    for queue in ("default", "second"):
        hold(broker, f"waits in {queue}", queue)
    seen: list[tuple[str, int, list[str]]] = []

    def slow(event: str, *, job: Job, **details: Any) -> None:
        held = [one.id for queue in (first, second) for one in queue.leases(0)]
        seen.append((job.id, len(first.begun(0)), held))

    hooks = Hooks(wants=lambda event, task: True, notify=slow)
    salvage_of([record_of(culprit)], ONCE, hooks)(broker, [first, second])
    assert seen == [("culprit", 1, ["culprit"]), ("begun", 1, [])]


def test_an_attempt_of_a_dead_child_began_by_redis_clock_not_by_that_of_its_host(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    culprit, now, began_ms = hold(broker, "culprit"), time.time, broker.now_ms()
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    salvage_of([record_of(culprit, started=time.monotonic())], ONCE)(broker, [broker.queue("default")])
    (event,) = [one for one in events_of(broker) if one.id == "culprit"]
    assert began_ms - 100 < int(event.fields["started"]) < broker.now_ms() + 100
