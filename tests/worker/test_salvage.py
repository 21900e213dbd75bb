"""Settlement of the jobs of a dead child by its supervisor: the order, and failures of Redis on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker, Bury, Job, QueueUnavailable, Settlement
from tests.support.attempt_stage import ATTEMPT_LOGGER
from tests.support.core_calls import watch_calls
from tests.support.core_stored import backdate_begun
from tests.support.supervisor_stage import Program, record_of, salvage_of
from tests.support.worker_stage import (
    Hooks,
    events_of,
    eventually,
    fails_once,
    places,
    put,
    put_payload,
    registry_of,
    run_dry,
)


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


# --- listeners of ended jobs, whatever ends them and whichever process settles them


ENDS = "job_failed,job_buried"


# --- settled by the supervisor


def test_the_ends_of_lost_attempts_are_notified_logged_and_stored_as_those_of_any_other(
    program: Callable[..., Program], broker: Broker, tmp_path: Path
) -> None:
    put(broker, "always_exit", id="poison", options=b'{"max_attempts":1}')
    put(broker, "crash_once", id="once", delay_ms=500)
    log = tmp_path / "log"

    def counted() -> dict[str, int]:
        return {task: found.count for (_, task), found in broker.figures().run.items()}

    with log.open("wb") as stderr:
        running = program(threads=1, listen=ENDS, grace=0.5, patience=0.2, stderr=stderr)
        # a killed child takes the counts of its last second along: there are none by then
        eventually(
            lambda: counted() == {"always_exit": 1, "crash_once": 2}, "counted by supervisor and child", seconds=60
        )
        put(broker, "stubborn", id="stubborn")
        eventually(lambda: places(broker) == {"morgue": 2}, "the ends of all three", seconds=60)
        eventually(lambda: "task stubborn went to the morgue" in log.read_text(), "the line that follows the end")
    assert running.ends() == [
        "on_exhausted:poison:Crashed:always_exit",
        "job_buried:poison:poison:Crashed",
        "job_failed:once:crashed:Crashed",
        "on_exhausted:stubborn:JobTimeout:stubborn",
        "job_buried:stubborn:exhausted:JobTimeout",
    ]
    assert counted() == {"always_exit": 1, "crash_once": 2, "stubborn": 1}, "counted by the supervisor"
    text = log.read_text().replace(ATTEMPT_LOGGER, "attempts")
    assert "ERROR attempts poison: task always_exit went to the morgue (poison) after attempt 1: Crashed: ended" in text
    assert "WARNING attempts once: attempt 1 of task crash_once failed (crashed), the next one in 0.0 s" in text
    assert "ERROR attempts stubborn: task stubborn ignores its time limit" in text
    end = "ERROR attempts stubborn: task stubborn went to the morgue (exhausted) after attempt 1: JobTimeout: "
    assert end in text and "in stubborn\n    time.sleep(60)" in text.partition(end)[2], "where it was at its limit"
    view = broker.inspector.get("default", "stubborn")
    assert view is not None and "in stubborn\n    time.sleep(60)" in json.loads(view.job.error)["traceback"]


# --- settled by a dispatcher


def lose(broker: Broker, ident: str, task: str = "note", **options: Any) -> None:
    """A job whose run began under a lease that is over, and whose holder is gone."""
    put(broker, task, id=ident, options=b'{"max_attempts":1}', **options)
    (job,) = broker.queue("default").reserve(0, 1, worker="gone", ttr_ms=1, started=True).jobs
    eventually(lambda: [one.id for one in broker.queue("default").expired(0)].count(job.id))


def test_what_a_lost_machine_had_begun_is_notified_by_one_of_several_dispatchers(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    """Jobs whose leases are over, one of them with payloads, and one that was acked early."""
    queue = broker.queue("default")
    put(broker, "wait_early", id="early")
    (early,) = queue.reserve(0, 1, worker="gone").jobs
    assert queue.settle([Settlement(early, verb="ack_early", event=False)]) == [True]
    backdate_begun(queue, 0)
    for ident in ("a", "b"):
        lose(broker, ident)
    put_payload(broker, "explode", "merged", "fine", options=b'{"max_attempts":1}')
    queue.reserve(0, 1, worker="gone", ttr_ms=1, started=True)
    first, _ = (program("single", listen=ENDS, consumer=False) for _ in range(2))
    eventually(lambda: places(broker) == {"morgue": 3} and queue.begun(0) == [])
    assert sorted((event.id, event.outcome) for event in events_of(broker)) == [
        ("a", "poison"),
        ("b", "poison"),
        ("early", "crashed"),
        ("merged", "poison"),
    ]
    ends = first.ends()
    assert sorted(end for end in ends if ":early:" not in end) == [
        "job_buried:a:poison:Crashed",
        "job_buried:b:poison:Crashed",
        "job_buried:merged:poison:Crashed",
        "on_exhausted:a:Crashed:note",
        "on_exhausted:b:Crashed:note",
        "on_exhausted:merged:Crashed:explode,fine",
    ]
    # What is acked has no lease by which one dispatcher would keep it from the other.
    early_ends = {"job_failed:early:crashed:Crashed", "on_exhausted:early:Crashed:wait_early"}
    assert {end for end in ends if ":early:" in end} == early_ends


def test_an_end_whose_dispatcher_died_before_it_was_stored_is_notified_by_the_next_one(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    lose(broker, "a")
    broker.client.rpush("deadly", 1)
    first = program("single", listen=ENDS, consumer=False, lease=1000)
    assert first.wait() == 9
    assert places(broker) == {"reserved": 1}
    second = program("single", listen=ENDS, consumer=False, lease=1000)
    eventually(lambda: places(broker) == {"morgue": 1})
    assert second.ends() == ["on_exhausted:a:Crashed:note", "job_buried:a:poison:Crashed"] * 2


# --- settled by the worker


def test_a_reason_that_no_encoding_has_does_not_keep_an_end_from_being_stored(broker: Broker) -> None:
    def work() -> None:
        raise Bury("lone \ud800 surrogate")

    put(broker, "work", id="a")
    run_dry(broker, registry_of(work), dispatcher=False)
    view = broker.inspector.get("default", "a")
    assert view is not None and view.state == "morgue" and view.reason.startswith("lone ")
