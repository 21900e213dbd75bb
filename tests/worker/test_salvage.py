"""Settlement of the jobs of a dead child by its supervisor: the order, and failures of Redis on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, Job, QueueUnavailable, Registry, Settlement
from django_delayq.core.recent_events import EventFilter, newest
from django_delayq.worker.attempt import NEVER
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.orphans import Orphans
from django_delayq.worker.salvage import Death, Salvage
from django_delayq.worker.scoreboard import SlotRecord

from .support import places, put, registry_of


def work() -> None: ...


def early() -> None: ...


def hold(broker: Broker, ident: str, queue: str = "default") -> Job:
    """Return a job that the dead child held."""
    put(broker, "work", id=ident, queue=queue)
    (job,) = broker.queue(queue).reserve(0, 1, worker="child").jobs
    return job


def running(job: Job) -> SlotRecord:
    return SlotRecord(job.queue, job.shard, job.id, job.token, 1.0, NEVER, timed_out=False)


def salvage_of(
    records: Sequence[SlotRecord], hooks: Hooks, registry: Registry | None = None, **options: Any
) -> Salvage:
    orphans = Orphans(registry or registry_of(work, max_attempts=1), hooks, "supervisor")
    return Salvage(Death("child", "was killed", records, 9.0), orphans, **options)


@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("script", ["take_over", "bury", "release"])
def test_the_verdict_outlives_a_redis_that_fails_at_any_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, script: str, applied: bool
) -> None:
    culprit = hold(broker, "culprit")
    hold(broker, "bystander")
    told: list[str] = []
    hooks = Hooks(wants=lambda event, task: True, notify=lambda event, **details: told.append(event))
    salvage = salvage_of([running(culprit)], hooks)
    call, failures = broker.scripts.call, [script]

    def failing(name: str, *args: Any, **limits: Any) -> Any:
        if name not in failures:
            return call(name, *args, **limits)
        failures.remove(name)
        if applied:
            call(name, *args, **limits)
        raise QueueUnavailable("gone")

    monkeypatch.setattr(broker.scripts, "call", failing)
    queues = [broker.queue("default")]
    with pytest.raises(QueueUnavailable):
        salvage.run(queues)
    salvage.run(queues)
    assert (places(broker), told) == ({"ready": 1, "morgue": 1}, ["job_buried"])
    (grave,) = broker.inspector.page("default", "morgue").jobs
    assert (grave.job.id, grave.reason) == ("culprit", "poison")


def test_a_quarantined_job_is_expected_although_the_reply_of_its_settlement_was_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspects = [hold(broker, ident) for ident in "ab"]
    expected: list[float] = []
    salvage = salvage_of([running(job) for job in suspects], Hooks(), registry_of(work), expect=expected.append)
    call, failures = broker.scripts.call, ["fail"]

    def failing(name: str, *args: Any, **limits: Any) -> Any:
        reply = call(name, *args, **limits)
        if name in failures:
            failures.remove(name)
            raise QueueUnavailable("gone")
        return reply

    monkeypatch.setattr(broker.scripts, "call", failing)
    with pytest.raises(QueueUnavailable):
        salvage.run([broker.queue("default")])
    salvage.run([broker.queue("default")])
    assert expected == [0.0, 0.0]


def test_jobs_whose_ends_nothing_is_called_for_do_not_wait_for_a_slow_listener(broker: Broker) -> None:
    begun = hold(broker, "begun")
    first, second = broker.queue("default"), broker.queue("second")
    assert first.settle([Settlement(begun, "ack_early", event=False)]) == [True]
    culprit = hold(broker, "culprit")
    for queue in ("default", "second"):
        hold(broker, f"waits in {queue}", queue)
    seen: list[tuple[str, int, list[str]]] = []

    def slow(event: str, *, job: Job, **details: Any) -> None:
        held = [one.id for queue in (first, second) for one in queue.leases(0)]
        seen.append((job.id, len(first.begun(0)), held))

    hooks = Hooks(wants=lambda event, task: True, notify=slow)
    salvage_of([running(culprit)], hooks).run([first, second])
    assert seen == [("culprit", 1, ["culprit"]), ("begun", 1, [])]


def test_an_attempt_of_a_dead_child_began_by_redis_clock_not_by_that_of_its_host(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    culprit, now, began_ms = hold(broker, "culprit"), time.time, broker.now_ms()
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    record = replace(running(culprit), started=time.monotonic())
    salvage_of([record], Hooks()).run([broker.queue("default")])
    (event,) = newest(broker, EventFilter(id="culprit"))
    assert began_ms - 100 < int(event.fields["started"]) < broker.now_ms() + 100
