"""cancel, reschedule and run_now of durable jobs: the rows first, then Redis."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_delayq import IdTaken, cancel, connections, reschedule, run_now, schedule, signals, task
from django_delayq.connections import DjangoBroker
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import fail
from django_delayq.core.queue import Queue
from django_delayq.core.task import registry
from django_delayq.models import OutboxJob
from django_delayq.outbox import durability, push
from tests.support.api_caller import make_caller

from .deeds import keyed, note, rest
from .outbox_stage import Stage, hears, there

pytestmark = pytest.mark.django_db(transaction=True)


#: s; the delays of these tests
DELAYS = (0, 5, 60, 120, 600)


def stored(broker: Broker, queue: str = "default") -> dict[str, int]:
    """Id -> the delay with which it was scheduled, if that is one of these tests; else the seconds until it is due."""
    jobs = broker.inspector.page(queue, "waiting", limit=1000).jobs
    return {job.id: _delay((job.due_ms - broker.now_ms()) / 1000) for job in jobs}


def _delay(left: float) -> int:
    """Return the delay of which so many seconds are left; on a busy machine some of them are over."""
    return next((delay for delay in DELAYS if delay - 30 < left < delay + 0.5), round(left))


@pytest.fixture(autouse=True)
def outbox_is_named(delayq: Broker, settings: Any) -> None:
    """Only calls say here that their jobs are durable, so the settings name the outbox."""
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {}}


@pytest.fixture
def unsent(delayq: Broker) -> Iterator[None]:
    """Schedule a durable job that waits for the relay."""
    delayq.queue("default")
    delayq.pause("default", "in")
    schedule(note, "x", id="a", delay=60, durable=True)
    delayq.resume("default", "in")
    assert (there(), stored(delayq)) == ([("a", "unsent")], {})
    yield


@pytest.fixture
def no_durable_tasks(settings: Any) -> Iterator[None]:
    """No task that is registered here is durable by itself, and the settings do not name the outbox."""
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "OUTBOX"}
    durable = [one for one in registry if one.options.durable]
    for one in durable:
        registry.remove(one)
    yield
    for one in durable:
        registry.add(one)


def in_hand_of_somebody_else() -> None:
    OutboxJob.objects.update(claim=uuid.uuid4(), claimed_until=Now() + timedelta(seconds=60))


def test_a_cancelled_job_is_gone_from_both(delayq: Broker) -> None:
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    schedule(note, "x", id="b", delay=60, durable=True)
    assert handle.cancel() == "cancelled"
    assert cancel(note, id="b") == "cancelled"
    assert (there(), stored(delayq), handle.cancel()) == ([], {}, False)


def test_in_a_transaction_the_row_is_marked_at_once_and_redis_is_told_after_the_commit(delayq: Broker) -> None:
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    with suppress(ZeroDivisionError), transaction.atomic():
        assert (handle.cancel(), there(), stored(delayq)) == ("on_commit", [("a", "cancelled")], {"a": 60})
        raise ZeroDivisionError
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 60})
    with transaction.atomic():
        assert handle.cancel() == "on_commit"
    assert (there(), stored(delayq)) == ([], {})


def test_an_unsent_row_is_cancelled_although_redis_never_heard_of_it(delayq: Broker, unsent: None) -> None:
    with hears(signals.job_cancelled, "outcome") as heard:
        assert cancel(note, id="a") == "cancelled"
    assert (there(), stored(delayq), heard) == ([], {}, ["cancelled"])


def test_a_running_job_is_stopped_and_needs_no_row_any_more(delayq: Broker) -> None:
    handle = schedule(note, "x", id="a", durable=True)
    delayq.queue("default").reserve_id("a", worker="w")
    assert (handle.cancel(), there()) == ("stopping", [])


def test_an_unsent_row_that_is_rescheduled_is_sent_with_the_new_time(delayq: Broker, unsent: None) -> None:
    assert reschedule(note, id="a", delay=600) is True
    row = OutboxJob.objects.get()
    assert (row.state, round(row.expected_ms / 1000 - time.time())) == ("unsent", 600)
    assert run_now(note, id="a") is True
    row.refresh_from_db()
    assert (row.state, round(row.expected_ms / 1000 - time.time())) == ("unsent", 0)
    assert Stage(cast(DjangoBroker, delayq)).relay().turn() == {"sent": 1}, "it rests no more"


def test_a_job_that_rests_unconfirmed_is_cancelled_at_once(delayq: Broker) -> None:
    """Redis has it, so it might run before the rest is over."""
    schedule(note, "x", id="a", delay=60, durable=True)
    OutboxJob.objects.update(state="unsent", sent_at=None)
    push.write(OutboxJob.objects.all(), push.RowResult(push.RowOutcome.LATER, push.UNCONFIRMED, 7))
    assert (cancel(note, id="a"), there(), stored(delayq)) == ("cancelled", [], {})


def test_a_sent_job_that_is_rescheduled_is_moved_in_both(delayq: Broker) -> None:
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    assert handle.reschedule(delay=600) is True
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 600})
    with transaction.atomic():
        assert handle.run_now() == "on_commit"
        assert (there(), stored(delayq)) == ([("a", "moved")], {"a": 600})
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 0})
    assert abs(OutboxJob.objects.get().expected_ms / 1000 - time.time()) < 5


def test_verbs_of_one_transaction_follow_each_other(delayq: Broker) -> None:
    with transaction.atomic():
        first = schedule(note, "x", id="a", delay=60, durable=True)
        first.reschedule(delay=600)
        gone = schedule(note, "x", id="b", delay=60, durable=True)
        gone.cancel()
        again = schedule(note, "x", id="b", delay=120, durable=True)
    assert [handle.outcome for handle in (first, gone, again)] == ["created", "ignored", "created"]
    assert (there(), stored(delayq)) == ([("a", "sent"), ("b", "sent")], {"a": 600, "b": 120})


def test_a_row_in_somebody_elses_hand_is_left_to_who_has_it(delayq: Broker, unsent: None) -> None:
    in_hand_of_somebody_else()
    assert reschedule(note, id="a", delay=600) == "outbox"
    assert there() == [("a", "moved")], "who has it in hand may have sent it with the old time"
    OutboxJob.objects.update(state="unsent")
    assert cancel(note, id="a") == "outbox"
    assert there() == [("a", "cancelled")]


@pytest.mark.parametrize("by", ["handle", "id", "http"])
def test_a_cancel_that_a_relay_carries_out_first_is_not_answered_as_if_there_was_no_job(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Between the commit and the claim of the process that cancels."""
    stage, take = Stage(cast(DjangoBroker, delayq)), push.Push.take
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    api = make_caller("operate")

    def late(mine: push.Push, *args: Any) -> Any:
        monkeypatch.setattr(push.Push, "take", take)
        assert stage.relay().turn() == {"gone": 1}
        return take(mine, *args)

    monkeypatch.setattr(push.Push, "take", late)
    if by == "http":
        assert api.delete("v1/queues/default/jobs/a")[0] == 202
    else:
        assert (handle.cancel() if by == "handle" else cancel(note, id="a")) == "outbox"
    assert (there(), stored(delayq), cancel(note, id="a")) == ([], {}, False)


