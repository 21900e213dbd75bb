"""Rows of the mirrors: of jobs that are in Redis, or of none at all where only the tables matter."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.utils import timezone

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.models import FailedJob, MorgueJob
from tests.admin.support import Yard, cells

BASE = "/admin/django_delayq/"
FAILED = f"{BASE}failedjob/"
MORGUE = f"{BASE}morguejob/"
BULK = f"{BASE}bulkaction/"
OUTBOX = f"{BASE}outboxjob/"
INBOX = f"{BASE}inboxentry/"

TRACEBACK = (
    'after KeyError: token=abc123\n  File "/srv/shop/orders.py", line 12, in cancel\n    raise GatewayDown(token)\n'
    '  File "/venv/lib/python3.11/site-packages/requests/api.py", line 59, in get\n    return session.request()\n'
)


def failed_jobs(
    broker: Broker,
    number: int,
    *,
    queue: str = "orders",
    task: str = "shop.cancel_order",
    mark: str = "job",
    **error: str,
) -> list[FailedJob]:
    """``number`` jobs that failed in Redis, and their rows: job-0, job-1, …"""
    yard = Yard(broker, queue)
    for place in range(number):
        yard.put(f"{mark}-{place}", place, task=task)
    for job in yard.take():
        yard.failed(job, **error)
    mirror.rebuild()
    return list(FailedJob.objects.filter(queue=queue).order_by("pk"))


def buried_jobs(
    broker: Broker,
    number: int,
    *,
    queue: str = "orders",
    task: str = "shop.cancel_order",
    mark: str = "dead",
    **error: str,
) -> list[MorgueJob]:
    """The same in the morgue: dead-0, dead-1, …"""
    yard = Yard(broker, queue)
    for place in range(number):
        yard.put(f"{mark}-{place}", place, task=task)
    for job in yard.take():
        yard.buried(job, **error)
    mirror.rebuild()
    return list(MorgueJob.objects.filter(queue=queue).order_by("pk"))


def failed_row(ident: str = "a", *, ago: timedelta = timedelta(0), **fields: Any) -> FailedJob:
    """A row without a job."""
    now = timezone.now()
    given = {
        "queue": "orders",
        "job_id": ident,
        "task": "shop.cancel_order",
        "key": uuid.uuid4(),
        "shard": 0,
        "priority": 4,
        "failures": 3,
        "crashes": 0,
        "due_at": now + timedelta(minutes=5),
        "failed_at": now - ago,
        "error_class": "shop.gateway.GatewayDown",
        "error_message": "gateway answered 503\nsecond line",
        "error_traceback": TRACEBACK,
        "args": encode_args((5,), {}),
        "updated_us": 1,
        **fields,
    }
    return FailedJob(**given)


def morgue_row(ident: str = "a", *, ago: timedelta = timedelta(0), **fields: Any) -> MorgueJob:
    """The same for the morgue."""
    row = failed_row(ident)
    given = {
        field.name: getattr(row, field.name)
        for field in FailedJob._meta.concrete_fields
        if field.name not in ("id", "failed_at")
    }
    return MorgueJob(
        **{**given, "buried_at": timezone.now() - ago, "reason": "exhausted", "outcome": "failed", **fields}
    )


def many_rows(number: int, make: Callable[..., Any] = failed_row) -> None:
    """``number`` rows, a second apart, the first one the oldest: n-0, n-1, …"""
    end: datetime = timezone.now()
    moment = "failed_at" if make is failed_row else "buried_at"
    model = type(make())

    def rows() -> Iterator[Any]:
        for place in range(number):
            yield make(
                f"n-{place}",
                queue=f"q{place % 7}",
                task=f"shop.task_{place % 40}",
                failures=place % 30 + 1,
                error_class=f"shop.Error{place % 25}",
                **{moment: end - timedelta(seconds=number - place)},
            )

    model.objects.bulk_create(rows(), batch_size=5_000)


def ids(answer: Any) -> list[str]:
    """The ids that a list shows."""
    assert answer.status_code == 200
    has_boxes = b'class="action-select"' in answer.content
    return [row[1 if has_boxes else 0] for row in cells(answer.content)]


def press(client: Client, address: str, action: str, *rows: Any, across: bool = False, **more: Any) -> Any:
    """Choose an action for rows of a list, and get the page that asks."""
    data = {
        "action": action,
        "select_across": "1" if across else "0",
        "index": "0",
        ACTION_CHECKBOX_NAME: [row.pk for row in rows],
        **more,
    }
    return client.post(address, data)


def confirm(client: Client, asked: Any, address: str = "", **more: Any) -> Any:
    """Say yes to the page that asks, with everything that its form has."""
    data: dict[str, Any] = {}
    for name, value in asked.context["hidden"]:
        data.setdefault(name, []).append(value)
    return client.post(address or asked.context["back"], {**data, **more}, follow=True)


def messages_of(answer: Any) -> list[tuple[str, str]]:
    """``(level, text)`` of the messages of a page."""
    return [(message.level_tag, str(message)) for message in answer.context["messages"]]
