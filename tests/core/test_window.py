"""Request window: the replies it stores, for how long, and that neither time nor load makes it grow."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from django_delayq.core import Broker, Connection, NewJob, QueueUnavailable
from tests.support.core_stored import pack_new

from ..support.processes import wait_until
from ..support.redis_box import RedisBox
from ..support.tcp_proxy import TcpProxy
from .stage import LEASE, T0, Stage
from .world import raw

#: replies that a shard remembers at most, except those of calls that may still be repeated
CAP = 100_000
#: ms for which a call may be repeated unless the settings say otherwise, and some for its way
REPEATED_MS = 26_500


def fill(stage: Stage, count: int, *, age_ms: int = 0) -> list[bytes]:
    """Store replies of earlier calls in the shard, the oldest first."""
    requests = [os.urandom(16) for _ in range(count)]
    came = struct.pack("<dI", stage.us // 1000 - age_ms, REPEATED_MS)
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


def test_a_shard_remembers_no_more_than_100_000_replies_of_calls_that_nobody_repeats_any_more(stage: Stage) -> None:
    requests = fill(stage, CAP, age_ms=REPEATED_MS)
    call_often(stage, 640)
    assert CAP <= remembered(stage) < CAP + 64
    gone, kept = stage.broker.client.hmget(stage.key("reply"), requests[0], requests[-1])
    assert (gone, kept) == (None, b"c"), "the oldest are forgotten"


def test_a_look_of_the_dispatcher_shortens_a_window_that_is_too_long(stage: Stage) -> None:
    fill(stage, CAP + 200, age_ms=REPEATED_MS)
    stage.queue.tick(0)
    assert remembered(stage) == CAP


def test_a_call_is_known_for_as_long_as_it_may_be_repeated_however_many_came_since(stage: Stage) -> None:
    """Also if it left nothing behind: without its reply, a second call would start the job again."""
    request = os.urandom(16)
    new = NewJob("once", "work")
    stage.queue.call("schedule", 0, pack_new(new), b"0", b"", b"", b"", request=request)
    stage.done(*stage.take())
    fill(stage, CAP)
    stage.wait(REPEATED_MS - 1)
    call_often(stage, 640)
    assert stage.queue.call("schedule", 0, pack_new(new), b"0", b"", b"", b"", request=request) == b"c"
    assert [job.id for job in stage.take()] == ["a"]


@pytest.mark.parametrize("fresh", [True, False], ids=["generated id", "own id"])
def test_each_call_is_known_for_as_long_as_its_own_caller_may_repeat_it(
    stage: Stage, prefix: str, redis_setting: object, opened: Callable[..., Connection], fresh: bool
) -> None:
    """Callers with other limits, who write to the same shard, do not make it forget earlier."""
    patient = Broker(
        opened(redis_setting, SOCKET_TIMEOUT=15, RETRIES=3), prefix=prefix, lease_ms=LEASE, test_clock=True
    )
    stage.put("first", at=-1)
    new = NewJob("once", "work", fresh=fresh)
    patient.queue("q").schedule(new)
    assert {job.id for job in stage.take()} == {"first", "once"}
    fill(stage, CAP)
    stage.wait(61_500)
    call_often(stage, 640)
    assert remembered(stage) >= CAP + 640
    stage.wait(5000)
    call_often(stage, 640)
    assert remembered(stage) < CAP + 64


def test_replies_from_before_a_large_step_back_do_not_make_the_window_grow(stage: Stage) -> None:
    """Their age is not known before the clock has caught up, which may take hours."""
    fill(stage, CAP)
    stage.wait(-3_600_000)
    call_often(stage, 640)
    assert remembered(stage) < CAP + 64


def test_calls_alone_shorten_a_window_that_has_grown(stage: Stage) -> None:
    """Calls remove more entries than they add, so a window that grew while it was not swept shrinks again."""
    fill(stage, 1000, age_ms=120_000)
    call_often(stage, 320)
    assert remembered(stage) < 1000


def test_a_call_that_is_sent_again_within_two_minutes_is_known_while_the_window_has_room(stage: Stage) -> None:
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


def test_a_chunk_whose_reply_was_lost_is_not_sent_again_after_its_time(
    redis_box: RedisBox, redis_url: str, opened: Callable[..., Connection], proxy_factory: Callable[[str], TcpProxy]
) -> None:
    """The iterable of the jobs paused for so long that the shard has forgotten the call, and the jobs have run."""
    proxy = proxy_factory(str(redis_box.socket_path))
    hasty = Broker(opened(proxy.url, SOCKET_TIMEOUT=1, RETRIES=0), prefix="p", lease_ms=LEASE, test_clock=True)
    stage = Stage(Broker(opened(redis_url), prefix="p", lease_ms=LEASE, test_clock=True))
    hasty.queue("q").schedule(NewJob("later", "work", delay_ms=600_000))  # it loads the script
    proxy.cut_after_request(1, when=lambda chunk: b"EVALSHA" in chunk)
    ran: list[str] = []

    def news() -> Iterator[NewJob]:
        yield from (NewJob(f"j{n}", "work") for n in range(250))
        began = time.monotonic()
        wait_until(lambda: proxy.cuts_done == 1)
        ran.extend(job.id for job in stage.take(250) if stage.done(job))
        stage.wait(120_000)
        call_often(stage, 128)
        stage.done(*stage.take())
        wait_until(lambda: time.monotonic() > began + hasty.connection.patience)
        yield NewJob("last", "work")

    with pytest.raises(QueueUnavailable):
        hasty.queue("q").schedule_many(news())
    assert len(ran) == 250
    assert [job.id for job in stage.take()] == []