def while_on_its_way(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> None:
    """``deed`` happens between the claim of the next job and its arrival."""
    real = Queue.schedule_many

    def schedule_many(queue: Queue, *args: Any, **options: Any) -> list[str]:
        monkeypatch.undo()
        deed()
        return real(queue, *args, **options)

    monkeypatch.setattr(Queue, "schedule_many", schedule_many)


def test_a_cancel_wins_over_a_sender_in_flight(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    while_on_its_way(monkeypatch, lambda: cancel(note, id="a"))
    schedule(note, "x", id="a", delay=60, durable=True)
    assert Stage(cast(DjangoBroker, delayq)).relay().turn() == {"gone": 1}, "at once"
    assert (there(), stored(delayq)) == ([], {})


def test_a_reschedule_wins_over_a_sender_in_flight(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    while_on_its_way(monkeypatch, lambda: reschedule(note, id="a", delay=600))
    schedule(note, "x", id="a", delay=60, durable=True)
    assert Stage(cast(DjangoBroker, delayq)).relay().turn() == {"sent": 1}, "at once"
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 600})


def test_a_sender_that_slept_past_its_claim_changes_nothing(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision about the row in the meantime stands (here: cancelled and reported, so deleted)."""

    def sleep_and_be_cancelled() -> None:
        monkeypatch.setattr(push, "BRIEF", 2.0)  # who cancels is awake
        OutboxJob.objects.update(claimed_until=Now() - timedelta(seconds=1))
        assert cancel(note, id="a") == "cancelled"
        assert there() == []

    monkeypatch.setattr(push, "BRIEF", -1.0)  # the deadline is in the past
    while_on_its_way_keep = Queue.schedule_many
    done: list[bool] = []

    def schedule_many(queue: Queue, *args: Any, **options: Any) -> list[str]:
        if not done:
            done.append(True)
            sleep_and_be_cancelled()
        return while_on_its_way_keep(queue, *args, **options)

    monkeypatch.setattr(Queue, "schedule_many", schedule_many)
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    assert (handle.outcome, there(), stored(delayq)) == ("outbox", [], {})


def test_who_cancels_and_sleeps_takes_nothing_that_came_later(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the commit and the word to Redis; meanwhile the relay tells it, and the id is scheduled again."""
    schedule(note, "old", id="a", delay=60, durable=True)
    stage, awake = Stage(cast(DjangoBroker, delayq)), Queue.cancel

    def asleep(queue: Queue, *args: Any, **options: Any) -> str:
        monkeypatch.undo()
        schedule(note, "new", id="a", delay=60, durable=True)
        assert there() == [("a", "cancelled"), ("a", "unsent")], "nobody else tells it as long as the claim lasts"
        stage.age(3, "claimed_until")
        time.sleep(0.5)
        assert sum(stage.relay().turn().values()) == 2
        return awake(queue, *args, **options)

    monkeypatch.setattr(push, "BRIEF", push.MARGIN + 0.3)
    monkeypatch.setattr(Queue, "cancel", asleep)
    assert cancel(note, id="a") == "outbox"
    stage.take_down()
    assert there() == [("a", "sent")]
    assert [job.job.args for job in delayq.inspector.page("default", "waiting").jobs] == [b'["new"]']


def test_a_lost_job_that_is_rescheduled_comes_back_at_once(delayq: Broker) -> None:
    """Not after the next look of the reconciler, which may be later than its new time."""
    stage = Stage(cast(DjangoBroker, delayq))
    schedule(note, "x", id="a", delay=60, durable=True)
    stage.lose_everything()
    assert (reschedule(note, id="a", delay=5), there()) == ("outbox", [("a", "unsent")])
    assert stage.relay().turn() == {"sent": 1}
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 5})


