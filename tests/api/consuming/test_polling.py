"""Facts for a handler that polls, wherever it runs: attempts, releases, and when the job was first scheduled."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_delayq import Queue
from django_delayq.worker.attempt import CurrentJob
from tests.support.api_caller import Caller
from tests.support.attempt_stage import make_attempt

from .feed import end, moment, put, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]


def test_a_polling_handler_sees_attempts_releases_and_the_first_schedule_in_every_attempt(consumer: Caller) -> None:
    before = timezone.now() - timedelta(milliseconds=1)
    put("x", id="a")
    created = []
    for expected in ((1, 0), (1, 1), (2, 1)):
        (job,) = take(consumer)
        assert (job["attempt"], job["releases"]) == expected
        created.append(job["created"])
        assert end(consumer, "release" if expected == (1, 0) else "fail", job, delay=0)
    (held,) = Queue("feed").reserve(ttr=30)
    assert (held.attempt, held.releases) == (3, 1)
    assert len(set(created)) == 1 and held.created is not None
    assert before <= held.created <= timezone.now()
    assert moment(created[0]) == held.created
    view = CurrentJob(make_attempt(held.record))
    assert (view.attempt, view.releases, view.created) == (3, 1, held.created), "the same names in a worker"
