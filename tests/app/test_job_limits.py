"""Row 4 and row 40: a negative delay, and the time limit and the lease that a producer gives a job."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import InvalidJob, Queue, connections, get_job, reschedule, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job

from .deeds import note, sync


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    """Every test here has a Redis of its own, with the queue "feed" for raw bytes."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}


def stored(queue: str = "default") -> list[dict[str, Any]]:
    return [view.job.options for view in connections.broker().inspector.page(queue, "waiting").jobs]


def lease_of(queue: str, ident: str) -> float:
    """Seconds for which Redis holds the lease, from now on."""
    broker = connections.broker()
    view = broker.inspector.get(queue, ident)
    assert view is not None and view.deadline_ms is not None
    return (view.deadline_ms - broker.now_ms()) / 1000


# --- row 4


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(days=-400), -1e9])
def test_a_job_with_a_negative_delay_is_due_now(delay: Any) -> None:
    before = time.time()
    schedule(note, "x", id="one", delay=delay)
    note.using(delay=delay, id="two").schedule("x")
    assert schedule_many(note, [{"args": ["x"], "id": "three", "delay": delay}]) == {"created": 1}
    schedule(sync, id="merged", delay=delay)
    Queue("feed").put(b"x", id="bytes", delay=delay)
    for ident, queue in (("one", "default"), ("two", "default"), ("three", "default"), ("bytes", "feed")):
        view = get_job(ident, queue=queue)
        assert view is not None and view.state == "ready", ident
        assert before - 1 <= view.job.due_ms / 1000 <= time.time() + 1
    schedule(note, "x", id="moved", delay=60)
    assert reschedule("moved", delay=delay, queue="default")
    moved = get_job("moved", queue="default")
    assert moved is not None and moved.state == "ready"


def test_a_held_job_is_released_or_failed_with_a_negative_delay_for_now() -> None:
    feed = Queue("feed")
    feed.put(b"x", id="a")
    (job,) = feed.reserve()
    assert job.release(delay=timedelta(seconds=-5))
    (job,) = feed.reserve()
    assert job.fail(ValueError(), delay=-5)
    (job,) = feed.reserve()
    assert job.failures == 1


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), float("-inf")])
def test_a_delay_that_is_no_number_stays_an_error(delay: float) -> None:
    with pytest.raises(InvalidJob, match="give a timedelta or a number of seconds"):
        schedule(note, "x", delay=delay)