def refuse() -> None:
    """Let Redis have refused what is not sent."""
    OutboxJob.objects.filter(state="unsent").update(state="refused", error="too large", claimed_until=Now())


def test_a_refused_job_that_is_cancelled_cannot_be_sent_again(delayq: Broker, unsent: None) -> None:
    refuse()
    assert (cancel(note, id="a"), there(), cancel(note, id="a")) == ("cancelled", [], False)


def test_a_refused_job_is_not_moved(delayq: Broker, unsent: None) -> None:
    refuse()
    assert (reschedule(note, id="a", delay=5), run_now(note, id="a")) == (False, False)
    assert there() == [("a", "refused")]


def test_a_refused_job_that_is_replaced_cannot_be_sent_again(delayq: Broker, unsent: None) -> None:
    refuse()
    schedule(note, "y", id="a", delay=60, durable=True)
    assert there() == [("a", "sent")]


@pytest.mark.parametrize("verb", ["reschedule", "run_now", "on_commit"])
def test_the_retry_of_a_running_job_that_was_not_moved_keeps_its_time(delayq: Broker, verb: str) -> None:
    handle = schedule(note, "x", id="a", durable=True)
    queue = delayq.queue("default")
    (job,) = queue.reserve_id("a", worker="w").jobs
    if verb == "on_commit":
        with transaction.atomic():
            assert reschedule(note, id="a", delay=timedelta(days=3)) == "on_commit"
    else:
        assert (handle.reschedule(delay=timedelta(days=3)) if verb == "reschedule" else handle.run_now()) is False
    assert there() == [("a", "sent")]
    assert queue.settle([fail(job, 0, 0, delay_ms=60_000)]) == [True]
    stage = Stage(cast(DjangoBroker, delayq))
    stage.relay().turn()
    assert stored(delayq) == {"a": 60}


