"""Signals in: jobs that models put in and take back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.db import transaction
from django.db.models.signals import m2m_changed, post_delete, post_save
from django.dispatch import Signal

from django_delayq import InvalidJob, cancel_on, get_job, schedule_on, task
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured

from .deeds import note, sync

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_trigger_stays() -> Iterator[None]:
    """Restore the receivers of Django's signals after the test."""
    before = {signal: list(signal.receivers) for signal in (m2m_changed, post_delete, post_save)}
    yield
    for signal, receivers in before.items():
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()


def waiting(broker: Broker, queue: str = "default") -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Arguments of what waits, by id."""
    return {view.id: view.arguments for view in broker.inspector.peek(queue, 100)}


def test_a_new_row_schedules_its_job_and_its_deletion_takes_it_back(delayq: Broker) -> None:
    ident = lambda group: f"group-{group.pk}"  # noqa: E731 (as the documents write it)
    schedule_on(
        post_save,
        sender=Group,
        task=note,
        delay=timedelta(minutes=30),
        id=ident,
        args=lambda group: (group.name,),
        when=lambda group, created: created,
    )
    cancel_on(post_delete, sender=Group, task=note, id=ident)
    first, second = Group.objects.create(name="first"), Group.objects.create(name="second")
    first.name = "renamed"
    first.save()
    User.objects.create(username="somebody else")
    assert waiting(delayq) == {f"group-{first.pk}": (["first"], {}), f"group-{second.pk}": (["second"], {})}
    view = get_job(note, id=f"group-{first.pk}")
    assert view is not None
    assert view.state == "delayed"
    second.delete()
    assert list(waiting(delayq)) == [f"group-{first.pk}"]


def test_the_job_goes_with_the_rows_transaction(delayq: Broker) -> None:
    schedule_on(post_save, sender=Group, task=note, id=lambda group: group.name, args=["x"])
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Group.objects.create(name="never")
        raise ZeroDivisionError
    with transaction.atomic():
        Group.objects.create(name="kept")
        assert waiting(delayq) == {}
    assert list(waiting(delayq)) == ["kept"]


@pytest.mark.django_db(transaction=True, databases=["default", "postgres"])
def test_the_transaction_is_that_of_the_rows_database(delayq: Broker, postgres_alias: str) -> None:
    schedule_on(post_save, sender=Group, task=note, id=lambda group: group.name, args=["x"])
    with transaction.atomic(using=postgres_alias):
        Group.objects.using(postgres_alias).create(name="there")
        assert waiting(delayq) == {}
    assert list(waiting(delayq)) == ["there"]


def test_the_sender_may_be_a_name_and_when_decides_by_the_instance(delayq: Broker) -> None:
    schedule_on(
        post_save,
        sender="auth.Group",
        task="deeds.note",
        id=lambda group: group.name,
        kwargs=lambda group: {"text": group.name},
        when=lambda group, created: group.name != "no",
    )
    for name in ("yes", "no"):
        Group.objects.create(name=name)
    assert waiting(delayq) == {"yes": ([], {"text": "yes"})}


def test_a_merged_task_gets_the_instance_as_payload(delayq: Broker) -> None:
    schedule_on(
        post_save, sender=Group, task=sync, id=lambda group: group.pk, payload=lambda group: {"name": group.name}
    )
    group = Group.objects.create(name="one")
    group.name = "two"
    group.save()
    payloads = delayq.inspector.payloads("deeds.sync", str(group.pk))
    assert [payload.data for payload in payloads] == [b'{"name":"one"}', b'{"name":"two"}']


def test_rows_of_loaddata_are_passed_over_unless_asked_for(delayq: Broker) -> None:
    schedule_on(post_save, sender=Group, task=note, id="given", args=["x"], raw=True)
    schedule_on(post_save, sender=Group, task=note, id="passed-over", args=["x"])
    for loaded in serializers.deserialize("json", '[{"model": "auth.group", "pk": 7, "fields": {"name": "g"}}]'):
        loaded.save()
    assert list(waiting(delayq)) == ["given"]


def test_any_signal_will_do(delayq: Broker) -> None:
    paid = Signal()
    schedule_on(paid, task=note, id=lambda sender: sender, args=lambda sender: [sender])
    schedule_on(m2m_changed, sender=User.groups.through, task=note, id="m2m", args=["x"])
    paid.send("invoice-5")
    user = User.objects.create(username="u")
    user.groups.add(Group.objects.create(name="g"))
    assert waiting(delayq) == {"invoice-5": (["invoice-5"], {}), "m2m": (["x"], {})}


def test_the_same_uid_twice_is_one_trigger(delayq: Broker) -> None:
    schedule_on(post_save, sender=Group, task=note, args=["x"], dispatch_uid="mine")
    schedule_on(post_save, sender=Group, task=note, args=["y"], dispatch_uid="mine")
    Group.objects.create(name="g")
    assert list(waiting(delayq).values()) == [(["y"], {})]


def test_what_can_never_work_is_said_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="unknown schedule option 'dealy'"):
        schedule_on(post_save, sender=Group, task=note, dealy=5)
    with pytest.raises(InvalidJob, match="merged tasks"):
        schedule_on(post_save, sender=Group, task=note, payload=1)
    with pytest.raises(TypeError, match="args must be a list or tuple"):
        schedule_on(post_save, sender=Group, task=note, args="x")
    with pytest.raises(InvalidJob, match="not a task"):
        schedule_on(post_save, sender=Group, task=test_any_signal_will_do)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="a signal like"):
        schedule_on("post_save", sender=Group, task=note)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="when must be a function"):
        cancel_on(post_save, sender=Group, task=note, id=1, when=True)  # type: ignore[arg-type]


def test_a_task_by_name_may_come_later(delayq: Broker) -> None:
    schedule_on(post_save, sender=Group, task="triggers.later", id="x")

    @task(name="triggers.later")
    def later() -> None: ...

    Group.objects.create(name="g")
    assert list(waiting(delayq)) == ["x"]
