"""Request window: the replies it stores, and that neither time nor load makes it grow."""

from __future__ import annotations

import os
import struct

from .stage import T0, Stage
from .world import raw

#: replies that a shard remembers at most
CAP = 100_000


def fill(stage: Stage, count: int, *, age_ms: int = 0) -> list[bytes]:
    """Store replies of earlier calls in the shard, the oldest first."""
    requests = [os.urandom(16) for _ in range(count)]
    came = struct.pack("<d", stage.us // 1000 - age_ms)
    client, window, reply = stage.broker.client, stage.key("window"), stage.key("reply")
    for start in range(0, count, 10_000):
        some = requests[start : start + 10_000]
        client.rpush(window, *(request + came for request in some))
        client.hset(reply, mapping=dict.fromkeys(some, b"c"))
    return requests


def remembered(stage: Stage) -> int:
    client = stage.broker.client
    length = client.llen(stage.key("window"))
    assert client.hlen(stage.key("reply")) == length
    return int(length)


def call_often(stage: Stage, times: int) -> None:
    for _ in range(times):
        stage.put("a", at=0)


def test_a_shard_remembers_no_more_than_100_000_replies_however_young_they_are(stage: Stage) -> None:
    requests = fill(stage, CAP)
    call_often(stage, 640)
    assert CAP <= remembered(stage) < CAP + 64
    gone, kept = stage.broker.client.hmget(stage.key("reply"), requests[0], requests[-1])
    assert (gone, kept) == (None, b"c"), "the oldest are forgotten"


def test_a_look_of_the_dispatcher_shortens_a_window_that_is_too_long(stage: Stage) -> None:
    fill(stage, CAP + 200)
    stage.queue.tick(0)
    assert remembered(stage) == CAP


def test_calls_alone_shorten_a_window_that_has_grown(stage: Stage) -> None:
    """Calls remove more entries than they add, so a window that grew while it was not swept shrinks again."""
    fill(stage, 1000, age_ms=120_000)
    call_often(stage, 320)
    assert remembered(stage) < 1000


def test_a_call_that_is_sent_again_within_two_minutes_is_known_however_many_came_since(stage: Stage) -> None:
    stage.put("a", at=0)
    job = stage.queue.reserve(0, 1, worker="w", request=b"r" * 16)
    fill(stage, CAP - 1000)
    stage.wait(119_000)
    call_often(stage, 64)
    before = raw(stage.broker)
    assert stage.queue.reserve(0, 1, worker="w", request=b"r" * 16).jobs == job.jobs
    lease = stage.key("lease").decode()
    assert before.pop(lease) == [(b"a", T0 + 15_000)]
    after = raw(stage.broker)
    assert after.pop(lease) == [(b"a", T0 + 134_000)], "the lease begins anew: its holder has just heard of it"
    assert after == before
    assert job.jobs[0].due_ms == T0
