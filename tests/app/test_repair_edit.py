"""Another try with other arguments: never twice, never lost, whoever dies on the way."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from django_delayq import schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode, decode_args
from django_delayq.core.errors import InvalidJob, QueueFull, QueuePaused
from django_delayq.core.job import NewJob, Payload, is_durable, new_key
from django_delayq.core.job_view import JobView
from django_delayq.core.outcomes import ack
from django_delayq.core.queue import Queue
from django_delayq.core.redis.scripts import SentCalls
from django_delayq.core.task import registry
from django_delayq.models import FailedJob, MorgueJob, OutboxJob
from django_delayq.repair import retry_edited

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


def failed_row(trouble: Trouble, **options: Any) -> FailedJob:
    trouble.fail("a", priority=2, options=OPTIONS, **options)
    trouble.copied()
    return FailedJob.objects.get()


def buried_row(trouble: Trouble, **options: Any) -> MorgueJob:
    trouble.bury("a", priority=2, options=OPTIONS, **options)
    trouble.copied()
    return MorgueJob.objects.get()


def put_payloads(trouble: Trouble, *values: int) -> None:
    trouble.queue.schedule_many(
        [
            NewJob(
                "m",
                "deeds.sync",
                on_conflict="merge",
                due_policy="keep",
                payload=Payload(b"%d" % value, str(value), new_key()),
            )
            for value in values
        ]
    )


def payloads(trouble: Trouble) -> list[tuple[Any, str]]:
    return [(decode(payload.data), payload.score) for payload in trouble.broker.inspector.payloads("q", "m")]


def test_a_failed_job_gets_other_arguments_and_fresh_counters(trouble: Trouble) -> None:
    row = failed_row(trouble)
    assert retry_edited(row, args=["other"], kwargs={"times": 2}) == "retried"
    job = view(trouble).job
    assert decode_args(job.args) == (["other"], {"times": 2})
    assert (view(trouble).state, job.failures, job.priority, job.options_json) == ("ready", 0, 2, OPTIONS)
    assert job.key != row.key.bytes
    assert tables() == {"failed": [], "morgue": []}
    counts = trouble.broker.inspector.counts("q")
    assert (counts.ready, counts.gated, counts.reserved, counts.morgue) == (1, 0, 0, 0)


def test_an_edited_job_is_due_when_the_edit_says_and_not_when_its_task_derives(trouble: Trouble) -> None:
    trouble.fail("a", task="edit.remind")
    trouble.copied()

    @task(name="edit.remind", at=lambda at: at)
    def remind(at: float) -> None: ...

    try:
        assert retry_edited(FailedJob.objects.get(), args=[trouble.broker.now_ms() / 1000 + 86_400]) == "retried"
        assert view(trouble).job.due_ms < trouble.broker.now_ms() + 60_000
    finally:
        registry.remove(remind)


def test_a_job_of_the_morgue_comes_back_with_other_arguments_after_a_delay(trouble: Trouble) -> None:
    row = buried_row(trouble)
    assert retry_edited(row, args=["other"], delay=60) == "retried"
    found = view(trouble)
    assert (found.state, decode_args(found.job.args), found.job.options_json) == ("delayed", (["other"], {}), OPTIONS)
    assert 55_000 < found.due_ms - trouble.broker.now_ms() <= 60_000
    assert tables()["morgue"] == []
    assert trouble.broker.inspector.counts("q").morgue == 0


def test_what_the_task_cannot_be_called_with_is_refused_and_nothing_changes(trouble: Trouble) -> None:
    rows = [failed_row(trouble)]
    before = view(trouble).job
    for wrong, error in (
        ({"args": []}, TypeError),
        ({"args": ["x"], "kwargs": {"loud": True}}, TypeError),
        ({"args": [{1, 2}]}, InvalidJob),
        ({"payloads": [(1, 1)]}, TypeError),
        ({"args": ["x" * 2_000_000]}, InvalidJob),
    ):
        with pytest.raises(error):
            retry_edited(rows[0], **wrong)  # type: ignore[arg-type]
    assert view(trouble).job == before
    assert tables()["failed"] == ["a x1"]


def test_a_task_that_this_process_does_not_know_is_believed(trouble: Trouble) -> None:
    row = failed_row(trouble, task="elsewhere.work")
    assert retry_edited(row, args=[Decimal("1.5")]) == "retried"
    assert (view(trouble).job.task, decode_args(view(trouble).job.args)) == ("elsewhere.work", ([Decimal("1.5")], {}))


def test_a_running_job_is_left_alone(trouble: Trouble) -> None:
    row = failed_row(trouble)
    (held,) = trouble.take("a")
    assert retry_edited(row, args=["other"]) == "running"
    assert trouble.queue.settle([ack(held, 1, 2)]) == [True]
    assert trouble.state("a") is None


def test_a_job_that_a_worker_takes_at_the_last_moment_is_not_run_twice(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, held = failed_row(trouble), []
    reserve_id = Queue.reserve_id

    def too_late(queue: Queue, ident: str, **options: Any) -> Any:
        if not held:
            held.extend(reserve_id(queue, ident, worker="quick", early=True).jobs)
        return reserve_id(queue, ident, **options)

    monkeypatch.setattr(Queue, "reserve_id", too_late)
    assert retry_edited(row, args=["other"]) == "running"
    assert trouble.broker.inspector.counts("q").gated == 0
    assert trouble.queue.settle([ack(held[0], 1, 2)]) == [True]
    assert trouble.state("a") is None


@pytest.mark.parametrize("make", [failed_row, buried_row])
def test_a_job_that_is_gone_is_gone(trouble: Trouble, make: Any) -> None:
    row = make(trouble)
    trouble.queue.cancel("a")
    trouble.queue.discard("a")
    trouble.put("a", delay_ms=60_000)
    assert retry_edited(row, args=["other"]) == "gone"
    assert decode_args(view(trouble).job.args) == (["x"], {})
    assert tables() == {"failed": [], "morgue": []}


def test_a_live_job_stands_in_the_way_of_one_of_the_morgue(trouble: Trouble) -> None:
    row = buried_row(trouble)
    trouble.put("a", delay_ms=60_000)
    assert retry_edited(row, args=["other"]) == "live"
    assert decode_args(view(trouble).job.args) == (["x"], {})
    assert tables()["morgue"] == ["a exhausted"]


def test_an_expiry_that_has_passed_is_forgotten(trouble: Trouble) -> None:
    trouble.put("a", delay_ms=3_600_000, options=b'{"context":{"a":1},"expires_in_ms":1}')
    trouble.fail("a", delay_ms=0)
    trouble.copied()
    row = FailedJob.objects.get()
    assert view(trouble).job.has_expired(trouble.broker.now_ms() + 1)
    assert retry_edited(row, args=["other"]) == "retried"
    assert json.loads(view(trouble).job.options_json) == {"context": {"a": 1}}


def test_a_queue_that_is_paused_for_workers_gets_the_new_content_too(trouble: Trouble) -> None:
    row = failed_row(trouble)
    trouble.broker.pause("q", "out")
    assert retry_edited(row, args=["other"]) == "retried"
    trouble.broker.resume("q", "out")
    assert (view(trouble).state, decode_args(view(trouble).job.args)) == ("ready", (["other"], {}))


def test_what_redis_refuses_leaves_the_job_as_it_was(trouble: Trouble) -> None:
    row = buried_row(trouble)
    trouble.broker.limit("q", max_length=1)
    number = trouble.queue.shard_of("a")
    trouble.put(next(ident for ident in map(str, range(99)) if trouble.queue.shard_of(ident) == number))
    with pytest.raises(QueueFull):
        retry_edited(row, args=["other"])
    assert tables()["morgue"] == ["a exhausted"]
    assert trouble.broker.inspector.counts("q").morgue == 1


# -- merged jobs -----------------------------------------------------------------------------------------------------


def test_the_payloads_of_a_failed_merged_job_are_exchanged(trouble: Trouble) -> None:
    put_payloads(trouble, 1, 2, 3)
    trouble.fail("m")
    trouble.copied()
    assert retry_edited(FailedJob.objects.get(), payloads=[({"v": 9}, 9), (2, "2.5"), (1, 1)]) == "retried"
    assert payloads(trouble) == [(1, "1"), (2, "2.5"), ({"v": 9}, "9")]
    assert (view(trouble, "m").state, view(trouble, "m").job.failures) == ("ready", 0)
    assert tables()["failed"] == []


def test_the_payloads_of_a_buried_merged_job_are_exchanged(trouble: Trouble) -> None:
    put_payloads(trouble, 1, 2)
    trouble.bury("m")
    put_payloads(trouble, 5)
    trouble.copied()
    assert retry_edited(MorgueJob.objects.get(), payloads=[(7, 7)]) == "retried"
    assert payloads(trouble) == [(5, "5"), (7, "7")]
    assert tables()["morgue"] == []


def test_a_merged_job_has_a_payload_at_least_and_at_most_so_many(trouble: Trouble) -> None:
    put_payloads(trouble, *range(251))
    trouble.fail("m")
    trouble.copied()
    for wrong in ([], [(1, 1)], [(n, n) for n in range(251)]):
        with pytest.raises(InvalidJob):
            retry_edited(FailedJob.objects.get(), payloads=wrong)
    with pytest.raises(TypeError, match="give payloads"):
        retry_edited(FailedJob.objects.get(), args=[1])
    assert len(payloads(trouble)) == 251


# -- deaths on the way -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("step", ["reserve", "schedule", "release", "ack", "discard"])
@pytest.mark.parametrize("kind", ["failed", "buried", "merged"])
def test_a_death_after_any_step_loses_neither_the_old_nor_the_new(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    if kind == "merged":
        put_payloads(trouble, 1, 2)
        trouble.fail("m")
        trouble.copied()
        row: Any = FailedJob.objects.get()
    else:
        row = failed_row(trouble) if kind == "failed" else buried_row(trouble)
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
        changes = {"payloads": [(9, 9)]} if kind == "merged" else {"args": ["other"]}
        try:
            retry_edited(row, **changes)  # type: ignore[arg-type]
        except Killed:
            assert dead
    assert dead or step != "schedule"
    _end_all_leases(trouble)
    ident = "m" if kind == "merged" else "a"
    has_new = (
        (9, "9") in payloads(trouble)
        if kind == "merged"
        else trouble.lives(ident) and decode_args(view(trouble).job.args) == (["other"], {})
    )
    has_old = (
        (1, "1") in payloads(trouble)
        if kind == "merged"
        else bool(trouble.broker.inspector.graves("q", "a"))
        or (trouble.lives(ident) and decode_args(view(trouble).job.args) == (["x"], {}))
    )
    assert has_new or has_old
    assert has_new or "schedule" not in dead


def _end_all_leases(trouble: Trouble) -> None:
    """Release the jobs of a dead process that it never began, as a dispatcher does."""
    from django_delayq.core.outcomes import release

    for number in trouble.queue.numbers:
        trouble.queue.settle([release(job) for job in trouble.queue.leases(number)])


# -- durable jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["failed", "buried"])
def test_a_durable_job_stays_durable(delayq: Broker, kind: str) -> None:
    schedule(note, "x", id="a", durable=True, context={"trace": "t"})
    trouble = Trouble(delayq, name="default")
    (trouble.fail if kind == "failed" else trouble.bury)("a")
    trouble.copied()
    row: Any = FailedJob.objects.get() if kind == "failed" else MorgueJob.objects.get()
    assert retry_edited(row, args=["other"]) == "retried"
    job = view(trouble).job
    assert is_durable(job.key)
    assert job.context == {"trace": "t"}
    assert job.key in [bytes(key.bytes) for key in OutboxJob.objects.values_list("key", flat=True)]
    marks = {mark.key: mark.end for mark in trouble.queue.marks(trouble.queue.shard_of("a"))}
    assert marks.get(row.key.bytes) == "done"
    assert job.key not in marks


def test_a_durable_job_that_could_not_be_exchanged_keeps_its_row(delayq: Broker) -> None:
    schedule(note, "x", id="a", durable=True)
    trouble = Trouble(delayq, name="default")
    trouble.fail("a")
    trouble.copied()
    row = FailedJob.objects.get()
    delayq.pause("default", "in")
    with pytest.raises(QueuePaused):
        retry_edited(row, args=["other"])
    assert list(OutboxJob.objects.values_list("key", "state")) == [(row.key, "sent")]
    assert decode_args(view(trouble).job.args) == (["x"], {})
