"""``schedule_many(…, all_or_none=True)``: at once, and after a commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_delayq import aschedule_many, schedule_many, task
from django_delayq.core.errors import InvalidJob
from django_delayq.core.task import Task, registry


@pytest.fixture
def note(settings: Any) -> Iterator[Task]:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"notes": {"shards": 1}}}
    made = task(name="all_or_none.note", queue="notes")(lambda: None)
    yield made
    registry.remove(made)


def entries(*idents: str) -> list[dict[str, Any]]:
    return [{"id": ident, "on_conflict": "error"} for ident in idents]


@pytest.mark.django_db(transaction=True)
def test_all_jobs_of_a_call_are_stored_or_none(delayq: Any, note: Task, caplog: pytest.LogCaptureFixture) -> None:
    assert schedule_many(note, entries("a", "b"), all_or_none=True) == {"created": 2}
    assert schedule_many(note, entries("c", "a"), all_or_none=True) == {"withheld": 1, "exists": 1}
    with transaction.atomic():
        assert schedule_many(note, entries("c", "b"), all_or_none=True) == {"on_commit": 2}
    assert [record.levelno for record in caplog.records if "exists" in record.getMessage()] == [logging.ERROR]
    assert delayq.inspector.counts("notes").ready == 2


@pytest.mark.django_db(transaction=True)
def test_too_many_jobs_and_durable_ones_are_refused_at_the_call(delayq: Any, note: Task) -> None:
    many = entries(*map(str, range(251)))
    with pytest.raises(InvalidJob, match="up to 250 jobs"), transaction.atomic():
        schedule_many(note, many, all_or_none=True)
    with pytest.raises(InvalidJob, match="durable"):
        schedule_many(note, many[:2], all_or_none=True, durable=True)
    assert delayq.inspector.counts("notes").ready == 0


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_passes_it_on(delayq: Any, note: Task) -> None:
    answer = async_to_sync(aschedule_many)(note, entries("a", "a"), all_or_none=True)
    assert answer == {"withheld": 1, "exists": 1}
