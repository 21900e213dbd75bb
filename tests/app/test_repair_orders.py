"""Actions on any number of jobs: carried out piece by piece by whatever worker is alive."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import FieldError
from django.db import connection as database, transaction

from django_delayq import Queue, Release
from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob, QueueUnavailable
from django_delayq.core.task import registry
from django_delayq.models import BulkAction, FailedJob, MorgueJob
from django_delayq.repair import orders
from django_delayq.repair.orders import order, stop
from tests.support.processes import wait_until

from .mirror_stage import Trouble, tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """Six hundred jobs in the morgue."""
    trouble = Trouble(delayq)
    trouble.bury(*[f"m{n:03}" for n in range(600)])
    trouble.copied()
    return trouble


def ordered() -> dict[str, Any]:
    """The only order, as people see it."""
    found = BulkAction.objects.get()
    return {"state": found.state, "total": found.total, "done": found.done, "counts": found.counts}


def test_the_task_is_known_wherever_the_app_is(delayq: Broker) -> None:
    task = registry.get(orders.TASK)
    assert task is not None
    assert orders.carry_out("00000000-0000-0000-0000-000000000000") == {}, "it was deleted"
    assert (task.name, task.options.queue, task.options.ack) == ("django_delayq.carry_out", "delayq", "late")


def test_an_order_is_carried_out_for_all_that_match(trouble: Trouble, admin_user: User) -> None:
    trouble.bury("other", task="deeds.rest")
    trouble.copied()
    made = order("discard", MorgueJob, {"task": "deeds.note"}, user=admin_user)
    assert ordered() == {"state": "waiting", "total": 600, "done": 0, "counts": {}}
    assert (made.ordered_by, made.ordered_by_pk) == (str(admin_user), str(admin_user.pk))
    assert (made.action, made.target) == ("discard", "MorgueJob")
    assert orders.carry_out(str(made.pk)) == {"discarded": 600}
    assert ordered() == {"state": "done", "total": 600, "done": 600, "counts": {"discarded": 600}}
    assert tables()["morgue"] == ["other exhausted"]
    assert trouble.broker.inspector.counts("q").morgue == 1
    assert BulkAction.objects.get().ended_at is not None


def test_a_retry_has_its_delay(trouble: Trouble) -> None:
    made = order("retry", MorgueJob, {"job_id__startswith": "m00"}, delay=3600, total=10)
    orders.carry_out(str(made.pk))
    counts = trouble.broker.inspector.counts("q")
    assert (counts.delayed, counts.ready, counts.morgue) == (10, 0, 590)


def test_what_came_after_the_order_is_left_alone(trouble: Trouble) -> None:
    made = order("discard", MorgueJob, {})
    trouble.bury("later")
    trouble.copied()
    orders.carry_out(str(made.pk))
    assert tables()["morgue"] == ["later exhausted"]


def test_the_order_and_its_job_are_one_transaction(trouble: Trouble) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        order("discard", MorgueJob, {})
        raise ZeroDivisionError
    assert not BulkAction.objects.exists()
    assert trouble.broker.inspector.counts("delayq").ready == 0
    with transaction.atomic():
        order("discard", MorgueJob, {})
        assert trouble.broker.inspector.counts("delayq").ready == 0
    assert trouble.broker.inspector.counts("delayq").ready == 1


@pytest.mark.parametrize(
    ("action", "model", "filters", "delay"),
    [
        ("explode", MorgueJob, {}, None),
        ("bury", MorgueJob, {}, None),
        ("retry", FailedJob, {"x": 1}, None),
        ("retry", FailedJob, {}, float("nan")),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_at_the_order(
    delayq: Broker, action: str, model: Any, filters: dict[str, Any], delay: Any
) -> None:
    with pytest.raises((InvalidJob, FieldError)):
        order(action, model, filters, delay=delay)
    assert not BulkAction.objects.exists()


# -- pieces ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ended here."""


def kill(monkeypatch: pytest.MonkeyPatch, *, piece: int, before: bool) -> None:
    """The process dies in that piece: before its act, or after it, before the progress is stored."""
    act, pieces = orders.act, [0]

    def dying(*what: Any) -> Any:
        pieces[0] += 1
        if pieces[0] != piece:
            return act(*what)
        if not before:
            act(*what)
        raise Killed

    monkeypatch.setattr(orders, "act", dying)


