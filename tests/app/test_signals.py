"""Signals: sent to whoever listens, harmless when a receiver fails, free when nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import Bury, Queue, cancel, connections, schedule, signals
from django_delayq.core import Inspector
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.retry import fixed
from django_delayq.core.task import Registry, Task, TaskOptions

from .deeds import note
from .running import run_dry

NAMES = ("job_scheduled", "job_cancelled", "job_started", "job_succeeded", "job_failed", "job_buried")


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """(name, arguments) of every signal, in order."""
    log: list[tuple[str, dict[str, Any]]] = []
    receivers = []
    for name in NAMES:

        def receiver(name: str = name, **kwargs: Any) -> None:
            kwargs.pop("signal")
            log.append((name, kwargs))

        receivers.append((getattr(signals, name), receiver))
        getattr(signals, name).connect(receiver)
    yield log
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_scheduling_and_cancelling_are_told(delayq: Broker, heard: list[tuple[str, dict[str, Any]]]) -> None:
    handle = schedule(note, "x", id="a", delay=60)
    cancel(note, id="a")
    cancel(note, id="a")
    assert heard == [
        ("job_scheduled", {"sender": note, "id": "a", "queue": "default", "outcome": "created", "due": handle.due}),
        ("job_cancelled", {"sender": note, "id": "a", "queue": "default", "outcome": "cancelled"}),
    ]


def test_a_failing_receiver_changes_nothing(delayq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError

    signals.job_scheduled.connect(broken)
    try:
        assert schedule(note, "x").outcome == "created"
    finally:
        signals.job_scheduled.disconnect(broken)
    assert "signal receiver" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_run_is_told_from_start_to_end(delayq: Broker, heard: list[tuple[str, dict[str, Any]]]) -> None:
    def good() -> None: ...

    def failing() -> None:
        raise ValueError("no")

    def hopeless() -> None:
        raise Bury("never")

    names = Registry()
    options = TaskOptions(retry_in=fixed(60))
    tasks = {
        name: Task(func, name=name, options=options)
        for name, func in (("good", good), ("failing", failing), ("hopeless", hopeless))
    }
    for one in tasks.values():
        names.add(one)
        schedule(one, id=one.name)
    heard.clear()
    run_dry(names=names)
    told = {
        name: [(kind, kwargs) for kind, kwargs in heard if kwargs["sender"] is task] for name, task in tasks.items()
    }
    assert [kind for kind, _ in told["good"]] == ["job_started", "job_succeeded"]
    assert told["good"][1][1]["job"].id == "good"
    assert 0 <= told["good"][1][1]["seconds"] < 20
    (_, failed) = told["failing"][1]
    assert (type(failed["error"]), failed["outcome"], failed["retry_in"]) == (ValueError, "failed", 60)
    (kind, buried) = told["hopeless"][1]
    assert (kind, buried["reason"], type(buried["error"])) == ("job_buried", "never", Bury)


def test_nothing_is_wanted_while_nobody_listens() -> None:
    assert not any(signals.wants(name, None) for name in ("job_started", "job_succeeded", "job_failed", "job_buried"))


def test_a_job_whose_stored_form_cannot_be_read_is_heard_of_when_it_is_buried(
    delayq: Broker, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    queue = connections.queue("default")
    queue.schedule(NewJob("a", "work"))
    delayq.client.hset(queue.shard(0).names["body"], "a", b"no body")
    assert Queue("default").reserve() == []
    ((name, told),) = heard
    assert (name, told["sender"], told["job"].id, told["reason"]) == ("job_buried", None, "a", "undecodable")
    assert "too short" in str(told["error"])
    assert Inspector(queue.registry).counts("default").morgue == 1
