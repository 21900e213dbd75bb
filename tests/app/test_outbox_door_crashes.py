"""A process dies, or loses its database, in the middle of a request with durable jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import F

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.models import OutboxJob
from django_delayq.outbox import push

from .deeds import note
from .outbox_stage import Stage

pytestmark = pytest.mark.django_db(transaction=True)


def there() -> dict[str, str]:
    return dict(OutboxJob.objects.values_list("job_id", "state"))


def in_redis(stage: Stage) -> list[str]:
    return sorted([*stage.waiting("default"), *stage.waiting("deeds.sync")])


def test_g6_a_process_that_is_killed_before_the_commit_leaves_nothing(
    stage: Stage, spawn: Callable[..., Any], database_env: dict[str, str]
) -> None:
    assert spawn(sys.executable, "-m", "tests.app.door_program", "inserted", env=database_env).wait(30) == -9
    assert (there(), stage.relay().turn(), in_redis(stage)) == ({}, {}, [])


@pytest.mark.parametrize("step", ["committed", "claimed", "told"])
def test_g7_g8_a_process_that_is_killed_behind_the_commit_leaves_each_job_once(
    stage: Stage, spawn: Callable[..., Any], database_env: dict[str, str], step: str
) -> None:
    assert spawn(sys.executable, "-m", "tests.app.door_program", step, env=database_env).wait(30) == -9
    assert there() == dict.fromkeys(["order-1", "order-2", "7"], "unsent")
    OutboxJob.objects.update(claimed_until=F("claimed_until") - timedelta(seconds=push.BRIEF + 1))
    while stage.relay().turn():
        pass
    assert there() == dict.fromkeys(["order-1", "order-2", "7"], "sent")
    assert in_redis(stage) == ["7", "order-1", "order-2"]
    view = stage.broker.inspector.get("deeds.sync", "7")
    assert view is not None
    assert view.payload_count == 1


def test_g6_a_connection_that_drops_before_the_commit_leaves_nothing(delayq: Broker) -> None:
    with suppress(DatabaseError, InterfaceError), transaction.atomic():
        handle = schedule(note, "x", id="a", durable=True)
        plain = schedule(note, "x", id="b")
        connection.close()  # as the server, or the network, does it
    assert (handle.outcome, plain.outcome, there()) == ("outbox", "on_commit", {})
    assert delayq.known_queue("default") is None, "Redis never heard of it"
