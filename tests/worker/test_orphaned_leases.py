"""A reserve whose reply was lost for good leaves leases of which the process knows nothing: they are given back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, QueueUnavailable, RedisConfig, ack, connect
from django_delayq.worker.orphaned_leases import OrphanedLeases
from tests.support.attempt_stage import make_attempt
from tests.support.duty_stage import settler_of, source_of
from tests.support.worker_stage import (
    config,
    eventually,
    held_by,
    outage_of,
    places,
    put,
    registry_of,
    sees_no_outage,
    working,
)


def stage(broker: Broker) -> tuple[Any, Any, OrphanedLeases]:
    source = source_of(broker.queue("default"))
    settler, selector = settler_of(source)
    return source, settler, OrphanedLeases("me", settler, selector, registry_of())


def unanswered() -> None:
    """A call that Redis does not answer."""
    raise QueueUnavailable("away")


def test_what_the_process_does_not_know_goes_back_uncounted_and_nothing_else(broker: Broker) -> None:
    for ident in ("known", "unknown", "foreign", "ended"):
        put(broker, "work", id=ident)
    queue = broker.queue("default")
    source, settler, orphaned = stage(broker)
    number = source.shard
    jobs = {job.id: job for ident in range(3) for job in queue.reserve(number, 1, worker="me").jobs}
    foreign = queue.reserve(number, 1, worker="somebody else").jobs[0]
    known, unknown, ended = (job for job in jobs.values())
    settler.held.add(make_attempt(known, source=source))
    given_up = make_attempt(ended, source=source)
    given_up.settlement = ack(ended, 0, 0)
    settler.held.add(given_up)
    settler.halted = True
    assert settler.call_with_retries(unanswered, [given_up], source) is None
    settler.halted = False

    orphaned.doubt(source)
    assert orphaned
    orphaned.give_back()

    assert not orphaned
    assert {job.id for job in queue.leases(number)} == {known.id, ended.id, foreign.id}
    (back,) = queue.reserve(number, 10, worker="look").jobs
    assert (back.id, back.failures, back.crashes, back.quarantined) == (unknown.id, 0, 0, False)


def test_a_shard_that_cannot_be_asked_while_the_worker_stops_is_left_to_the_reaper(broker: Broker) -> None:
    source, settler, orphaned = stage(broker)
    settler.stopping = True

    def gone(number: int) -> Any:
        raise ConnectionError("gone")

    source.queue.leases = gone  # type: ignore[method-assign]
    orphaned.doubt(source)
    orphaned.give_back()
    assert not orphaned


@pytest.mark.parametrize("outage", ["of all", "of one node"])
def test_jobs_of_a_lost_reserve_run_as_soon_as_redis_is_back(
    outage: str,
    redis_factory: Callable[..., Any],
    proxy_factory: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If only one node is away, the reserve is given up, and with it the end that it was to store."""
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    broker = Broker(connect(RedisConfig.parse(proxy.url)), lease_ms=1000)
    direct = Broker(connect(RedisConfig.parse(box.url)), lease_ms=1000)
    ran: Counter[str] = Counter()
    taken: list[str] = []

    def work(name: str) -> None:
        ran[name] += 1
        if name == "first":
            proxy.refuse()
            # What the worker is about to ask for is applied, and nobody hears of it.
            queue = direct.queue("default")
            taken.extend(job.id for job in queue.reserve(queue.numbers[0], 1, worker="me").jobs)

    for name in ("first", "second"):
        put(direct, "work", name, id=name)
    settings = config(name="me", threads=1, heartbeat=30.0, dispatcher=False)
    with (
        caplog.at_level(logging.WARNING, "django_delayq.worker"),
        working(broker, registry_of(work), settings) as worker,
    ):
        if outage == "of one node":
            sees_no_outage(worker)
            eventually(lambda: taken == ["second"] and not held_by(worker), "all was given up")
        else:
            eventually(lambda: taken == ["second"] and outage_of(worker) > 3.0, "three leases without Redis")
        assert [job.id for job in direct.queue("default").leases(0)] == ["first", "second"]
        proxy.passing()
        # How the first one ended is not known in Redis if it was given up: it is left to the reaper.
        left = {"reserved": 1} if outage == "of one node" else {}
        eventually(lambda: ran["second"] and places(direct) == left)
    assert ran == Counter(first=1, second=1)
    assert "were reserved for this process without its knowledge" in caplog.text
    broker.connection.close()
    direct.connection.close()
