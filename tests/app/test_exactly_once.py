"""``@exactly_once``: a second run of a job finds what the first has done, whatever became of its ack."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction
from django.db.models.functions import Now

from django_delayq import PartialFailure, current_job, exactly_once, task
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import Job, new_key
from django_delayq.models import InboxEntry, OutboxJob
from django_delayq.outbox import inbox
from django_delayq.worker.attempt import Attempt
from tests.support.attempt_stage import execute, execute_batch, make_job, payloads_of

pytestmark = pytest.mark.django_db(transaction=True)


def effects() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def write(name: str) -> str:
    """An effect that two runs cannot share: each adds a name of its own."""
    Group.objects.create(name=f"{name} {uuid.uuid4().hex[:6]}")
    return name


def outcome(run: Attempt) -> str:
    assert run.settlement is not None
    return run.settlement.verb if run.error is None else f"{run.settlement.verb}: {run.error}"


def outbox_row(job: Job, key: bytes) -> None:
    OutboxJob.objects.create(
        queue=job.queue, job_id=job.id, task=job.task, key=uuid.UUID(bytes=key), due_ms=0, state="sent", sent_at=Now()
    )


def test_a_second_run_of_a_generation_is_acked_without_its_handler() -> None:
    job = make_job()
    runs = [execute(exactly_once(lambda: write("paid")), job=job) for _ in range(2)]
    assert [outcome(run) for run in runs] == ["ack", "ack"]
    assert len(effects()) == 1
    (entry,) = InboxEntry.objects.all()
    assert (entry.key.bytes, entry.queue, entry.job_id, entry.task) == (job.key, job.queue, job.id, job.task)


def test_tomorrows_job_of_the_same_id_is_another_one() -> None:
    for _ in range(2):
        execute(exactly_once(lambda: write("paid")), job=make_job(id="order-5", key=new_key()))
    assert len(effects()) == 2


def test_a_failure_leaves_nothing_so_the_next_attempt_runs() -> None:
    job, answers = make_job(), iter([ZeroDivisionError("no"), None])

    @exactly_once
    def handler() -> None:
        write("paid")
        error = next(answers)
        if error is not None:
            raise error

    assert outcome(execute(handler, job=job)) == "fail: no"
    assert (effects(), InboxEntry.objects.count()) == ([], 0)
    assert outcome(execute(handler, job=job)) == "ack"
    assert len(effects()) == 1


def test_an_integrity_error_of_the_handlers_own_is_a_failure() -> None:
    Group.objects.create(name="taken")
    run = execute(exactly_once(lambda: Group.objects.create(name="taken")), job=make_job())
    assert outcome(run).startswith("fail")
    assert isinstance(run.error, IntegrityError)
    assert InboxEntry.objects.count() == 0


def test_two_runs_at_the_same_moment_have_one_effect() -> None:
    """The lease ran out under a slow handler: its successor waits for it, and finds its row."""
    job, inside, go_on = make_job(), threading.Event(), threading.Event()

    @exactly_once
    def slow() -> None:
        write("paid")
        inside.set()
        assert go_on.wait(10)

    runs: list[Attempt] = []

    def live(handler: Callable[[], Any]) -> None:
        runs.append(execute(handler, job=job))
        connections.close_all()

    first = threading.Thread(target=live, args=(slow,))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=live, args=(exactly_once(lambda: write("paid")),))
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert [outcome(run) for run in runs] == ["ack", "ack"]
    assert len(effects()) == 1


def test_a_durable_jobs_row_goes_with_the_effects() -> None:
    done, other = make_job(key=new_key(durable=True)), make_job(id="other", key=new_key(durable=True))
    outbox_row(done, done.key)
    outbox_row(other, other.key)
    execute(exactly_once(lambda: write("paid")), job=done)
    assert list(OutboxJob.objects.values_list("job_id", flat=True)) == ["other"]


def test_a_durable_jobs_row_stays_when_the_handler_fails() -> None:
    job = make_job(key=new_key(durable=True))
    outbox_row(job, job.key)
    execute(exactly_once(lambda: 1 // 0), job=job)
    assert OutboxJob.objects.count() == 1


def test_without_a_worker_it_is_a_transaction() -> None:
    @exactly_once
    def handler(name: str) -> str:
        assert transaction.get_connection().in_atomic_block
        return write(name)

    assert handler("x") == "x"
    with suppress(ZeroDivisionError):
        exactly_once(lambda: (write("y"), 1 // 0))()
    assert (len(effects()), InboxEntry.objects.count()) == (1, 0)


def merged_job(ident: str, *values: Any) -> Job:
    return make_job(id=ident, merged=True, payloads=payloads_of(*values))


def seen_by(handler: Callable[[dict[str, list[Any]]], Any], *jobs: Job) -> tuple[list[dict[str, list[Any]]], list[str]]:
    """Return the payloads that the handler got, and the outcome of each job's attempt."""
    got: list[dict[str, list[Any]]] = []

    @exactly_once
    def sync(payloads_by_id: dict[str, list[Any]]) -> None:
        got.append({ident: list(payloads) for ident, payloads in payloads_by_id.items()})
        handler(payloads_by_id)

    batch = execute_batch(sync, list(jobs))
    return got, [outcome(member) for member in batch.members]


