"""Durable schedules of one transaction share a round trip, and nobody can tell but by the time it takes."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction

from django_delayq import IdTaken, cancel, connections, schedule, signals, transactions
from django_delayq.core.broker import Broker
from django_delayq.outbox import producer

from ..support.preemption import Line
from .deeds import keyed, note, rest, sync
from .outbox_stage import hears

pytestmark = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    """Rolls the block back."""


@pytest.fixture
def calls(delayq: Broker) -> Iterator[list[str]]:
    """The scripts that were called after a commit, in order."""
    swift = connections.swift_broker()
    for name in ("default", "naps"):
        swift.queue(name)
    heard: list[str] = []
    swift.observe(lambda verb, seconds, failed: heard.append(verb))
    yield heard


def stored(broker: Broker, queue: str = "default") -> list[str]:
    return [view.id for view in broker.inspector.page(queue, "waiting", limit=1000).jobs]


def test_durable_schedules_in_a_row_share_a_round_trip_and_keep_their_order(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        handles = [schedule(keyed, n, id=f"j{n % 3}", durable=True) for n in range(5)]
        others = [schedule(note, "x", durable=True) for _ in range(5)]
        assert {handle.outcome for handle in handles} == {"outbox"}
    assert calls == ["schedule"]
    assert [handle.outcome for handle in handles] == ["created"] * 3 + ["ignored"] * 2
    assert stored(delayq) == ["j0", "j1", "j2", *(handle.id for handle in others)]


def test_each_plain_schedule_is_a_call_of_its_own_and_the_shorter_one(delayq: Broker, calls: list[str]) -> None:
    schedule(note, "x")  # a shard writes down the name of a task that it did not know
    with transaction.atomic():
        handles = [schedule(note, "x") for _ in range(3)]
    assert calls == ["schedule_fresh"] * 3
    assert {handle.outcome for handle in handles} == {"created"}


def test_durable_and_merged_jobs_travel_together(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        for payload in range(2):
            schedule(note, "x", durable=True)
            schedule(sync, id=1, payload=payload, queue="default", durable=True)
    assert calls == ["schedule"]


def test_another_queue_or_another_verb_begins_a_new_call(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        schedule(note, "1", id="a")
        schedule(rest, id="b", durable=True)
        schedule(rest, id="c", durable=True)
        schedule(note, "2", id="d", durable=True)
        cancel(note, id="a")
        schedule(note, "3", id="e", durable=True)
    assert calls == ["schedule", "schedule", "schedule", "change", "schedule"]
    assert (stored(delayq), stored(delayq, "naps")) == (["d", "e"], ["b", "c"])


def test_a_long_transaction_is_sent_in_calls_of_bearable_size(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        handles = [schedule(note, "x", durable=True) for _ in range(producer.TOGETHER + 1)]
    assert calls == ["schedule"] * 2
    assert {handle.outcome for handle in handles} == {"created"}


def test_savepoints_do_not_part_what_travels_together(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        schedule(note, "x", id="before", durable=True)
        for n in range(3):
            with transaction.atomic(), transaction.atomic(savepoint=False):
                schedule(note, "x", id=f"j{n}", durable=True)
        schedule(note, "x", id="last", durable=True)
    assert calls == ["schedule"]
    assert stored(delayq) == ["before", "j0", "j1", "j2", "last"]


def test_the_first_one_may_be_rolled_back(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        with suppress(Undo), transaction.atomic():
            schedule(note, "x", id="dropped", durable=True)
            raise Undo
        schedule(note, "x", id="a", durable=True)
        schedule(note, "x", id="b", durable=True)
    assert (stored(delayq), calls) == (["a", "b"], ["schedule"])


def test_hooks_of_the_user_run_once_each_in_their_order(delayq: Broker, calls: list[str]) -> None:
    order: list[object] = []
    with transaction.atomic():
        transaction.on_commit(lambda: order.append(("first", list(calls))))
        schedule(note, "x", id="a", durable=True)
        transaction.on_commit(lambda: order.append(("middle", stored(delayq))))
        schedule(note, "x", id="b", durable=True)
        transaction.on_commit(lambda: order.append("last"))
    assert order == [("first", []), ("middle", ["a"]), "last"]
    assert calls == ["schedule", "schedule"]


def test_a_hook_that_schedules_in_a_transaction_of_its_own_is_another_matter(delayq: Broker, calls: list[str]) -> None:
    def hook() -> None:
        with transaction.atomic():
            schedule(note, "x", id="from the hook")
            assert "from the hook" not in stored(delayq)

    with transaction.atomic():
        transaction.on_commit(hook)
        schedule(note, "x", id="a")
        schedule(note, "x", id="b")
    assert stored(delayq) == ["from the hook", "a", "b"]


def test_one_that_is_refused_does_not_hinder_the_others(delayq: Broker, calls: list[str]) -> None:
    schedule(note, "live", id="a", delay=60)
    scheduled, refusals = hears(signals.job_scheduled, "id"), hears(signals.job_not_sent, "id", "error")
    with scheduled as sent, refusals as not_sent, transaction.atomic():
        first = schedule(note, "x", id="b", delay=60, durable=True)
        refused = schedule(note, "x", id="a", on_conflict="error", durable=True)
        other = schedule(keyed, id="a", durable=True)
        last = schedule(note, "x", id="c", delay=60, durable=True)
    assert [handle.outcome for handle in (first, refused, other, last)] == [
        "created",
        "not_sent",
        "not_sent",
        "created",
    ]
    assert [type(handle.error) for handle in (refused, other)] == [IdTaken, IdTaken]
    assert (sent, not_sent) == (["b", "c"], [("a", IdTaken)] * 2)
    assert (calls, stored(delayq)) == (["schedule"], ["a", "b", "c"])


def test_transactions_of_two_threads_do_not_mix(delayq: Broker, calls: list[str]) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one transaction at a time")
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        try:
            with transaction.atomic():
                schedule(note, "x", id="other")
                inside.set()
                assert done.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    try:
        with transaction.atomic():
            schedule(note, "x", id="mine")
            schedule(note, "x", id="mine too")
        assert stored(delayq) == ["mine", "mine too"]
    finally:
        done.set()
        thread.join()
    assert stored(delayq) == ["mine", "mine too", "other"]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("durable", [False, True])
def test_each_callback_of_djangos_test_helper_is_one_verb(
    delayq: Broker, calls: list[str], django_capture_on_commit_callbacks: Any, durable: bool
) -> None:
    schedule(note, "x", id="not captured", durable=durable)
    with django_capture_on_commit_callbacks() as callbacks:
        for ident in "abc":
            schedule(note, "x", id=ident, durable=durable)
    assert [callback.what.id for callback in callbacks] == ["a", "b", "c"]
    callbacks[1]()
    assert stored(delayq) == ["b"]
    with django_capture_on_commit_callbacks(execute=True):
        schedule(note, "x", id="d", durable=durable)
        with transaction.atomic():
            schedule(note, "x", id="e", durable=durable)
        with suppress(Undo), transaction.atomic():
            schedule(note, "x", id="dropped", durable=durable)
            raise Undo
    # Each call reads Redis's clock for itself, so due times of the same moment may differ by a millisecond.
    assert sorted(stored(delayq)) == ["b", "d", "e"]


def test_nothing_of_a_transaction_is_kept_by_those_that_follow(delayq: Broker) -> None:
    def kept() -> int:
        gc.collect()
        return sum(issubclass(type(one), transactions.OnCommitCall) for one in gc.get_objects())

    before = kept()
    for _ in range(5):
        with transaction.atomic():
            schedule(note, "x")
            schedule(note, "x", durable=True)
    assert kept() <= before


def test_refusals_that_two_threads_count_at_once_are_all_counted() -> None:
    """The first of a reason takes several steps."""
    what = transactions.CallDescription("schedule", "default", "")
    other = threading.Thread(target=transactions.log_refused, args=(what, {"full": 3}))
    before = transactions.not_sent.pop("full", 0)

    def count_too() -> None:
        other.start()
        other.join(0.05)  # it may have to wait

    line = Line(1, Counter.__missing__)
    with line.preempted(count_too):
        transactions.log_refused(what, {"full": 2})
    assert line.reached
    other.join()
    assert transactions.not_sent["full"] == 5
    transactions.not_sent["full"] += before
