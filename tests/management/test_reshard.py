"""delayq_reshard, and who else tells of a number of shards that is not the configured one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.management import CommandError

from django_delayq import connections, schedule
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import ack
from tests.app.deeds import note

from .stage import run, told


def epochs(*arguments: str) -> list[dict[str, Any]]:
    said = told("delayq_reshard", "default", *arguments)
    assert said["queue"] == "default"
    found: list[dict[str, Any]] = said["epochs"]
    return found


def test_a_queue_gets_other_shards_and_one_sees_how_far_it_is(delayq: Broker) -> None:
    schedule(note, "one", id="a")
    assert epochs("--status") == [{"epoch": 0, "shards": 1, "state": "open", "jobs": 1, "reserved": 0, "morgue": 0}]
    said = run("delayq_reshard", "default", "--shards", "4")
    assert [line.split()[:4] for line in said.splitlines()[1:3]] == [["0", "old", "1", "1"], ["1", "open", "4", "0"]]
    assert "The workers are emptying the old shards" in said
    schedule(note, "two", id="b")
    (job,) = delayq.queue("default").reserve(0, 10, worker="w").jobs
    assert delayq.queue("default").settle([ack(job, 0, 0)]) == [True]
    assert [(one["state"], one["jobs"]) for one in epochs("--status")] == [("old", 0), ("open", 1)]
    assert "A dispatcher removes them" in run("delayq_reshard", "default", "--status")


def test_it_waits_until_the_old_shards_are_empty(delayq: Broker) -> None:
    schedule(note, "one", id="a")
    queue = delayq.queue("default")
    (job,) = queue.reserve(0, 10, worker="w").jobs
    told: list[list[dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: told.append(epochs("--shards", "3", "--wait")))
    thread.start()
    other = Broker(delayq.connection, prefix=delayq.prefix).queue("default")
    while other.shards == 1:
        other.reload()
    assert not told
    assert queue.settle([ack(job, 0, 0)]) == [True]
    thread.join(20)
    assert [(one["shards"], one["jobs"]) for one in told[0]] == [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("default",), "give --shards N"),
        (("nobody", "--shards", "3"), "no queue 'nobody'. Known queues: default"),
        (("default", "--shards", "5000"), "1 to 1024"),
    ],
)
def test_what_cannot_be_done_is_said(delayq: Broker, arguments: tuple[str, ...], words: str) -> None:
    schedule(note, "one")
    with pytest.raises(CommandError, match=words):
        run("delayq_reshard", *arguments)


@pytest.mark.django_db
def test_the_check_tells_of_another_number_of_shards_and_how_to_change_it(delayq: Broker, settings: Any) -> None:
    delayq.queue("default")
    assert "OK    shards" in run("delayq_check", "--fail-level", "error")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {"shards": 7}}}
    words = "has 1 shards in Redis, but 7 are configured; Redis decides. To change it: manage.py delayq_reshard default"
    assert words in run("delayq_check")
    assert [words in sentence for sentence in connections.other_shards(connections.broker())] == [True]
    run("delayq_reshard", "default", "--shards", "7")
    assert connections.other_shards(connections.broker()) == []
