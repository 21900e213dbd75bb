"""The real broker on a Redis in memory knows limits of concurrency."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq import Queue, run_now, schedule, task
from django_delayq.core import fsck
from django_delayq.core.task import Task, registry
from django_delayq.testing import Fake


@pytest.fixture
def limited() -> Iterator[Task]:
    @task(name="limited", queue="limited", concurrency=1)
    def handler() -> None: ...

    made = registry.get("limited")
    assert made is not None
    yield made
    registry.remove(made)


@pytest.mark.django_db(transaction=True)
def test_jobs_behind_a_limit_wait_for_its_slot_and_run(delayq_fake: Fake, limited: Task) -> None:
    for number in range(3):
        schedule(limited, id=str(number))
    assert Queue("limited").reserve(5) == [], "jobs of limited tasks are left to workers"
    assert delayq_fake.broker.inspector.counts("limited").parked == 3
    assert run_now(limited, id="1")
    fsck.assert_invariants(delayq_fake.broker)
    delayq_fake.run_due()
    counts = delayq_fake.broker.inspector.counts("limited")
    assert (counts.parked, counts.ready, counts.reserved) == (0, 0, 0)
