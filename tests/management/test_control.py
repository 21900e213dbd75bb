"""Operators' switches of delayq_queue: the queues of running workers."""

from __future__ import annotations

import pytest
from django.core.management import CommandError

from django_delayq.core.broker import Broker

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
