"""Durable jobs in tests: their rows are written, the queue in memory is told, and at the end the rows go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_delayq import cancel, schedule
from django_delayq.models import OutboxJob
from django_delayq.testing import Fake

from .works import decide, note, once, sync

Capture = Callable[..., Any]


def states() -> list[str]:
    return list(OutboxJob.objects.order_by("id").values_list("state", flat=True))


@pytest.mark.django_db
def test_the_row_is_written_and_the_queue_is_told_on_the_commit(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(note, "x", id="1", delay=60, durable=True)
        assert (states(), delayq_fake.scheduled_jobs()) == (["unsent"], [])
    assert states() == ["sent"]
    delayq_fake.assert_scheduled(note, args=["x"], id="1", delay=60)


@pytest.mark.django_db
def test_the_row_goes_when_the_job_is_done(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Capture, done: list[Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(note, "x", durable=True)
        schedule(sync, id="1", payload=1, durable=True)
        schedule(sync, id="1", payload=2, durable=True)
    assert states() == ["sent"] * 3
    delayq_fake.run_due()
    assert "x" in done and {"1": [1, 2]} in done and states() == []


@pytest.mark.django_db
def test_the_row_of_a_buried_job_says_so(delayq_fake: Fake, django_capture_on_commit_callbacks: Capture) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(decide, "bury", id="1", durable=True)
    delayq_fake.run_due()
    assert states() == ["buried"]
    assert delayq_fake.broker.queue("notes").kick("1") == "kicked"
    delayq_fake.run_due(max_jobs=0)
    assert states() == ["sent"]


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_one_leaves_nothing(delayq_fake: Fake) -> None:
    with transaction.atomic():
        schedule(note, "x", id="1", delay=60, durable=True)
    cancel(note, id="1")
    delayq_fake.run_due()
    assert (states(), delayq_fake.scheduled_jobs()) == ([], [])


@pytest.mark.django_db(transaction=True)
def test_while_redis_is_away_it_waits_in_the_outbox_until_the_next_run(delayq_fake: Fake, done: list[Any]) -> None:
    with delayq_fake.redis_down():
        handle = schedule(note, "x", durable=True)
        assert (handle.outcome, states()) == ("outbox", ["unsent"])
    assert not delayq_fake.scheduled_jobs()
    delayq_fake.run_due()
    assert (done, states()) == (["x"], [])
    schedule(note, "y", durable=True)
    assert states() == ["sent"]


@pytest.mark.django_db(transaction=True)
def test_immediate_runs_it_and_its_row_is_gone(delayq_immediate: Fake, done: list[Any]) -> None:
    with delayq_immediate.immediate():
        schedule(once, "x", durable=True)
        schedule(note, "x", durable=True)
    assert (done, states(), Group.objects.count()) == (["x"], [], 1)


@pytest.mark.django_db(transaction=True)
def test_what_it_raises_in_immediate_mode_comes_at_the_end_of_the_block(delayq_fake: Fake) -> None:
    with pytest.raises(ValueError, match="no"), delayq_fake.immediate():
        delayq_fake.fail_next(note, ValueError("no"))
        handle = schedule(note, "x", durable=True)
        assert (handle.outcome, [job.failures for job in delayq_fake.scheduled_jobs()]) == ("created", [1])
