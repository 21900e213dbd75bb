"""Another try with other arguments: never twice, never lost, whoever dies on the way."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from django_delayq import schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode_args, encode
from django_delayq.core.errors import InvalidJob, QueueFull
from django_delayq.core.job import NewJob, Payload, is_durable, new_key
from django_delayq.core.job_view import JobView
from django_delayq.core.redis.scripts import SentCalls
from django_delayq.core.task import registry
from django_delayq.models import FailedJob, MorgueJob, OutboxJob
from django_delayq.repair.jobs import retry_edited
from tests.support.processes import wait_until

from .deeds import note
from .mirror_stage import Trouble, tables

pytestmark = pytest.mark.django_db(transaction=True)
OPTIONS = b'{"context":{"trace":"t"},"max_attempts":3}'


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """One queue with three shards."""
    return Trouble(delayq, shards=3)


def view(trouble: Trouble, ident: str = "a") -> JobView:
    found = trouble.broker.inspector.get(trouble.queue.name, ident)
    assert found is not None
    return found


def buried_row(trouble: Trouble, **options: Any) -> MorgueJob:
    trouble.bury("a", priority=2, options=OPTIONS, **options)
    trouble.copied()
    return MorgueJob.objects.get()


@pytest.mark.parametrize(("delay", "state"), [(None, "ready"), (60, "delayed")])
def test_a_job_of_the_morgue_gets_other_arguments_and_fresh_counters(
    trouble: Trouble, delay: float | None, state: str
) -> None:
    row = buried_row(trouble)
    assert retry_edited(row, args=["other"], kwargs={"times": 2}, delay=delay) == "retried"
    found = view(trouble)
    assert decode_args(found.job.args) == (["other"], {"times": 2})
    assert (found.state, found.job.failures, found.job.priority, found.job.options_json) == (state, 0, 2, OPTIONS)
    assert found.job.key != row.key.bytes
    if delay:
        assert 55_000 < found.due_ms - trouble.broker.now_ms() <= 60_000
    assert tables() == {"failed": [], "morgue": []}
    counts = trouble.broker.inspector.counts("q")
    assert (counts.live, counts.gated, counts.reserved, counts.morgue) == (1, 0, 0, 0)


def test_an_edited_job_is_due_when_the_edit_says_and_not_when_its_task_derives(trouble: Trouble) -> None:
    trouble.bury("a", task="edit.remind")
    trouble.copied()

    @task(name="edit.remind", at=lambda at: at)
    def remind(at: float) -> None: ...

    try:
        assert retry_edited(MorgueJob.objects.get(), args=[trouble.broker.now_ms() / 1000 + 86_400]) == "retried"
        assert view(trouble).job.due_ms < trouble.broker.now_ms() + 60_000
    finally:
        registry.remove(remind)


def test_what_the_task_cannot_be_called_with_is_refused_and_nothing_changes(trouble: Trouble) -> None:
    rows = [buried_row(trouble)]
    for wrong, error in (
        ({"args": []}, TypeError),
        ({"args": ["x"], "kwargs": {"loud": True}}, TypeError),
        ({"args": [{1, 2}]}, InvalidJob),
        ({"args": ["x" * 2_000_000]}, InvalidJob),
    ):
        with pytest.raises(error):
            retry_edited(rows[0], **wrong)  # type: ignore[arg-type]
    assert tables()["morgue"] == ["a exhausted"]
    assert trouble.broker.inspector.counts("q").live == 0


def test_a_task_that_this_process_does_not_know_is_believed(trouble: Trouble) -> None:
    row = buried_row(trouble, task="elsewhere.work")
    assert retry_edited(row, args=[Decimal("1.5")]) == "retried"
    assert (view(trouble).job.task, decode_args(view(trouble).job.args)) == ("elsewhere.work", ([Decimal("1.5")], {}))


def test_a_failed_job_has_to_be_buried_first(trouble: Trouble) -> None:
    trouble.fail("a")
    trouble.copied()
    with pytest.raises(InvalidJob, match="bury it"):
        retry_edited(FailedJob.objects.get(), args=["other"])
    assert decode_args(view(trouble).job.args) == (["x"], {})


def test_a_merged_job_is_not_edited(trouble: Trouble) -> None:
    payload = Payload(encode(1), "1", new_key())
    new = NewJob("m", "deeds.sync", on_conflict="merge", due_policy="earliest", payload=payload)
    trouble.queue.schedule(new)
    trouble.bury("m")
    trouble.copied()
    with pytest.raises(InvalidJob, match="payloads cannot be edited"):
        retry_edited(MorgueJob.objects.get(), args=[1])
    assert tables()["morgue"] == ["m exhausted"]


@pytest.mark.parametrize(("gone", "left"), [(True, []), (False, ["a exhausted"])], ids=["gone", "live"])
def test_a_live_job_of_the_id_is_left_alone(trouble: Trouble, gone: bool, left: list[str]) -> None:
    row = buried_row(trouble)
    if gone:
        trouble.queue.discard("a")
    trouble.put("a", delay_ms=60_000)
    assert retry_edited(row, args=["other"]) == ("gone" if gone else "live")
    assert decode_args(view(trouble).job.args) == (["x"], {})
    assert tables() == {"failed": [], "morgue": left}


def test_an_expiry_that_has_passed_is_forgotten(trouble: Trouble) -> None:
    end_ms = int(trouble.broker.now_ms()) + 500
    trouble.put("a", options=json.dumps({"context": {"a": 1}, "expires_ms": end_ms}).encode())
    trouble.bury("a")
    trouble.copied()
    wait_until(lambda: trouble.broker.now_ms() > end_ms, what="the expiry")
    row = MorgueJob.objects.get()
    assert retry_edited(row, args=["other"]) == "retried"
    assert json.loads(view(trouble).job.options_json) == {"context": {"a": 1}}


def test_what_redis_refuses_leaves_the_job_as_it_was(trouble: Trouble) -> None:
    row = buried_row(trouble)
    trouble.broker.limit("q", max_length=1)
    number = trouble.queue.shard_of("a")
    trouble.put(next(ident for ident in map(str, range(99)) if trouble.queue.shard_of(ident) == number))
    with pytest.raises(QueueFull):
        retry_edited(row, args=["other"])
    assert tables()["morgue"] == ["a exhausted"]
    assert trouble.broker.inspector.counts("q").morgue == 1


# -- deaths on the way -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("step", ["schedule", "discard"])
def test_a_death_after_any_step_loses_neither_the_old_nor_the_new(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    row = buried_row(trouble)
    scripts = trouble.broker.scripts
    dead: list[str] = []

    def dying(wrapped: Any) -> Any:
        def call(name: str, *args: Any, **limits: Any) -> Any:
            if dead:
                raise Killed
            answer = wrapped(name, *args, **limits)
            if name == step:
                (answer.read() if isinstance(answer, SentCalls) else None)
                dead.append(name)
                raise Killed
            return answer

        return call

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "call", dying(scripts.call))
        send_many = scripts.send_many
        patch.setattr(scripts, "send_many", lambda calls: dying(lambda _: send_many(calls))(calls[0].name))
        with pytest.raises(Killed):
            retry_edited(row, args=["other"])
    assert dead == [step]
    assert decode_args(view(trouble).job.args) == (["other"], {})
    assert len(trouble.broker.inspector.graves("q", "a")) == (step == "schedule")


# -- durable jobs ----------------------------------------------------------------------------------------------------


def test_a_durable_job_stays_durable(delayq: Broker) -> None:
    schedule(note, "x", id="a", durable=True, context={"trace": "t"})
    trouble = Trouble(delayq, name="default")
    trouble.bury("a")
    trouble.copied()
    row = MorgueJob.objects.get()
    assert retry_edited(row, args=["other"]) == "retried"
    job = view(trouble).job
    assert is_durable(job.key)
    assert job.context == {"trace": "t"}
    assert job.key in [bytes(key.bytes) for key in OutboxJob.objects.values_list("key", flat=True)]
    marks = {mark.key: mark.end for mark in trouble.queue.marks(trouble.queue.shard_of("a"))}
    assert marks.get(row.key.bytes) == "done"
    assert job.key not in marks


def test_a_durable_job_waits_in_the_outbox_while_its_queue_is_paused(delayq: Broker) -> None:
    schedule(note, "x", id="a", durable=True)
    trouble = Trouble(delayq, name="default")
    trouble.bury("a")
    trouble.copied()
    row = MorgueJob.objects.get()
    delayq.pause("default", "in")
    assert retry_edited(row, args=["other"]) == "retried"
    waiting = OutboxJob.objects.exclude(key=row.key).get()
    assert (waiting.job_id, waiting.state) == ("a", "unsent")
    assert not delayq.inspector.graves("default", "a")