def test_a_merged_run_gets_the_payloads_that_are_not_done() -> None:
    first, second = merged_job("1", "a", "b"), merged_job("2", "x")
    assert seen_by(lambda _: write("synced"), first) == ([{"1": ["a", "b"]}], ["ack"])
    more = make_job(id="1", merged=True, payloads=(*first.payloads, *payloads_of("c")))
    assert seen_by(lambda _: write("synced"), more, second) == ([{"1": ["c"], "2": ["x"]}], ["ack", "ack"])
    assert seen_by(lambda _: write("synced"), more, second) == ([], ["ack", "ack"])
    assert (len(effects()), InboxEntry.objects.count()) == (2, 4)


def test_a_partial_failure_keeps_what_was_done_for_the_others() -> None:
    jobs = [merged_job("1", "a"), merged_job("2", "b")]

    def handler(payloads_by_id: dict[str, list[Any]]) -> None:
        write("synced")
        if "2" in payloads_by_id and len(payloads_by_id) > 1:
            raise PartialFailure({"2": ValueError("not 2")})

    assert seen_by(handler, *jobs) == ([{"1": ["a"], "2": ["b"]}], ["ack", "fail: not 2"])
    assert len(effects()) == 1
    assert seen_by(handler, *jobs) == ([{"2": ["b"]}], ["ack", "ack"])
    assert InboxEntry.objects.count() == 2


def test_a_partial_failure_that_names_nobody_undoes_all() -> None:
    def handler(_: object) -> None:
        write("synced")
        raise PartialFailure({"77": ValueError()})

    got, ends = seen_by(handler, merged_job("1", "a"))
    assert len(got) == 1
    assert ends[0].startswith("fail")
    assert (effects(), InboxEntry.objects.count()) == ([], 0)


def test_a_run_that_another_one_overtakes_leaves_the_rest_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its own rows another run commits some of the same payloads."""
    job = merged_job("1", "a", "b")
    look, looks = inbox.done, []

    def overtaken(keys: list[bytes], alias: str) -> set[bytes]:
        found = look(keys, alias)
        if not looks:
            InboxEntry.objects.create(key=uuid.UUID(bytes=keys[0]), queue="default", job_id="1", task="sync")
        looks.append(found)
        return found

    monkeypatch.setattr(inbox, "done", overtaken)
    got, ends = seen_by(lambda _: None, job)
    assert (got, [end.partition(":")[0] for end in ends]) == ([], ["release"])
    assert seen_by(lambda _: None, job) == ([{"1": ["b"]}], ["ack"])
    assert [set(known) for known in looks] == [set(), {job.payloads[0].key}]


def test_the_database_that_is_away_is_no_failure_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.utils import OperationalError

    def away() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connections["default"], "ensure_connection", away)
    run = execute(exactly_once(lambda: write("paid")), job=make_job())
    assert run.settlement is not None
    assert (run.settlement.verb, run.settlement.delay_ms) == ("release", 5000)


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_a_call_outside_of_a_job_is_a_transaction_of_the_database_that_is_named(postgres_alias: str) -> None:
    @exactly_once(using=postgres_alias)
    def charge() -> None:
        Group.objects.using(postgres_alias).create(name="paid")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        charge()
    assert not Group.objects.using(postgres_alias).exists()


def test_where_it_cannot_stand_is_said_at_once() -> None:
    with pytest.raises(Misconfigured, match="below @task"):
        exactly_once(task(name="inbox.wrong")(lambda: None))

    async def coroutine() -> None: ...

    with pytest.raises(Misconfigured, match="coroutine"):
        exactly_once(coroutine)
    with pytest.raises(Misconfigured, match="by keyword"):
        exactly_once("default")  # type: ignore[call-overload]


def test_the_function_keeps_its_signature_and_its_job() -> None:
    @task(name="inbox.signature")
    @exactly_once(using="default")
    def charge(order: int, *, note: str = "") -> None:
        job = current_job()
        assert job is not None
        assert job.id == "job-1"

    charge.check_call((5,), {"note": "x"})
    with pytest.raises(TypeError):
        charge.check_call((), {})