# --- row 40


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"timeout": 3}, {"timeout": 3}),
        ({"timeout": 3.0}, {"timeout": 3}),
        ({"timeout": timedelta(milliseconds=1500)}, {"timeout": 1.5}),
        ({"ttr": 90}, {"ttr_ms": 90_000}),
        ({"ttr": timedelta(minutes=5), "timeout": 60}, {"timeout": 60, "ttr_ms": 300_000}),
        ({"ttr": None, "timeout": None}, {}),
    ],
)
def test_the_limits_of_a_job_are_stored_with_it(given: dict[str, Any], options: dict[str, Any]) -> None:
    schedule(note, "x", **given)
    note.using(**given).schedule("x")
    schedule_many(note, [{"args": ["x"], **given}])
    schedule_many(note, [{"args": ["x"]}], **given)
    assert stored() == [options] * 4
    Queue("feed").put(b"x", **given)
    assert stored("feed") == [options]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ttr": 0}, "ttr is 0, so nothing could be held"),
        ({"ttr": -5}, "ttr is negative"),
        ({"ttr": float("nan")}, "ttr is nan"),
        ({"ttr": "60"}, "ttr must be a timedelta or a number of seconds"),
        ({"ttr": 10**9}, "ttr is more than ten years"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"timeout": -1}, "timeout must be more than 0 seconds"),
        ({"timeout": float("inf")}, "timeout must be more than 0 seconds"),
        ({"timeout": "60"}, "timeout must be seconds"),
    ],
)
def test_a_limit_that_is_none_is_refused_at_the_call(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        schedule(note, "x", **given)
    with pytest.raises(InvalidJob, match=text):
        schedule(sync, id=1, **given)


def test_each_job_has_the_lease_that_its_producer_gave_it() -> None:
    """Row 40, beanstalkd: ttr is given with put, and counts from the reserve."""
    feed = Queue("feed")
    for ident, options in (("short", {"ttr": 5}), ("usual", {}), ("long", {"ttr": timedelta(minutes=10)})):
        feed.put(b"x", id=ident, **options)  # type: ignore[arg-type]
    held = {job.id: job for job in feed.reserve(max=3)}
    for ident, ttr in (("short", 5), ("usual", 60), ("long", 600)):
        assert ttr - 3 < held[ident].seconds_left <= ttr
        assert ttr - 3 < lease_of("feed", ident) <= ttr
        assert held[ident].touch()
        assert ttr - 3 < lease_of("feed", ident) <= ttr
        assert held[ident].deadline <= timezone.now() + timedelta(seconds=ttr + 2)


def test_a_ttr_of_the_reserve_goes_before_that_of_the_job() -> None:
    feed = Queue("feed")
    feed.put(b"x", id="a", ttr=600)
    (job,) = feed.reserve(ttr=20)
    assert 17 < job.seconds_left <= 20 and 17 < lease_of("feed", "a") <= 20


def test_a_job_that_is_reserved_by_its_id_has_its_own_lease_too() -> None:
    schedule(note, "x", id="a", ttr=600, context={"ttr_ms": 1})
    schedule(sync, id="b", payload={"x": 1}, ttr=7)
    held = Queue("default").reserve_id("a")
    assert held is not None and 597 < lease_of("default", "a") <= 600
    merged = Queue(sync.options.queue).reserve_id("b")
    assert merged is not None and 4 < merged.seconds_left <= 7


def test_a_repeated_reserve_gives_each_job_its_own_lease_again(delayq: Broker) -> None:
    Queue("feed").put(b"x", id="a", ttr=600)
    live = delayq.queue("feed")
    for _ in range(2):
        (job,) = live.reserve(
            0, 1, worker="w", request=b"r" * 16, ttr_ms=60_000, started=True, prefer_own_ttr=True
        ).jobs
        assert job.id == "a" and 597 < lease_of("feed", "a") <= 600


@pytest.mark.parametrize(
    ("options", "ttr_ms"),
    [
        (b"", None),
        (b"{}", None),
        (b'{"ttr_ms":5}', 5),
        (b'{"timeout":3,"ttr_ms":70000}', 70_000),
        (b'{"context":{"ttr_ms":5}}', None),
        (b'{"context":{"a":",\\"ttr_ms\\":5}"}}', None),
        (b'{"ttr_ms":0}', None),
        (b'{"ttr_ms":1.5}', None),
        (b'{"ttr_ms":9999999999999}', None),
        (b"\xff", None),
    ],
)
def test_redis_and_python_read_the_same_ttr(delayq: Broker, options: bytes, ttr_ms: int | None) -> None:
    from django_delayq.core.job import NewJob

    live = delayq.queue("feed")
    live.schedule(NewJob("a", "raw", b"x", options=options))
    (job,) = live.reserve(0, 1, worker="w", ttr_ms=60_000, started=True, prefer_own_ttr=True).jobs
    assert isinstance(job, Job) and job.ttr_ms == ttr_ms
    ends = delayq.client.zscore(live.shard(0).names["lease"], "a")
    assert ends is not None
    usual = ttr_ms or 60_000
    assert usual - 3000 < ends - delayq.now_ms() <= usual


def test_the_limits_of_a_job_stay_with_it_through_a_retry() -> None:
    feed = Queue("feed")
    feed.put(b"x", id="a", ttr=600, retry_in=0)
    (job,) = feed.reserve()
    assert job.fail(ValueError())
    (job,) = feed.reserve()
    assert job.failures == 1 and 597 < job.seconds_left <= 600
