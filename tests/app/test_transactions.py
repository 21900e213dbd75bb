"""Verbs inside a transaction: sent after its commit, in call order, or not at all."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import pytest
from django.db import transaction

from django_delayq import (
    cancel,
    get_job,
    schedule,
    schedule_many,
    signals,
    transactions,
)
from django_delayq.core.broker import Broker
from django_delayq.scheduling import sending

from .deeds import note, rest
from .outbox_stage import hears

pytestmark = pytest.mark.django_db(transaction=True)


def stored(broker: Broker) -> int:
    return sum(counts.delayed + counts.ready for counts in broker.inspector.all_counts())


def test_a_rollback_drops_it(delayq: Broker) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        handle = schedule(note, "x")
        raise ZeroDivisionError
    assert (handle.outcome, stored(delayq)) == ("on_commit", 0)


def test_a_savepoint_drops_only_its_own(delayq: Broker) -> None:
    with transaction.atomic():
        outer = schedule(note, "outer", id="outer")
        with suppress(ZeroDivisionError), transaction.atomic():
            schedule(note, "inner", id="inner")
            cancel(note, id="outer")
            raise ZeroDivisionError
    assert (outer.outcome, stored(delayq)) == ("created", 1)
    assert (outer.state(), get_job(note, id="inner")) == ("ready", None)


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_a_call_in_a_transaction_of_another_database_warns(delayq: Broker, postgres_alias: str) -> None:
    waiting = schedule(note, "x", id="a", delay=60)
    with transaction.atomic(using="postgres"):
        with pytest.warns(RuntimeWarning, match="using_db='postgres' to wait for its commit") as warned:
            schedule(note, "y")
        assert warned[0].filename == __file__
        with pytest.warns(RuntimeWarning, match=r"schedule_many\(\) is sent at once"):
            schedule_many(rest, [{}])
        with pytest.warns(RuntimeWarning, match=r"reschedule\(\) is sent at once"):
            waiting.reschedule(delay=30)
        with pytest.warns(RuntimeWarning, match=r"cancel\(\) is sent at once"):
            assert cancel(note, id="a") == "cancelled"
        # Calls that say what they wait for do not.
        assert schedule(note, "z", using_db="default").outcome == "created"
        assert schedule(note, "z", using_db="postgres").outcome == "on_commit"
        with transaction.atomic():
            assert schedule(note, "z").outcome == "on_commit"
    assert schedule(note, "z").outcome == "created"


def test_verbs_are_sent_in_the_order_of_the_calls(delayq: Broker) -> None:
    with transaction.atomic():
        first = schedule(note, "1", id="a", delay=60)
        assert cancel(note, id="a") == "on_commit"
        second = schedule(note, "2", id="a", delay=60)
        assert second.reschedule(delay=3600) == "on_commit"
        assert schedule_many(rest, [{}, {}]) == {"on_commit": 2}
    assert (first.outcome, second.outcome) == ("created", "created")
    assert delayq.inspector.peek("default")[0].due_ms > delayq.now_ms() + 3_500_000
    assert delayq.inspector.counts("naps").ready == 2


def test_bad_input_is_refused_at_the_call_not_at_the_commit(delayq: Broker) -> None:
    with transaction.atomic():
        with pytest.raises(TypeError):
            schedule(note)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="set"):
            schedule(note, {1})
    assert stored(delayq) == 0


def test_what_fails_after_the_commit_is_logged_counted_and_signalled(
    delayq: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(note, "live", id="a", delay=60)
    before = transactions.not_sent["IdTaken"]
    with hears(signals.job_not_sent, "sender", "verb", "id", "queue") as heard, transaction.atomic():
        handle = schedule(note, "again", id="a", on_conflict="error")
        later = schedule(note, "later")
    assert (handle.outcome, type(handle.error).__name__, later.outcome) == ("not_sent", "IdTaken", "created")
    assert transactions.not_sent["IdTaken"] == before + 1
    assert heard == [(note, "schedule", "a", "default")]
    assert "schedule of a in queue default was not sent after the commit" in caplog.text


def test_jobs_of_many_that_find_no_place_after_the_commit_are_logged_and_counted(
    delayq: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    schedule(note, "live", id="a", delay=60)
    before = transactions.not_sent["exists"]
    with caplog.at_level(logging.ERROR, "django_delayq"), transaction.atomic():
        entries = [{"args": ["again"], "id": "a"}, {"args": ["new"], "id": "b"}]
        assert schedule_many(note, entries, on_conflict="error") == {"on_commit": 2}
    assert (transactions.not_sent["exists"], stored(delayq)) == (before + 1, 2)
    assert "schedule of 1 jobs in queue default had no effect after the commit: exists" in caplog.text


def test_the_wait_for_the_commit_is_a_part_of_the_delay(delayq: Broker) -> None:
    handle = schedule(note, "x", id="a", delay=3600)
    with transaction.atomic():
        called_ms = delayq.now_ms()
        handle.reschedule(delay=60)
        time.sleep(0.5)
    job = get_job(note, id="a")
    assert job is not None
    assert job.due_ms - called_ms == pytest.approx(60_000, abs=300)


def test_every_chunk_of_a_long_list_is_counted(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CHUNK", 2)
    with transaction.atomic():
        assert schedule_many(note, [{"args": ["x"]}] * 5) == {"on_commit": 5}
