"""The mirrors in a worker of the project: what fails there is a row a moment later, and gone when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connections as databases

from django_delayq import schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry
from django_delayq.models import FailedJob, MorgueJob
from django_delayq.repair.jobs import retry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(delayq: Broker) -> Iterator[Callable[[], None]]:
    """A worker of the queue "mills", in this process."""
    made = []

    def start() -> None:
        made.append(wiring.make_worker(wiring.make_config(conf(), queues=("mills",), threads=1)))
        made[0].start()

    yield start
    for one in made:
        one.stop(2.0)
    databases.close_all()


def test_what_a_worker_fails_is_a_row_within_a_second_and_goes_when_it_is_done(
    worker: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    fate = {"good": False}

    @task(name="mills.grind", queue="mills", retry_in=3600, max_attempts=2)
    def grind() -> None:
        if not fate["good"]:
            raise ZeroDivisionError("no corn")

    request.addfinalizer(lambda: registry.remove(grind))
    worker()
    wait_until(lambda: FailedJob.objects.count() == 0, what="the table")
    schedule(grind, id="one")
    began_at = time.monotonic()
    wait_until(FailedJob.objects.exists, 20, what="the row of the failure")
    assert time.monotonic() - began_at < 5  # about 0.3 s; the machine of the tests may be busy
    row = FailedJob.objects.get()
    assert (row.job_id, row.error_class, row.error_message) == ("one", "ZeroDivisionError", "no corn")
    fate["good"] = True
    assert retry([row]) == {"retried": 1}
    wait_until(lambda: not FailedJob.objects.exists(), 20, what="the end of the row")
    fate["good"] = False
    schedule(grind, id="two", max_attempts=1)
    wait_until(MorgueJob.objects.exists, 20, what="the row of the burial")
    assert (MorgueJob.objects.get().job_id, FailedJob.objects.exists()) == ("two", False)
