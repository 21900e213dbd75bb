"""Durable and plain jobs when Redis, or the process, is in trouble; and what a request loses by it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from django.db import transaction

from django_delayq import QueueUnavailable, connections, reschedule, schedule, schedule_many, transactions
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured, QueuePaused
from django_delayq.models import OutboxJob
from django_delayq.outbox import producer, push
from django_delayq.outbox.producer import PAUSE, Breaker
from django_delayq.settings.conf import conf
from django_delayq.worker.attempt import Attempt, running
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .deeds import keyed, note

pytestmark = pytest.mark.django_db(transaction=True)

#: what a request may lose to a dead Redis, whatever it schedules
BOUND = 0.25
DEATHS = ["refused", "black hole", "stopped"]


class Site:
    """A Redis behind a proxy, known to this process already."""

    def __init__(self, box: RedisBox, proxy: TcpProxy) -> None:
        self.box = box
        self.proxy = proxy

    def dies(self, how: str) -> None:
        {"refused": self.proxy.refuse, "black hole": self.proxy.blackhole, "stopped": self.box.pause}[how]()

    def comes_back(self) -> None:
        self.box.resume()
        self.proxy.passing()


@pytest.fixture
def site(
    redis_factory: Callable[..., RedisBox], proxy_factory: Callable[..., TcpProxy], settings: Any
) -> Iterator[Site]:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": proxy.url, "PREFIX": "site", "OUTBOX": {}}
    with transaction.atomic():
        schedule(note, "warm", id="warm", delay=600, durable=True)
        schedule(note, "warm", delay=600)
    assert OutboxJob.objects.get().state == "sent"
    found = Site(box, proxy)
    yield found
    found.comes_back()
    connections.close_broker()


def there() -> list[tuple[str, str]]:
    return list(OutboxJob.objects.exclude(job_id="warm").order_by("pk").values_list("job_id", "state"))


def seconds_of(deed: Callable[[], object]) -> float:
    """Return the seconds that a transaction with ``deed`` takes."""
    started = time.monotonic()
    with transaction.atomic():
        deed()
    return time.monotonic() - started


def lost(deed: Callable[[], object]) -> float:
    """Return the seconds that ``deed`` loses to Redis: what it takes more than with an open breaker."""

    def measure() -> float:
        breaker().succeeded()
        return seconds_of(deed) - seconds_of(deed)

    return shortest(measure)


def shortest(measure: Callable[[], float]) -> float:
    """Return the first measurement that is short enough, else the least of forty: the machine may be busy."""
    best = math.inf
    for _ in range(40):
        best = min(best, measure())
        if best < BOUND:
            break
    return best


def breaker() -> Breaker:
    return producer.breaker_of(connections.swift_broker())


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "plain"])
def test_g12_a_request_loses_no_more_than_its_budget_to_a_dead_redis(site: Site, how: str, durable: bool) -> None:
    assert conf().outbox.budget == 0.2
    cancelled = schedule(note, "x", id="cancelled", delay=60, durable=durable)
    site.dies(how)

    requests = 0

    def request() -> None:
        nonlocal requests
        requests += 1
        for n in range(10):
            schedule(keyed, n, id=f"j{n % 5}", durable=durable)
        schedule_many(note, [{"args": ["x"]}] * 5, durable=durable)
        cancelled.cancel()

    assert lost(request) < BOUND
    assert breaker().open_until
    # Each request left all that it asked for.
    states = [state for _, state in there()]
    assert (states.count("unsent"), states.count("cancelled"), len(states)) == (
        (15 * requests, 1, 15 * requests + 1) if durable else (0, 0, 0)
    )


def test_g12_durable_jobs_are_not_lost_and_nothing_is_raised(site: Site) -> None:
    site.dies("refused")
    with transaction.atomic():
        late = schedule(note, "x", id="late", durable=True)
    now = schedule(note, "x", id="now", durable=True)
    assert schedule_many(note, [{"args": ["x"], "id": "many"}], durable=True) == {"outbox": 1}
    assert (late.outcome, now.outcome, late.error, now.error) == ("outbox", "outbox", None, None)
    assert there() == [("late", "unsent"), ("now", "unsent"), ("many", "unsent")]
    assert not OutboxJob.objects.exclude(job_id="late").exclude(claim=None).exists(), "nobody asked"


def test_g12_verbs_of_durable_jobs_are_kept_for_the_relay(site: Site) -> None:
    with transaction.atomic():
        handles = [schedule(note, "x", id=ident, delay=60, durable=True) for ident in "abc"]
    site.dies("refused")
    assert handles[0].cancel() == "outbox"
    with transaction.atomic():
        assert handles[1].reschedule(delay=600) == "on_commit"
    assert reschedule(note, id="c", delay=5) == "outbox"
    unsent = schedule(note, "x", id="d", delay=60, durable=True)
    assert unsent.reschedule(delay=600) == "outbox"
    assert there() == [("a", "cancelled"), ("b", "moved"), ("c", "moved"), ("d", "unsent")]


def test_g12_a_plain_job_raises_outside_a_transaction_and_is_logged_and_signalled_after_a_commit(
    site: Site, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.dies("refused")
    before = transactions.not_sent["QueueUnavailable"]
    with pytest.raises(QueueUnavailable):
        schedule(note, "x")
    with transaction.atomic():
        handles = [schedule(note, "x") for _ in range(3)]
    assert [(handle.outcome, type(handle.error)) for handle in handles] == [("not_sent", QueueUnavailable)] * 3
    assert transactions.not_sent["QueueUnavailable"] == before + 3
    assert caplog.text.count("was not sent after the commit") == 3
    assert "durable=True keeps such jobs in the database" in caplog.text


def test_g12_many_shards_and_a_first_call_cost_no_more(site: Site, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"wide": {"shards": 8}}}
    with transaction.atomic():
        schedule_many(note, [{"args": ["x"]}] * 100, queue="wide", durable=True)
    site.dies("black hole")

    def request() -> None:
        schedule_many(note, [{"args": ["x"]}] * 300, queue="wide", durable=True)
        schedule_many(note, [{"args": ["x"]}] * 1000, queue="wide")

    assert lost(request) < BOUND

    def first_call() -> None:
        connections.close_broker()  # its breaker is another one
        schedule(note, "x", durable=True)

    assert shortest(lambda: seconds_of(first_call) - seconds_of(lambda: schedule(note, "x", durable=True))) < BOUND


def test_a_job_that_runs_has_time_for_what_would_be_lost_otherwise(
    site: Site,
) -> None:
    """A request is not to wait, but a handler need not lose a job because Redis hesitates."""
    schedule(note, "x")
    token = running.set(cast(Attempt, object()))
    try:
        site.proxy.delay(0.12)  # in each direction: longer than a request would wait
        with transaction.atomic():
            plain = schedule(note, "x")
        with transaction.atomic():
            durable = schedule(note, "x", durable=True)
    finally:
        running.reset(token)
    assert (plain.outcome, durable.outcome) == ("created", "outbox")


def test_the_first_success_closes_the_breaker(site: Site) -> None:
    site.dies("refused")
    with transaction.atomic():
        schedule(note, "x", durable=True)
    assert breaker().open_until
    site.comes_back()
    closed = schedule(keyed, 1, durable=True)
    assert closed.outcome == "outbox", "for a second nobody asks"
    breaker().open_until = 0.1  # the pause is over
    assert schedule(keyed, 2, durable=True).outcome == "created"
    assert not breaker().open_until


def test_a_line_that_was_lost_while_nobody_used_it_costs_no_job(site: Site) -> None:
    site.box.restart()
    site.proxy.reset_connections()
    with transaction.atomic():
        handle = schedule(note, "x", id="plain")
        durable = schedule(note, "x", id="durable", durable=True)
    assert (handle.outcome, durable.outcome, breaker().open_until) == ("created", "created", False)


def test_one_caller_tries_after_the_pause_of_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("django_delayq.outbox.producer.time.monotonic", lambda: now[0])
    found = Breaker()
    assert all(found.allows() for _ in range(4)), "four threads call a Redis that is about to hang"
    for _ in range(2):
        for _ in range(4):
            found.failed()
        now[0] += PAUSE - 0.01
        assert not found.allows()
        now[0] += 0.02
        assert [found.allows(), found.allows()] == [True, False]
    found.succeeded()
    assert (found.allows(), found.open_until) == (True, False)


def test_an_answer_is_no_failure_of_redis(delayq: Broker) -> None:
    delayq.queue("default")
    delayq.pause("default", "in")
    with transaction.atomic():
        handle = schedule(note, "x")
    assert (type(handle.error), breaker().open_until) == (QueuePaused, False)


def test_a_wrong_password_leaves_durable_jobs_to_the_relay(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Misconfigured("Redis refuses this client")

    monkeypatch.setattr("django_delayq.core.queue.Queue.schedule_many", refuse)
    monkeypatch.setattr("django_delayq.core.queue.Queue.schedule", refuse)
    with transaction.atomic():
        durable, plain = schedule(note, "x", id="d", durable=True), schedule(note, "x", id="p")
    assert (durable.outcome, plain.outcome, type(plain.error)) == ("outbox", "not_sent", Misconfigured)
    assert there() == [("d", "unsent")]


@pytest.mark.parametrize("step", ["take", "write"])
def test_a_database_that_fails_behind_the_commit_costs_neither_the_job_nor_the_request(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from django.db import OperationalError

    def fail(*_: Any, **__: Any) -> Any:
        raise OperationalError("gone")

    monkeypatch.setattr(push.Push if step == "take" else push, step, fail)
    with transaction.atomic():
        durable, plain = schedule(keyed, 1, durable=True), schedule(keyed, 2)
    assert (durable.outcome, plain.outcome) == ("outbox" if step == "take" else "created", "created")
    assert there() == [(durable.id, "unsent")], "the relay sends it, again if need be"


@pytest.mark.parametrize("ours_is_first", [True, False])
def test_g13_an_on_commit_hook_of_the_user_that_raises_costs_no_durable_job(
    delayq: Broker, ours_is_first: bool
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        if ours_is_first:
            handle = schedule(note, "x", id="a", durable=True)
        transaction.on_commit(broken)
        if not ours_is_first:
            handle = schedule(note, "x", id="a", durable=True)
    # Django calls no hook behind one that raises; then the row waits for the relay.
    assert (handle.outcome, there()) == (
        ("created", [("a", "sent")]) if ours_is_first else ("outbox", [("a", "unsent")])
    )
