"""Schedules of one transaction share a round trip, and nobody can tell but by the time it takes."""

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

from ..support.preemption import Line
from .deeds import keyed, note, rest, sync

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


def test_schedules_in_a_row_share_a_round_trip_and_keep_their_order(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        handles = [schedule(keyed, n, id=f"j{n % 3}") for n in range(5)]
        plain = [schedule(note, "x") for _ in range(5)]
    assert calls == ["schedule"]
    assert [handle.outcome for handle in handles] == ["created"] * 3 + ["ignored"] * 2
    assert stored(delayq) == ["j0", "j1", "j2", *(handle.id for handle in plain)]


def test_one_schedule_alone_takes_the_shorter_way(delayq: Broker, calls: list[str]) -> None:
    schedule(note, "x")  # a shard writes down the name of a task that it did not know
    with transaction.atomic():
        schedule(note, "x")
    assert calls == ["schedule_fresh"]


def test_plain_durable_and_merged_jobs_travel_together(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        for durable in (True, False):
            schedule(note, "x", durable=durable)
            schedule(sync, id=1, payload=durable, queue="default", durable=durable)
    assert calls == ["schedule"]


def test_another_queue_or_another_verb_begins_a_new_call(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        schedule(note, "1", id="a")
        schedule(rest, id="b")
        schedule(rest, id="c")
        schedule(note, "2", id="d")
        cancel(note, id="a")
        schedule(note, "3", id="e")
    assert calls == ["schedule", "schedule", "schedule", "change", "schedule"]
    assert (stored(delayq), stored(delayq, "naps")) == (["d", "e"], ["b", "c"])


def test_a_long_transaction_is_sent_in_calls_of_bearable_size(delayq: Broker, calls: list[str]) -> None:
    schedule(note, "x")
    with transaction.atomic():
        handles = [schedule(note, "x") for _ in range(transactions.TOGETHER + 1)]
    assert calls == ["schedule", "schedule_fresh"]
    assert {handle.outcome for handle in handles} == {"created"}


def test_savepoints_that_were_closed_do_not_part_what_travels_together(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        for n in range(5):
            with transaction.atomic():
                schedule(note, "x", id=f"j{n}")
        schedule(note, "x", id="last")
    assert calls == ["schedule"]
    assert stored(delayq) == ["j0", "j1", "j2", "j3", "j4", "last"]


def test_several_schedules_of_a_savepoint_travel_with_those_around_it(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        schedule(note, "x", id="before")
        with transaction.atomic():
            for n in range(3):
                schedule(note, "x", id=f"j{n}")
        schedule(note, "x", id="last")
    assert calls == ["schedule"]
    assert stored(delayq) == ["before", "j0", "j1", "j2", "last"]


def test_savepoints_inside_each_other_are_followed(delayq: Broker, calls: list[str]) -> None:
    with transaction.atomic():
        schedule(note, "x", id="outer")
        with suppress(Undo), transaction.atomic():
            schedule(note, "x", id="dropped with the outer savepoint")
            with transaction.atomic():
                schedule(note, "x", id="closed, but inside of it")
            schedule(note, "x", id="seen to be closed")
            raise Undo
        with transaction.atomic(), transaction.atomic(savepoint=False):
            schedule(note, "x", id="kept")
        schedule(note, "x", id="end")
    assert stored(delayq) == ["outer", "kept", "end"]
    assert len(calls) == 2, "what was rolled back parts those around it"


def test_a_savepoint_that_is_rolled_back_last_drops_its_own(delayq: Broker, calls: list[str]) -> None:
    """No call follows, so its rollback is still unnoticed when the first callback runs."""
    with transaction.atomic():
        schedule(note, "x", id="a")
        schedule(note, "x", id="b")
        with suppress(Undo), transaction.atomic():
            schedule(note, "x", id="c")
            raise Undo
    assert (stored(delayq), calls) == (["a", "b"], ["schedule"])


def test_hooks_of_the_user_run_once_each_in_their_order(delayq: Broker, calls: list[str]) -> None:
    order: list[object] = []
    with transaction.atomic():
        transaction.on_commit(lambda: order.append(("first", list(calls))))
        schedule(note, "x", id="a")
        transaction.on_commit(lambda: order.append(("middle", stored(delayq))))
        schedule(note, "x", id="b")
        transaction.on_commit(lambda: order.append("last"))
    assert order == [("first", []), ("middle", ["a", "b"]), "last"]
    assert calls == ["schedule"]


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
    heard: list[tuple[str, str]] = []

    def sent(**said: Any) -> None:
        heard.append((said["id"], said["outcome"]))

    def not_sent(**said: Any) -> None:
        heard.append((said["id"], type(said["error"]).__name__))

    signals.job_scheduled.connect(sent)
    signals.job_not_sent.connect(not_sent)
    try:
        with transaction.atomic():
            first = schedule(note, "x", id="b", delay=60)
            refused = schedule(note, "x", id="a", on_conflict="error")
            other = schedule(keyed, id="a")
            last = schedule(note, "x", id="c", delay=60)
    finally:
        signals.job_scheduled.disconnect(sent)
        signals.job_not_sent.disconnect(not_sent)
    assert [handle.outcome for handle in (first, refused, other, last)] == [
        "created",
        "not_sent",
        "not_sent",
        "created",
    ]
    assert [type(handle.error) for handle in (refused, other)] == [IdTaken, IdTaken]
    assert heard == [("b", "created"), ("a", "IdTaken"), ("a", "IdTaken"), ("c", "created")]
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
def test_each_callback_of_djangos_test_helper_is_one_verb(
    delayq: Broker, calls: list[str], django_capture_on_commit_callbacks: Any
) -> None:
    schedule(note, "x", id="not captured")
    with django_capture_on_commit_callbacks() as callbacks:
        for ident in "abc":
            schedule(note, "x", id=ident)
    assert [callback.what.id for callback in callbacks] == ["a", "b", "c"]
    callbacks[1]()
    assert stored(delayq) == ["b"]
    with django_capture_on_commit_callbacks(execute=True):
        schedule(note, "x", id="d")
        with transaction.atomic():
            schedule(note, "x", id="e")
        with suppress(Undo), transaction.atomic():
            schedule(note, "x", id="dropped")
            raise Undo
    assert stored(delayq) == ["b", "d", "e"]


def test_ten_thousand_savepoints_are_followed_without_looking_at_all_of_them_each_time(delayq: Broker) -> None:
    """The work of a call does not grow with the number of calls before it."""
    line = transactions.CommitQueue(connection)
    looked_at = 0

    class Callbacks(list[Any]):
        def __reversed__(self) -> Iterator[Any]:
            nonlocal looked_at
            for item in super().__reversed__():
                looked_at += 1
                yield item

    callbacks = Callbacks()

    class Connection:
        in_atomic_block = False
        run_on_commit = callbacks
        savepoint_ids: tuple[str, ...] = ()

    line._connection = Connection()  # type: ignore[assignment]
    for n in range(10_000):
        late = transactions.OnCommitCall(lambda: None, transactions.CallDescription("schedule", "q", str(n)))
        Connection.savepoint_ids = (f"s{n}",)
        line.append(late)
        callbacks.append((set(Connection.savepoint_ids), late, True))
    assert looked_at < 2 * 10_000


def test_nothing_of_a_transaction_is_kept_by_those_that_follow(delayq: Broker) -> None:
    def kept() -> int:
        gc.collect()
        return sum(issubclass(type(one), transactions.OnCommitCall) for one in gc.get_objects())

    before = kept()
    for _ in range(5):
        with transaction.atomic():
            schedule(note, "x")
    assert kept() <= before + 1


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
