"""``django_delayq.Queue``: jobs that any thread takes by itself, and what it learns of them."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import (
    PartialFailure,
    Queue,
    connections,
    schedule,
    task,
)
from django_delayq.core.job import NewJob
from django_delayq.core.task import registry

from .deeds import clash, note
from .pull_stage import PATIENCE, one, places

pytestmark = pytest.mark.usefixtures("pull_queues")


def test_a_tasks_job_comes_with_its_arguments_and_all_that_is_known_of_it() -> None:
    before = timezone.now()
    at = before.replace(microsecond=5000)
    schedule(clash, kwargs={"id": 5, "delay": 7}, id="c", at=at, context={"trace": "t"}, max_attempts=3)
    job = one(Queue("default"), ttr=30, wait=PATIENCE)
    assert (job.id, job.queue, job.task) == ("c", "default", "deeds.clash")
    assert (list(job.args), dict(job.kwargs), job.payloads) == ([], {"id": 5, "delay": 7}, ())
    assert (job.attempt, job.failures, job.noe, job.lives) == (1, 0, 0, 3)
    assert (job.context, job.due) == ({"trace": "t"}, at)
    assert timedelta(seconds=29) < job.deadline - before < timedelta(seconds=45)
    assert len(job.key) == 32
    assert job.token > 0
    assert places("default") == {"reserved": 1}
    assert job.ack()


def test_the_payloads_of_a_merged_job_come_in_the_order_of_their_scores() -> None:
    @task(name="pull.merged", queue="crm", merge=True)
    def merged(payloads_by_id: dict[str, list[Any]]) -> None:
        return None

    try:
        for score in (2, 1, 3):
            schedule(merged, id="57", payload={"version": score}, score=score)
        job = one(Queue("crm"))
        assert job.payloads == ({"version": 1}, {"version": 2}, {"version": 3})
        assert job.args == [{"57": [{"version": 1}, {"version": 2}, {"version": 3}]}]
        with job:
            raise PartialFailure({"57": ValueError("no")})
        assert places("crm") == {"delayed": 1, "failed": 1}
    finally:
        registry.remove(merged)


def test_nothing_is_taken_before_its_due_time() -> None:
    schedule(note, "x", delay=60)
    assert Queue("default").reserve(10) == []
    assert places("default") == {"delayed": 1}


def test_jobs_are_collected_over_the_shards_up_to_what_was_asked_for() -> None:
    wide = Queue("wide")
    for number in range(40):
        wide.put(b"", id=number)
    assert [len(wide.reserve(limit)) for limit in (1, 25, 250, 250)] == [1, 25, 14, 0]


def test_each_call_begins_with_another_queue_and_another_shard() -> None:
    broker, both = connections.broker(), Queue("feed", "wide")
    for name in both.names:
        queue = broker.queue(name, shards=4 if name == "wide" else 1, kind="pull")
        queue.schedule_many([NewJob(f"{name}-{number}", "raw") for number in range(200)])
    taken = [one(both) for _ in range(16)]
    assert Counter(job.queue for job in taken) == {"feed": 8, "wide": 8}
    wide = broker.queue("wide")
    assert set(Counter(wide.shard_of(job.id) for job in taken if job.queue == "wide").values()) == {2}


def test_a_given_id_is_reserved_when_it_is_due_or_wanted_early(feed: Queue) -> None:
    both = Queue("default", "feed")
    feed.put(b"first", id="a")
    feed.put(b"second", id="b")
    feed.put(b"later", id="c", delay=60)
    b = both.reserve_id("b")
    assert b is not None
    assert b.body == b"second"
    assert both.reserve_id("b") is None
    assert both.reserve_id("c") is None
    assert both.reserve_id("none") is None
    c = both.reserve_id("c", early=True)
    assert c is not None
    assert c.ack()
    assert places("feed") == {"ready": 1, "reserved": 1}


def test_a_given_id_is_reserved_from_the_morgue_if_that_is_wanted(feed: Queue) -> None:
    feed.put(b"bad", id="a")
    assert one(feed).bury("no such order")
    both = Queue("default", "feed")
    assert both.reserve_id("a") is None
    assert both.reserve_id("a", early=True) is None
    job = both.reserve_id("a", buried=True, ttr=30)
    assert job is not None
    assert (job.body, job.attempt, 29 < job.seconds_left <= 30) == (b"bad", 1, True)
    assert places("feed") == {"reserved": 1}
    assert both.soon_ending(60) == [job]
    assert job.ack()
    assert places("feed") == {}
