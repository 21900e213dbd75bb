"""A handle names the job that its call made: whatever lives under the same id later is not touched by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq import Queue, cancel, get_job, reschedule, run_now, schedule
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job
from django_delayq.core.outcomes import ack, bury, fail
from django_delayq.models import OutboxJob
from django_delayq.scheduling.verbs import JobHandle

from .deeds import note, rest, sync
from .outbox_stage import there

VERBS: dict[str, Callable[[JobHandle], object]] = {
    "cancel": lambda handle: handle.cancel(),
    "reschedule": lambda handle: handle.reschedule(delay=7200),
    "run_now": lambda handle: handle.run_now(),
}


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test here has a Redis of its own."""


def hold(broker: Broker, handle: JobHandle) -> Job:
    """Reserve the job, as a worker does."""
    (job,) = broker.queue(handle.queue).reserve_id(handle.id, worker="w", early=True).jobs
    return job


def finish(broker: Broker, handle: JobHandle) -> None:
    """Run the job to its end."""
    assert broker.queue(handle.queue).settle([ack(hold(broker, handle), 1, 2)]) == [True]


def seconds_left(broker: Broker, handle: JobHandle) -> int:
    """Return when the live job of the handle's id is due."""
    view = broker.inspector.get(handle.queue, handle.id)
    assert view is not None
    return round((view.due_ms - broker.now_ms()) / 1000)


def make_plain(content: str = "x", **options: Any) -> JobHandle:
    return schedule(note, content, id="order-5", **{"delay": 3600, **options})


def make_merged(content: str = "x", **options: Any) -> JobHandle:
    return schedule(sync, id="order-5", payload=content, **{"delay": 3600, **options})


BOTH = pytest.mark.parametrize("make", [make_plain, make_merged])


@BOTH
@pytest.mark.parametrize("verb", VERBS)
def test_a_handle_of_a_finished_job_does_not_touch_the_next_one_of_its_id(
    delayq: Broker, make: Callable[..., JobHandle], verb: str
) -> None:
    old = make("first")
    finish(delayq, old)
    new = make("second")
    assert VERBS[verb](old) is False
    assert (old.state(), new.state(), seconds_left(delayq, new)) == (None, "delayed", 3600)
    assert VERBS[verb](new) in ("cancelled", True)


@BOTH
@pytest.mark.parametrize("verb", VERBS)
def test_a_handle_of_a_running_job_does_not_touch_what_is_gated_behind_it(
    delayq: Broker, make: Callable[..., JobHandle], verb: str
) -> None:
    old = make("first")
    job = hold(delayq, old)
    new = make("second")
    assert (new.outcome, old.state(), new.state()) == ("gated", "reserved", "gated")
    assert VERBS[verb](old) == ("stopping" if verb == "cancel" else False)
    assert delayq.queue(old.queue).settle([fail(job, 1, 2, delay_ms=0)]) == [True]
    assert new.state() == "delayed" if verb == "cancel" or make is make_plain else "ready"


@BOTH
def test_a_handle_of_gated_content_leaves_the_run_alone(delayq: Broker, make: Callable[..., JobHandle]) -> None:
    old = make("first")
    job = hold(delayq, old)
    new = make("second")
    view = get_job(new)
    assert view is not None and (view.state, view.due_ms) == ("gated", get_job(old).gated_due_ms)  # type: ignore[union-attr]
    assert new.run_now() is True
    assert get_job(new).due_ms <= delayq.now_ms()  # type: ignore[union-attr]
    assert (new.cancel(), new.state(), new.cancel()) == ("cancelled", None, False)
    assert delayq.queue(old.queue).touch([job]) == ["held"], "the run is not told to stop"
    assert delayq.queue(old.queue).settle([ack(job, 1, 2)]) == [True]
    assert delayq.inspector.get(old.queue, old.id) is None


@BOTH
def test_verbs_by_id_go_on_to_mean_whatever_lives(delayq: Broker, make: Callable[..., JobHandle]) -> None:
    finish(delayq, make("first"))
    new = make("second")
    assert reschedule(new.task, id=new.id, delay=60) is True
    assert run_now(new.id, queue=new.queue) is True
    assert get_job(new.id, queue=new.queue) is not None
    hold(delayq, new)
    make("third")
    assert cancel(new.task, id=new.id) == "stopping"
    assert get_job(new.id, queue=new.queue).gated_due_ms is None  # type: ignore[union-attr]


def test_a_replaced_job_is_not_the_one_that_replaces_it(delayq: Broker) -> None:
    old, new = make_plain("first"), make_plain("second")
    assert new.outcome == "replaced"
    assert (old.cancel(), old.reschedule(delay=1), old.run_now(), old.state()) == (False, False, False, None)
    assert (new.state(), seconds_left(delayq, new)) == ("delayed", 3600)


def test_a_call_that_is_ignored_gives_a_handle_of_the_job_that_was_there() -> None:
    first = make_plain("first")
    second = make_plain("second", on_conflict="ignore")
    assert (second.outcome, second.key == first.key, second.state()) == ("ignored", True, "delayed")
    assert (second.cancel(), first.state()) == ("cancelled", None)


def test_calls_that_are_merged_give_handles_of_one_job() -> None:
    first, second = make_merged("a"), make_merged("b")
    same = make_merged("a", score=9)
    assert {first.key, second.key, same.key} == {first.key}
    assert second.reschedule(delay=60) is True
    assert (same.cancel(), first.state(), second.state()) == ("cancelled", None, None)


