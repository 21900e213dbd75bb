"""Raw bytes in queues of kind "pull"."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    InvalidJob,
    Queue,
    connections,
    schedule,
)

from .deeds import note
from .pull_stage import EVERY_BYTE, one, places

pytestmark = pytest.mark.usefixtures("pull_queues")


@pytest.mark.parametrize("body", [EVERY_BYTE, b"", EVERY_BYTE * 4096], ids=["every byte", "empty", "1 MiB"])
def test_t38_bytes_come_back_as_they_were_put(feed: Queue, body: bytes) -> None:
    assert feed.put(body).outcome == "created"
    job = one(feed)
    assert job.body == body
    assert (job.task, job.args, job.kwargs) == ("raw", [], {})
    assert job.ack()


def test_t38_a_larger_body_is_refused_with_what_to_do(feed: Queue) -> None:
    with pytest.raises(InvalidJob, match=r"has 1048577 bytes, at most 1048576 are stored; .*MAX_ARGS_BYTES"):
        feed.put(b"x" * (1024 * 1024 + 1))
    assert places("feed") == {}


def test_text_is_stored_as_utf8_and_other_bytes_as_they_are(feed: Queue) -> None:
    for body in ("größer", bytearray(b"array"), memoryview(b"view")):
        feed.put(body)
    assert [one(feed).body for _ in range(3)] == ["größer".encode(), b"array", b"view"]
    with pytest.raises(TypeError, match="must be bytes or str, not dict; encode it, or use schedule"):
        feed.put({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="not valid Unicode"):
        feed.put("\ud800")


def test_a_put_has_the_options_of_a_job(feed: Queue) -> None:
    first = feed.put(b"old", id="a", delay=60)
    second = feed.put(b"new", id="a", delay=30, priority=1, context={"trace": "t"}, max_attempts=2)
    assert (first.outcome, second.outcome, second.state()) == ("created", "replaced", "delayed")
    assert feed.put(b"x", id="a", on_conflict="ignore").outcome == "ignored"
    assert second.run_now()
    job = one(feed)
    assert (job.body, job.context, job.lives) == (b"new", {"trace": "t"}, 2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dellay": 5}, TypeError, "Did you mean 'delay'"),
        ({"payload": 5}, TypeError, "unknown option 'payload'"),
        ({"durable": True}, TypeError, "unknown option 'durable'"),
        ({"on_conflict": "merge"}, InvalidJob, "merge"),
        ({"delay": 5, "at": 5}, InvalidJob, "delay"),
        ({"id": ""}, InvalidJob, "id must be"),
    ],
)
def test_a_wrong_option_is_refused(feed: Queue, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        feed.put(b"x", **options)
    assert places("feed") == {}


def test_bytes_are_refused_by_a_queue_of_tasks() -> None:
    schedule(note, "x")
    with pytest.raises(InvalidJob, match=r"queue 'default' is of kind 'python'.*use schedule\(\).*\"kind\": \"pull\""):
        Queue("default").put(b"x")


def test_several_queues_are_for_taking_only() -> None:
    for verb in (lambda both: both.put(b"x"), lambda both: both.counts(), lambda both: both.peek()):
        with pytest.raises(InvalidJob, match=r"Queue\('feed'\)\."):
            verb(Queue("feed", "wide"))


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_bytes_are_put_after_the_commit(feed: Queue) -> None:
    with transaction.atomic():
        handles = [feed.put(b"x", id=f"put-{n}") for n in range(3)]
        assert ([handle.outcome for handle in handles], places("feed")) == (["on_commit"] * 3, {})
    assert [handle.outcome for handle in handles] == ["created"] * 3
    with suppress(ZeroDivisionError), transaction.atomic():
        feed.put(b"y")
        _ = 1 / 0
    assert [job.id for job in feed.reserve(250)] == ["put-0", "put-1", "put-2"]
    with transaction.atomic(), pytest.raises(InvalidJob, match="kind 'python'"):
        Queue("default").put(b"x")
    assert connections.broker().queue_names() == ["feed"]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Queue(), "which queue"),
        (lambda: Queue("no name"), "queue name"),
        (lambda: Queue("feed").reserve(0), "max must be 1 to 250"),
        (lambda: Queue("feed").reserve(251), "max must be 1 to 250"),
        (lambda: Queue("feed").reserve(wait=-1), "wait is negative"),
        (lambda: Queue("feed").reserve(wait="1"), "wait must be"),
        (lambda: Queue("feed").reserve(ttr=0), "ttr is 0"),
        (lambda: Queue("feed").reserve(by="x" * 300), "name of a holder must be 1 to 255 bytes"),
        (lambda: Queue("feed").reserve_id(""), "id must be"),
    ],
)
def test_what_cannot_be_meant_is_refused(act: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        act()
