"""Listeners to the ends of lost jobs: one that hangs is given up, wherever the job is settled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import signals
from django_delayq.core import Broker, JobTimeout
from tests.support.attempt_stage import ATTEMPT_LOGGER, make_job
from tests.support.duty_stage import HangingCall, call_limited, reap, reaper_of
from tests.support.worker_stage import Hooks, events_of, eventually, places, put, registry_of


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event on which listeners hang."""
    event = threading.Event()
    yield event
    event.set()


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