def test_a_merged_payload_keeps_its_handle_through_a_run_that_fails(delayq: Broker) -> None:
    first = make_merged("a")
    job = hold(delayq, first)
    second = make_merged("b")
    delayq.queue(first.queue).settle([fail(job, 1, 2, delay_ms=60_000)])
    assert (first.state(), second.state()) == ("delayed", "delayed")
    assert second.cancel() == "cancelled"
    assert first.state() is None, "both wait in one job again"


def test_a_job_keeps_its_handle_through_failures_and_the_morgue(delayq: Broker) -> None:
    handle = make_plain()
    queue = delayq.queue(handle.queue)
    queue.settle([fail(hold(delayq, handle), 1, 2, delay_ms=60_000)])
    assert (handle.state(), handle.run_now()) == ("delayed", True)
    queue.settle([bury(hold(delayq, handle), 1, 2, reason="no")])
    new = make_plain("second")
    assert (handle.state(), handle.cancel(), new.state()) == ("morgue", False, "delayed")
    assert new.cancel() == "cancelled"
    queue.kick(handle.id, key=bytes.fromhex(handle.key), delay_ms=60_000)
    assert (handle.state(), new.state(), handle.cancel()) == ("delayed", None, "cancelled")


def test_a_merged_payload_keeps_its_handle_through_the_morgue(delayq: Broker) -> None:
    first, second = make_merged("a", score=1), make_merged("b", score=2)
    queue = delayq.queue(first.queue)
    settlement = bury(hold(delayq, first), 1, 2, reason="exhausted")
    settlement.oldest = True
    queue.settle([settlement])
    assert (first.state(), second.state()) == ("morgue", "ready")


@BOTH
def test_another_tasks_job_of_the_id_is_not_the_handles(delayq: Broker, make: Callable[..., JobHandle]) -> None:
    handle = make()
    handle.cancel()
    schedule(rest, id=handle.id, queue=handle.queue, delay=3600)
    assert [call(handle) for call in VERBS.values()] == [False, False, False]
    view = delayq.inspector.get(handle.queue, handle.id)
    assert view is not None and (view.job.task, view.state) == (rest.name, "delayed")


def test_raw_bytes_have_handles_of_their_own_jobs(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    old = Queue("feed").put(b"1", id="a")
    (job,) = Queue("feed").reserve()
    job.ack()
    new = Queue("feed").put(b"2", id="a", delay=3600)
    assert (old.cancel(), old.state(), new.cancel()) == (False, None, "cancelled")


# -- on commit -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_the_handle_names_its_job_from_the_beginning(
    delayq: Broker, make: Callable[..., JobHandle]
) -> None:
    with transaction.atomic():
        handle = make("first")
        key = handle.key
        assert handle.reschedule(delay=60) == "on_commit"
    assert (handle.key, handle.state(), seconds_left(delayq, handle)) == (key, "delayed", 60)
    finish(delayq, handle)
    new = make("second")
    with transaction.atomic():
        assert handle.cancel() == "on_commit"
    assert new.state() == "delayed"


@BOTH
@pytest.mark.django_db(transaction=True)
def test_a_handle_of_a_call_that_was_rolled_back_names_no_job(delayq: Broker, make: Callable[..., JobHandle]) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        handle = make("first")
        raise ZeroDivisionError
    new = make("second")
    assert (handle.cancel(), handle.state(), new.state()) == (False, None, "delayed")


@pytest.mark.django_db(transaction=True)
def test_what_is_merged_or_ignored_on_commit_is_the_job_that_was_there() -> None:
    plain, merged = make_plain("first"), make_merged("a")
    with transaction.atomic():
        ignored, joined = make_plain("second", on_conflict="ignore"), make_merged("a")
        assert ignored.key != plain.key
        assert joined.reschedule(delay=60) == "on_commit"
    assert (ignored.outcome, joined.outcome) == ("ignored", "merged")
    assert (ignored.key, joined.key) == (plain.key, merged.key)
    assert (joined.cancel(), merged.state()) == ("cancelled", None)


# -- durable ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.django_db(transaction=True)
def test_a_stale_handle_of_a_durable_job_does_not_touch_the_row_of_the_next_one(
    delayq: Broker, make: Callable[..., JobHandle], verb: str
) -> None:
    old = make("first", durable=True)
    finish(delayq, old)
    OutboxJob.objects.all().delete()  # as the dispatcher does when the job is done
    new = make("second", durable=True)
    due_ms = OutboxJob.objects.get().due_ms
    assert VERBS[verb](old) is False
    assert (there(), OutboxJob.objects.get().due_ms, new.state()) == ([("order-5", "sent")], due_ms, "delayed")
    with transaction.atomic():
        VERBS[verb](old)
        assert there() == [("order-5", "sent")]


@BOTH
@pytest.mark.django_db(transaction=True)
def test_a_durable_job_that_redis_never_heard_of_is_cancelled_by_its_handle(
    delayq: Broker, make: Callable[..., JobHandle]
) -> None:
    queue = make("before").queue
    cancel("order-5", queue=queue)
    delayq.pause(queue, "in")
    handle = make("first", durable=True)
    delayq.resume(queue, "in")
    assert (handle.outcome, there(), handle.state()) == ("outbox", [("order-5", "unsent")], None)
    assert (handle.cancel(), there()) == ("cancelled", [])
