"""Operators' switches of delayq_queue: the queues of running workers, pauses for a time, all producers."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError

from django_delayq import schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueuePaused
from django_delayq.core.task import registry
from django_delayq.core.times import iso_of
from tests.app.deeds import note

from .test_queue import run, told


def test_workers_are_told_to_watch_and_ignore_a_queue(delayq: Broker) -> None:
    delayq.queue("mail")
    for name in ("w1", "w2"):
        delayq.announce(name, {"queues": ["default"]})
    printed = run("delayq_queue", "watch", "mail", "--worker", "w1", "--worker", "w2")
    assert "mail: w1, w2 and all processes of the same program reserve from it too" in printed
    assert [delayq.announce(name, {}).choices for name in ("w1", "w2")] == [{"mail": "watch"}] * 2
    answer = told("delayq_queue", "ignore", "mail", "--worker", "w1")
    assert answer == {"queue": "mail", "command": "ignore", "workers": ["w1"]}
    with pytest.raises(CommandError, match="delayq_status lists the workers"):
        run("delayq_queue", "watch", "mail", "--worker", "nobody")
    with pytest.raises(CommandError, match="--worker"):
        run("delayq_queue", "watch", "mail")


@pytest.mark.django_db
def test_the_status_shows_what_a_worker_ignores(delayq: Broker) -> None:
    delayq.announce("w1", {"queues": ["default"], "ignored": ["mail"], "threads": 1})
    assert "default, not mail" in run("delayq_status")


@pytest.mark.django_db
def test_the_status_shows_limits_of_concurrency(delayq: Broker, settings: Any) -> None:
    @task(name="control.render", queue="mail", concurrency={"total": 3})
    def render() -> None: ...

    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"mail": {"concurrency": {"total": 8, "local": 2}}}}
    delayq.queue("mail")
    try:
        assert "concurrency 8 and 2 a process, concurrency of control.render 3" in run("delayq_status")
    finally:
        registry.remove(render)


def test_a_queue_is_paused_for_a_time(delayq: Broker) -> None:
    schedule(note, "1")
    before = delayq.now_ms()
    assert "default is paused: new jobs are refused until 20" in run(
        "delayq_queue", "pause", "default", "--in", "--for", "10m"
    )
    end = delayq.queue("default").layout["paused"]["in"]
    assert 600_000 <= end - before < 660_000
    answer = told("delayq_queue", "pause", "default", "--out", "--for", "1.5h")
    assert (answer["paused"], answer["paused_until"]["in"]) == ("both", iso_of(end))
    for wrong in ("0", "soon", "-5", "5w"):
        with pytest.raises(CommandError, match="not a time span"):
            run("delayq_queue", "pause", "default", f"--for={wrong}")


@pytest.mark.django_db(transaction=True)
def test_one_command_pauses_the_producers_of_all_queues(delayq: Broker) -> None:
    schedule(note, "1")
    assert told("delayq_queue", "pause-producers") == {"producers_paused": True}
    with pytest.raises(QueuePaused, match="all producers are paused"):
        schedule(note, "2")
    assert "Producers are paused" in run("delayq_status")
    assert told("delayq_status")["producers_paused"] is not None
    assert run("delayq_queue", "resume-producers") == "producers are not paused\n"
    schedule(note, "2")
    assert "Producers are paused" not in run("delayq_status")


@pytest.mark.django_db(transaction=True)
def test_the_status_shows_when_a_pause_ends(delayq: Broker) -> None:
    schedule(note, "1")
    delayq.pause("default", "out", seconds=3_599)
    assert "paused out (ends: out 59m" in run("delayq_status")
    (queue,) = told("delayq_status")["queues"]
    assert queue["paused_until"] == {"out": iso_of(delayq.queue("default").layout["paused"]["out"])}