@pytest.mark.parametrize("before", [True, False])
def test_an_order_goes_on_where_its_worker_was_killed(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    made = order("discard", MorgueJob, {})
    with monkeypatch.context() as patch:
        kill(patch, piece=2, before=before)
        with pytest.raises(Killed):
            orders.carry_out(str(made.pk))
    assert ordered() == {"state": "running", "total": 600, "done": 250, "counts": {"discarded": 250}}
    orders.carry_out(str(made.pk))
    assert (ordered()["state"], tables()["morgue"]) == ("done", [])
    assert ordered()["done"] == (600 if before else 350)  # what was done when the process died is not seen again


def test_a_stopped_order_ends_after_its_piece(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    made = order("discard", MorgueJob, {})
    act = orders.act

    def stopping(*what: Any) -> Any:
        assert stop(made)
        return act(*what)

    monkeypatch.setattr(orders, "act", stopping)
    orders.carry_out(str(made.pk))
    assert ordered() == {"state": "stopped", "total": 600, "done": 250, "counts": {"discarded": 250}}
    assert not stop(made)
    orders.carry_out(str(made.pk))
    assert MorgueJob.objects.count() == 350, "nothing is done of one that was stopped before"


def test_a_process_that_ends_gives_the_order_back(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    made = order("discard", MorgueJob, {})

    class Ending:
        should_stop = False

    job, act = Ending(), orders.act

    def last_piece(*what: Any) -> Any:
        job.should_stop = True
        return act(*what)

    monkeypatch.setattr(orders, "act", last_piece)
    monkeypatch.setattr(orders, "current_job", lambda: job)
    with pytest.raises(Release):
        orders.carry_out(str(made.pk))
    assert ordered() == {"state": "running", "total": 600, "done": 250, "counts": {"discarded": 250}}


def test_an_error_is_seen_and_the_order_is_tried_again_until_it_has_failed(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = order("discard", MorgueJob, {})

    def broken(*what: Any) -> Any:
        raise QueueUnavailable("Redis is \0away")

    with monkeypatch.context() as patch:
        patch.setattr(orders, "act", broken)
        with pytest.raises(QueueUnavailable):
            orders.carry_out(str(made.pk))
    found = BulkAction.objects.get()
    assert (found.state, found.error) == ("waiting", "QueueUnavailable: Redis is \u2400away")
    for _ in range(10):
        job = Queue("delayq").reserve_id(f"order-{made.pk}", early=True)
        assert job is not None and job.fail(QueueUnavailable("for good"))
    found = BulkAction.objects.get()
    assert (found.state, found.error, found.ended_at is not None) == ("failed", "QueueUnavailable: for good", True)


def test_an_order_that_has_failed_goes_on_when_a_person_brings_its_job_back(trouble: Trouble) -> None:
    made = order("discard", MorgueJob, {})
    BulkAction.objects.update(
        state="failed", error="x", ended_at=made.created_at, position=MorgueJob.objects.all()[99].pk
    )
    assert orders.carry_out(str(made.pk)) == {"discarded": 500}
    assert (ordered()["state"], BulkAction.objects.get().error) == ("done", "")


def test_two_workers_with_one_order_do_each_job_once(trouble: Trouble) -> None:
    made = order("discard", MorgueJob, {})
    errors: list[BaseException] = []

    def work() -> None:
        try:
            orders.carry_out(str(made.pk))
        except BaseException as error:
            errors.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert (ordered()["state"], tables()["morgue"]) == ("done", [])
    assert ordered()["done"] <= 600


def test_a_worker_that_was_thought_dead_does_not_set_the_order_back(
    trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = order("discard", MorgueJob, {})
    act = orders.act

    def slow(*what: Any) -> Any:
        counts = act(*what)
        monkeypatch.undo()
        orders.carry_out(str(made.pk))  # another worker goes on with the order and comes to its end
        return counts

    monkeypatch.setattr(orders, "act", slow)
    orders.carry_out(str(made.pk))
    made.refresh_from_db()
    assert (made.state, made.position) == ("done", made.options["until"])
    assert tables()["morgue"] == []


# -- by a real worker ------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(spawn: Callable[..., Any], manage_env: dict[str, str]) -> Callable[[], Any]:
    """Starts ``manage.py delayq_worker`` on the database of the test."""
    place = database.settings_dict
    url = f"sqlite:///{place['NAME']}"
    if database.vendor == "postgresql":
        from tests.support.postgres_box import PostgresDatabase

        url = PostgresDatabase(place["HOST"], int(place["PORT"] or 5432), place["USER"], place["NAME"]).url

    def start() -> Any:
        command = [sys.executable, "-m", "django", "delayq_worker", "--queues", "delayq", "--threads", "1"]
        return spawn(*command, env={**manage_env, "DELAYQ_TEST_DB": url})

    return start


def test_a_worker_carries_an_order_out_and_another_one_goes_on_when_it_is_killed(
    delayq: Broker, worker: Callable[[], Any]
) -> None:
    trouble = Trouble(delayq)
    trouble.bury(*map(str, range(4000)))
    trouble.copied()
    made = order("retry", MorgueJob, {}, delay=3600)
    worker()
    wait_until(lambda: BulkAction.objects.get().done, 30, what="the first piece")
    (info,) = [info for info in delayq.workers() if ":" in info["name"]]
    os.kill(int(info["name"].split(":")[1]), signal.SIGKILL)
    done = BulkAction.objects.get().done
    assert 0 < done < 4000
    wait_until(lambda: BulkAction.objects.get().state == "done", 60, what="the end of the order")
    assert not MorgueJob.objects.exists()
    counts = trouble.broker.inspector.counts("q")
    assert (counts.delayed, counts.morgue) == (4000, 0)
    assert made.pk == BulkAction.objects.get().pk
