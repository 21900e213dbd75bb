"""Hooks and receivers have the time limit of the task: one that hangs is given up, and keeps neither slot nor lease."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import signals
from django_delayq.core import Broker, JobTimeout
from tests.support.attempt_stage import ATTEMPT_LOGGER, make_job
from tests.support.duty_stage import HangingCall, call_limited, reap, reaper_of
from tests.support.worker_stage import (
    Hooks,
    config,
    events_of,
    eventually,
    free_slots,
    held_by,
    places,
    put,
    put_payload,
    registry_of,
    settled_by,
    stops_fetching,
    uncollected_ends,
    working,
)

LIMIT = 0.2


def spin() -> None:
    """Hang in Python code, where the time limit is raised."""
    while True:
        time.sleep(0.01)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event on which listeners hang that no time limit reaches."""
    event = threading.Event()
    yield event
    event.set()


def hanging_at(event: str, hang: Callable[[], Any]) -> Hooks:
    def notify(name: str, **_: Any) -> None:
        if name == event:
            hang()

    return Hooks(wants=lambda name, task: name == event, notify=notify)


def fail() -> None:
    raise ValueError("no answer")


def succeed() -> None:
    pass


def run_one_slot(broker: Broker, hooks: Hooks, task: Any, **options: Any) -> None:
    """Run a job of ``task`` and, in the only slot, another one after it."""
    put(broker, task.__name__, id="first")
    registry = registry_of(task, timeout=LIMIT, **options)
    with working(broker, registry, hooks=hooks):
        eventually(lambda: broker.inspector.counts("default").ready == 0)
        eventually(lambda: not places(broker).get("reserved"), "the lease ends with the attempt")