def test_a_running_job_that_was_not_moved_is_due_at_once_if_redis_loses_it(delayq: Broker) -> None:
    schedule(note, "x", id="a", durable=True)
    delayq.queue("default").reserve_id("a", worker="w")
    assert reschedule(note, id="a", delay=timedelta(days=3)) is False
    stage = Stage(cast(DjangoBroker, delayq))
    stage.lose_everything()
    stage.age(3600, "checked_at", "sent_at")
    assert stage.reconciler().run() > 0
    assert stage.relay().turn() == {"sent": 1}
    assert stored(delayq) == {"a": 0}


def test_an_id_of_another_task_is_left_alone(delayq: Broker) -> None:
    schedule(note, "x", id="a", delay=60, durable=True)
    with pytest.raises(IdTaken):
        cancel(keyed, id="a")
    with pytest.raises(IdTaken):
        reschedule(keyed, id="a", delay=5)
    assert (there(), stored(delayq)) == ([("a", "sent")], {"a": 60})
    assert cancel("a", queue="default") == "cancelled"


@pytest.mark.django_db(transaction=False)
def test_where_the_outbox_is_not_in_use_no_verb_asks_the_database(
    delayq: Broker, no_durable_tasks: None, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        connections.close_broker()
        handle = schedule(rest, id="a", delay=60)
        handle.run_now()
        handle.cancel()
        assert not durability.in_use("default", "naps", rest)


@pytest.mark.parametrize(
    "settings_of", [{"OUTBOX": {}}, {"QUEUES": {"default": {"durable": True}}}], ids=["outbox", "queue"]
)
def test_the_outbox_is_in_use_when_the_settings_say_so(
    delayq: Broker, settings: Any, settings_of: dict[str, Any]
) -> None:
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    settings.DELAYQ = {**settings.DELAYQ, **settings_of}  # another process, which never met a durable job
    assert cancel(note, id="a") == "cancelled"
    assert there() == []
    assert handle.cancel() is False


def test_a_durable_task_speaks_for_its_own_jobs_and_queue(delayq: Broker, no_durable_tasks: None) -> None:
    kept = task(name="test.kept", queue="kept", durable=True)(lambda: None)
    try:
        assert durability.in_use("default", "elsewhere", kept)
        assert durability.in_use("default", "kept", None)
        assert not durability.in_use("default", "kept", rest)
        assert not durability.in_use("default", "elsewhere", None)
        assert not durability.in_use("another database", "kept", kept)
    finally:
        registry.remove(kept)


def test_a_handle_knows_that_its_job_is_durable(delayq: Broker, no_durable_tasks: None, settings: Any) -> None:
    handle = schedule(note, "x", id="a", delay=60, durable=True)
    settings.DELAYQ = {**settings.DELAYQ}
    assert not durability.in_use("default", "default", note)
    assert (handle.cancel(), there()) == ("cancelled", [])
