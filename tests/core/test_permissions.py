"""Permissions of the Redis user: what the check refuses is what a queue needs, and the documented ones suffice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, Misconfigured, NewJob, ack, bury
from tests.support.core_stored import assert_invariants

from ..support.redis_box import RedisBox

Factory = Callable[..., RedisBox]
Opener = Callable[..., Connection]
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def open_as(box: RedisBox, opened: Opener, *rules: str) -> Connection:
    """Return a connection of a user with these rules."""
    box.client().execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rules)
    return opened(box.url, USERNAME="app", PASSWORD="pw")


def test_without_INFO_the_check_and_the_first_call_both_say_what_is_missing(
    redis_factory: Factory, opened: Opener
) -> None:
    connection = open_as(redis_factory(), opened, "~*", "&*", "+@all", "-info")
    for call in (Broker(connection).check_server, lambda: Broker(connection).queue("q")):
        with pytest.raises(Misconfigured, match=r"may not do what a queue does.*'info'.*extend its ACL"):
            call()


def test_the_permissions_that_the_documents_name_suffice(redis_factory: Factory, opened: Opener) -> None:
    (rules,) = re.findall(r"ACL SETUSER delayq on >SECRET (.*)", OPERATIONS.read_text())
    connection = open_as(redis_factory(), opened, *rules.split())
    broker = Broker(connection)
    broker.check_server()
    queue = broker.queue("q", shards=2)
    waker = broker.waker(["q"])
    news: list[Any] = [NewJob(f"j{n}", "work", fresh=n > 4) for n in range(10)]
    assert queue.schedule(news.pop()) == "created"
    queue.schedule_many(news)
    assert waker.wait(1)
    waker.close()
    assert queue.cancel("j0")
    assert queue.reschedule("j1", delay_ms=0)
    jobs = [job for number in queue.numbers for job in queue.reserve(number, 9, worker="w").jobs]
    queue.touch(jobs)
    queue.settle([*[bury(job, 1, 2, reason="why") for job in jobs[:2]], *[ack(job, 1, 2) for job in jobs[2:]]])
    assert queue.kick(jobs[0].id)
    for number in queue.numbers:
        queue.tick(number)
    broker.announce("w", {}, tasks=["work"])
    broker.limit("q", max_length=100)
    broker.reshard("q", 3)
    assert_invariants(broker)
    assert broker.inspector.counts("q").ready
    assert broker.delete_queue("q", force=True)