@pytest.mark.parametrize(
    ("event", "task", "options", "left"),
    [
        ("job_started", succeed, {}, {}),
        ("job_succeeded", succeed, {}, {}),
        ("job_failed", fail, {"retry_in": 60}, {"delayed": 1, "failed": 1}),
        ("job_buried", fail, {"max_attempts": 1}, {"morgue": 1}),
        ("job_failed", fail, {"ack": "early"}, {}),
    ],
)
def test_a_receiver_that_hangs_is_given_up_and_the_job_ends_as_it_was_decided(
    broker: Broker,
    event: str,
    task: Any,
    options: dict[str, Any],
    left: dict[str, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_one_slot(broker, hanging_at(event, spin), task, **options)
    assert places(broker) == left
    (record,) = [one for one in caplog.records if "is given up" in one.getMessage()]
    assert record.levelno == logging.ERROR and f"first: {event} of task {task.__name__}" in record.getMessage()
    assert "in spin" in caplog.text, "the stack shows where it hung"


@pytest.mark.parametrize("is_async", [False, True])
def test_on_exhausted_that_hangs_is_given_up_and_the_others_hear_of_the_end(
    broker: Broker, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    async def hang_on_loop(job: Any, error: BaseException) -> None:
        await asyncio.sleep(60)

    def hang(job: Any, error: BaseException) -> None:
        spin()

    hooks = hanging_at("job_buried", lambda: heard.append("job_buried"))
    run_one_slot(broker, hooks, fail, max_attempts=1, on_exhausted=hang_on_loop if is_async else hang)
    assert places(broker) == {"morgue": 1} and heard == ["job_buried"]
    assert "first: on_exhausted of task fail did not end within the time limit" in caplog.text
    assert ("in hang_on_loop" if is_async else "in spin") in caplog.text


@pytest.mark.parametrize("function", ["format_error", "retry_in"])
def test_a_function_that_decides_about_an_end_and_hangs_is_replaced_by_the_default(
    broker: Broker, function: str
) -> None:
    def hang(*_: Any) -> Any:
        spin()

    if function == "retry_in":
        run_one_slot(broker, Hooks(), fail, retry_in=hang)
    else:
        run_one_slot(broker, Hooks(format_error=hang), fail, retry_in=60)
    view = broker.inspector.get("default", "first")
    assert view is not None and view.job.failures == 1
    assert json.loads(view.job.error)["message"] == "no answer"


def test_a_preparation_that_hangs_gives_the_job_back_uncounted(broker: Broker) -> None:
    calls: list[int] = []

    def prepare(job: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            spin()

    run_one_slot(broker, Hooks(before_job=prepare), succeed)
    view = broker.inspector.get("default", "first")
    assert view is not None and (view.job.failures, view.job.postponed_for) == (
        0,
        "not prepared: django_delayq.core.errors.JobTimeout",
    )


@pytest.mark.parametrize("settings", [{}, {"ack": "early"}])
def test_a_listener_that_ignores_its_limit_holds_neither_the_job_nor_the_process(
    broker: Broker, gate: threading.Event, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def hang(job: Any, error: BaseException) -> None:
        gate.wait(60)

    put(broker, "fail", id="first")
    registry = registry_of(fail, timeout=LIMIT, max_attempts=1, on_exhausted=hang, **settings)
    with working(broker, registry, reaction_seconds=0.1) as worker:
        assert worker.done.wait(10), "the process ends, and another one takes its place"
        assert places(broker) == ({} if settings else {"morgue": 1})
    (record,) = [one for one in caplog.records if "ignores its time limit" in one.getMessage()]
    assert record.levelno == logging.ERROR and "gate.wait(60)" in str(record.exc_text)


def test_in_a_batch_a_hanging_listener_holds_only_the_jobs_that_it_was_not_called_for(
    broker: Broker, gate: threading.Event
) -> None:
    called: list[str] = []

    def work(payloads: dict[str, list[int]]) -> None:
        raise ValueError("no")

    def hang(job: Any, error: BaseException) -> None:
        called.append(job.id)
        gate.wait(60)

    for ident in ("a", "b"):
        put_payload(broker, "work", ident, 1)
    registry = registry_of(work, merge=True, batch_size=2, timeout=LIMIT, max_attempts=1, on_exhausted=hang)
    with working(broker, registry, reaction_seconds=0.1) as worker:
        assert worker.done.wait(10)
        assert places(broker) == {"morgue": 1, "reserved": 1}, "its lease ends, and the listener is called for it"
    assert len(called) == 1


def test_a_listener_that_ends_after_all_is_settled_once(broker: Broker, gate: threading.Event) -> None:
    released = threading.Event()

    def hang(job: Any, error: BaseException) -> None:
        released.wait(60)

    def work(holds: bool) -> None:
        if not holds:
            raise ValueError("no")
        gate.wait(60)

    put(broker, "work", True, id="holds", options=b'{"timeout":60}')
    put(broker, "work", False, id="first")
    registry = registry_of(work, timeout=LIMIT, max_attempts=1, on_exhausted=hang)
    with working(broker, registry, config(threads=2), reaction_seconds=0.1) as worker:
        eventually(lambda: stops_fetching(worker), "the listener is given up")
        assert places(broker) == {"reserved": 2}, "the end is stored when nothing else runs"
        released.set()
        eventually(lambda: free_slots(worker) == 1 and not uncollected_ends(worker), "the late end is collected")
        gate.set()
        assert worker.done.wait(10)
        assert (settled_by(worker), held_by(worker)) == (2, 0)


# --- listeners of lost jobs


def work() -> None: ...


def lose(broker: Broker, ident: str, *, began: bool = True, attempts: int = 1) -> None:
    """A job whose lease is over, and whose holder is gone."""
    put(broker, "work", id=ident, options=b'{"max_attempts":%d}' % attempts)
    broker.queue("default").reserve(0, 1, worker="gone", ttr_ms=1, started=began)
    eventually(lambda: ident in [job.id for job in broker.queue("default").expired(0)])


def test_a_listener_that_hangs_at_a_lost_job_delays_no_other_one(
    broker: Broker, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def exhausted(job: Any, error: BaseException) -> None:
        heard.append(job.id)
        if job.id == "a":
            gate.wait(60)

    for ident in ("a", "b"):
        lose(broker, ident)
    reaper = reaper_of(registry_of(work, timeout=0.2, on_exhausted=exhausted))
    reap(reaper, broker.queue("default"), broker.now_ms())
    assert places(broker) == {"morgue": 2} and heard == ["a", "b"]
    (line,) = [one for one in caplog.messages if "are given up" in one]
    assert line.startswith("a: the listeners to its end (poison) did not end within 0.2 s") and "gate.wait(60)" in line


def test_without_a_time_limit_the_lease_is_the_limit(broker: Broker, gate: threading.Event) -> None:
    broker.lease_ms = 500
    lose(broker, "a")
    hooks = Hooks(wants=lambda event, task: True, notify=lambda event, **_: gate.wait(60))
    reaper = reaper_of(registry_of(work), hooks)
    reap(reaper, broker.queue("default"), broker.now_ms())
    assert places(broker) == {"morgue": 1}
    assert [event.outcome for event in events_of(broker)] == ["poison"]


@pytest.mark.parametrize(
    ("lost", "level", "text"),
    [
        (
            {},
            logging.ERROR,
            "a: task work went to the morgue (poison) after attempt 1: Crashed: the lease of worker gone",
        ),
        (
            {"attempts": 5},
            logging.WARNING,
            "a: attempt 1 of task work failed (crashed), the next one in 0.0 s: Crashed:",
        ),
        (
            {"began": False},
            logging.WARNING,
            "a: task work: the job went back uncounted: the lease of worker gone ran out",
        ),
    ],
)
def test_the_end_of_a_lost_job_has_the_level_and_the_words_of_any_other_end(
    broker: Broker, caplog: pytest.LogCaptureFixture, lost: dict[str, Any], level: int, text: str
) -> None:
    lose(broker, "a", **lost)
    reaper = reaper_of(registry_of(work))
    with caplog.at_level(logging.INFO):
        reap(reaper, broker.queue("default"), broker.now_ms())
    (record,) = [one for one in caplog.records if one.name == ATTEMPT_LOGGER]
    assert (record.levelno, record.getMessage()[: len(text)]) == (level, text)


def test_a_receiver_that_hangs_at_an_unreadable_job_is_given_up(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def receiver(**_: Any) -> None:
        gate.wait(60)

    signals.job_buried.connect(receiver)
    try:
        signals.notify_unreadable([make_job(broken="no body")], seconds=0.2)
    finally:
        signals.job_buried.disconnect(receiver)
    assert "receivers of job_buried hang" in caplog.text and "gate.wait(60)" in caplog.text


def test_a_call_that_hangs_leaves_its_thread_behind(gate: threading.Event) -> None:
    ended: list[str] = []

    def name() -> str:
        return threading.current_thread().name

    def fail(error: BaseException) -> Callable[[], None]:
        def call() -> None:
            raise error

        return call

    def call(function: Callable[[], Any], seconds: float = 5) -> Any:
        return call_limited("limited", function, seconds, end=lambda: ended.append(name()))

    assert call(name) == "limited" and ended == ["limited"]
    with pytest.raises(HangingCall, match=r"gate.wait\(60\)"):
        call(lambda: gate.wait(60), 0.1)
    assert call(name) == "limited" and ended == ["limited"] * 2
    for error in (TimeoutError("own"), JobTimeout()):
        with pytest.raises(type(error)):
            call(fail(error))
    gate.set()
    eventually(lambda: len(ended) == 5)
