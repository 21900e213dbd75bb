"""The clients: a wait ends before the lease of a job that is held already (beanstalkd's DEADLINE_SOON)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from django_delayq.client import Client

from .operating import create_queue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_wait_ends_before_the_lease_of_a_held_job(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", b"x", id="x")
    (job,) = client.reserve("images", ttr=3)
    assert 2 < job.seconds_left <= 3
    assert client.soon_ending(1) == []
    began = time.monotonic()
    assert client.reserve("images", wait=20, deadline_margin=timedelta(seconds=1.5)) == []
    assert 0.5 < time.monotonic() - began < 3
    assert [one.id for one in client.soon_ending(1.6)] == ["x"]
    assert job.touch(10)
    assert (client.soon_ending(1.6), job.seconds_left > 8) == ([], True)


def test_a_job_that_is_due_comes_first_and_ended_ones_end_no_wait(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", b"x")
    (held,) = client.reserve("images", ttr=5)
    client.put("images", b"y", id="y")
    (job,) = client.reserve("images", wait=20, deadline_margin=10)
    assert job.id == "y"
    assert job.ack() and held.ack()
    assert (job.seconds_left, client.soon_ending(60)) == (0, [])
    began = time.monotonic()
    assert client.reserve("images", wait=1, deadline_margin=10) == []
    assert time.monotonic() - began > 0.9


def test_the_length_of_a_lease_may_be_the_jobs_own(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", b"x", id="x", ttr=30)
    (job,) = client.reserve("images")
    assert 25 < job.seconds_left <= 31
    assert job.touch(90)
    assert 85 < job.seconds_left <= 90
    assert job.touch()
    assert 25 < job.seconds_left <= 31


def test_a_wrong_margin_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="deadline_margin is 0; give more than 0 seconds"):
        client.reserve("images", deadline_margin=0)
