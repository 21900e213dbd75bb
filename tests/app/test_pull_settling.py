"""Jobs that are pulled, how they end: by a call, by the end of their block, and never twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest

from django_delayq import (
    Bury,
    InvalidJob,
    Queue,
    Release,
    Retry,
    connections,
    get_job,
    schedule,
)
from django_delayq.core.job import NewJob
from django_delayq.core.verdicts import Verdict
from django_delayq.pull import HeldJob
from tests.support.reaping import reaping

from .deeds import note, rest
from .pull_stage import EVERY_BYTE, PATIENCE, one, places

pytestmark = pytest.mark.usefixtures("pull_queues")


def counters(queue: str) -> dict[str, int]:
    return connections.broker().inspector.counts(queue).counters


ENDS: dict[str, Callable[[HeldJob], bool]] = {
    "ack": lambda job: job.ack(),
    "fail": lambda job: job.fail("no"),
    "release": lambda job: job.release(),
    "bury": lambda job: job.bury("why"),
}


AFTERWARDS: dict[str, dict[str, int]] = {
    "ack": {},
    "fail": {"delayed": 1, "failed": 1},
    "release": {"ready": 1},
    "bury": {"morgue": 1},
}


@pytest.mark.parametrize("end", ENDS)
def test_t22_a_job_ends_once_and_every_later_word_counts_for_nothing(feed: Queue, end: str) -> None:
    feed.put(b"x")
    job = one(feed)
    assert ENDS[end](job)
    assert not any(act(job) for act in ENDS.values())
    assert not job.touch()
    assert places("feed") == AFTERWARDS[end]


@pytest.mark.parametrize("end", [*ENDS, "touch"])
def test_t22_after_its_lease_and_another_holder_nothing_that_the_first_one_says_counts(feed: Queue, end: str) -> None:
    feed.put(b"x", id="a")
    late = one(feed, ttr=0.05)
    with reaping(connections.broker(), "feed"):
        again = one(feed, wait=PATIENCE)
    assert (again.id, again.attempt, again.noe) == ("a", 2, 1)
    assert not (late.touch() if end == "touch" else ENDS[end](late))
    assert late.lost
    assert places("feed") == {"reserved": 1, "failed": 1}
    assert again.ack()
    assert places("feed") == {}


def test_a_failure_counts_and_waits_for_the_back_off_of_its_task() -> None:
    schedule(note, "x", id="a", retry_in=600, max_attempts=2)
    queue = Queue("default")
    assert one(queue).fail(ValueError("no such parcel"))
    view = get_job("a", queue="default")
    assert view is not None
    assert (view.state, view.job.failures, view.error["message"]) == ("delayed", 1, "no such parcel")
    assert 595_000 < view.due_ms - connections.broker().now_ms() <= 600_000
    again = queue.reserve_id("a", early=True)
    assert again is not None
    assert (again.attempt, again.lives) == (2, 1)
    assert again.fail("again")
    view = get_job("a", queue="default")
    assert view is not None
    assert (view.state, view.outcome, view.reason, view.error["message"]) == (
        "morgue",
        "exhausted",
        "exhausted",
        "again",
    )


def test_a_failure_may_have_a_delay_of_its_own(feed: Queue) -> None:
    feed.put(b"x", id="a")
    job = one(feed)
    assert job.lives == 26, "no registered task decides"
    assert job.fail("later", timedelta(minutes=2))
    assert 110_000 < feed.peek()[0].due_ms - connections.broker().now_ms() <= 120_000


def test_the_policy_of_a_registered_task_decides() -> None:
    schedule(rest, id="a")
    queue = Queue("naps")
    for attempt in (1, 2, 3):
        job = queue.reserve_id("a", early=True)
        assert job is not None
        assert (job.attempt, job.lives) == (attempt, 4 - attempt)
        assert job.fail("no")
    assert places("naps") == {"morgue": 1}


def test_a_released_job_keeps_its_place_or_waits(feed: Queue) -> None:
    feed.put(b"x", id="a")
    feed.put(b"y", id="b")
    first = one(feed)
    assert first.release()
    again = one(feed)
    assert (again.id, again.attempt, again.noe) == (first.id, 1, 1)
    assert again.release(delay=60)
    assert places("feed") == {"ready": 1, "delayed": 1}


def test_a_buried_job_lies_in_the_morgue_with_its_reason_and_its_bytes(feed: Queue) -> None:
    feed.put(EVERY_BYTE, id="a")
    assert one(feed).bury("no such customer")
    (view,) = feed.peek(place="morgue")
    assert (view.reason, view.job.args) == ("no such customer", EVERY_BYTE)


def test_a_touched_job_stays_with_its_holder(feed: Queue) -> None:
    feed.put(b"x")
    job = one(feed, ttr=0.5)
    began = job.deadline
    assert job.touch(ttr=60)
    assert job.deadline - began > timedelta(seconds=59)
    assert feed.reserve(wait=1.5) == []
    assert job.ack()


def test_a_touch_tells_that_somebody_cancelled_it(feed: Queue) -> None:
    handle = feed.put(b"x")
    job = one(feed)
    assert handle.cancel() == "stopping"
    assert job.touch()
    assert job.should_stop
    assert job.fail("stopped")
    assert places("feed") == {}


def test_at_the_end_of_its_block_a_job_is_done(feed: Queue) -> None:
    feed.put(b"x")
    with one(feed) as job:
        assert job.body == b"x"
    assert places("feed") == {}
    assert counters("feed")["acked"] == 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ZeroDivisionError(), {"delayed": 1, "failed": 1}),
        (KeyboardInterrupt(), {"ready": 1}),
        (Retry("later", delay=60), {"delayed": 1, "failed": 1}),
        (Release("not now", delay=60), {"delayed": 1}),
        (Bury("never"), {"morgue": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_its_block_raises_decides_and_goes_on_unless_it_is_a_verdict(
    feed: Queue, raised: BaseException, expected: dict[str, int]
) -> None:
    feed.put(b"x")
    with nullcontext() if isinstance(raised, Verdict) else pytest.raises(type(raised)), one(feed):
        raise raised
    assert places("feed") == expected
    for view in feed.peek(place="failed"):
        assert view.error["class"].endswith(type(raised).__name__)


def test_what_its_block_has_decided_stays(feed: Queue) -> None:
    feed.put(b"x")
    with pytest.raises(ZeroDivisionError), one(feed) as job:
        assert job.bury("never")
        _ = 1 / 0
    assert places("feed") == {"morgue": 1}


def test_arguments_that_cannot_be_read_send_a_job_to_the_morgue() -> None:
    connections.queue("default").schedule(NewJob("a", "deeds.note", b"{no json"))
    with pytest.raises(ValueError, match="no JSON"), one(Queue("default")) as job:
        note(*job.args, **job.kwargs)
    (view,) = Queue("default").peek(place="morgue")
    assert (view.reason, view.job.args) == ("undecodable", b"{no json")


def test_a_job_is_given_back_with_another_priority(feed: Queue) -> None:
    for ident in "abc":
        feed.put(b"", id=ident)
    held = {job.id: job for job in feed.reserve(3)}
    assert held["c"].release(priority=0)
    assert held["a"].release(priority=7)
    assert held["b"].release()
    assert [job.id for job in feed.reserve(3)] == ["c", "b", "a"]
    feed.put(b"", id="d")
    (job,) = feed.reserve()
    with pytest.raises(InvalidJob, match="priority"):
        job.release(priority=8)
    assert job.in_hand
