"""``django_delayq.Queue``: jobs that any thread takes by itself, and how they end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq import (
    Bury,
    InvalidJob,
    PartialFailure,
    Queue,
    QueueUnavailable,
    Release,
    Retry,
    connections,
    get_job,
    schedule,
    task,
)
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.records import keys
from django_delayq.core.records.keys import wake_key
from django_delayq.core.sending.sender import Sender
from django_delayq.core.task import Task, registry
from django_delayq.pull import HeldJob, coordinator
from django_delayq.pull.coordinator import ReserveCall, coordinator_of
from django_delayq.pull.search import Search, Terms
from django_delayq.worker import wake_listener
from tests.support.processes import wait_until
from tests.support.reaping import reaping
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .deeds import clash, note, rest

#: s; what a slow machine may need for anything that has no bound of its own
PATIENCE = 20.0
EVERY_BYTE = bytes(range(256))


@pytest.fixture(autouse=True)
def _queues(delayq: Broker, settings: Any) -> None:
    """Every test here has a Redis of its own, "feed" for raw bytes and "wide" in four shards."""
    kinds = {"feed": {"kind": "pull"}, "wide": {"kind": "pull", "shards": 4}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": kinds}


@pytest.fixture
def feed() -> Queue:
    return Queue("feed")


def counters(queue: str) -> dict[str, int]:
    return connections.broker().inspector.counts(queue).counters


def places(queue: str) -> dict[str, int]:
    """Count the jobs of a queue by place; empty places are left out."""
    counts = connections.broker().inspector.counts(queue)
    names = ("ready", "delayed", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def one(queue: Queue, **options: Any) -> HeldJob:
    (job,) = queue.reserve(**options)
    return job


def waiting(threads: int = 1) -> None:
    """Until so many threads of this process sleep until they are woken."""

    def asleep() -> bool:
        return sum(waiter.sleeping for waiter in list(coordinator_of()._waiters)) == threads

    wait_until(asleep, PATIENCE, f"{threads} waiting threads")


# --- what is in the hand


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


# --- how it ends

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
    assert one(feed).fail("later", timedelta(minutes=2))
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


def test_without_a_registered_task_the_defaults_decide(feed: Queue) -> None:
    feed.put(b"x")
    assert one(feed).lives == 26


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


def test_an_exception_in_its_block_is_a_failure_and_goes_on(feed: Queue) -> None:
    feed.put(b"x")
    with pytest.raises(ZeroDivisionError), one(feed):
        _ = 1 / 0
    assert feed.peek(place="failed")[0].error["class"] == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Retry("later", delay=60), {"delayed": 1, "failed": 1}),
        (Release("not now", delay=60), {"delayed": 1}),
        (Bury("never"), {"morgue": 1}),
    ],
    ids=["Retry", "Release", "Bury"],
)
def test_a_verdict_in_its_block_is_carried_out_and_ends_there(
    feed: Queue, verdict: Exception, expected: dict[str, int]
) -> None:
    feed.put(b"x")
    with one(feed):
        raise verdict
    assert places("feed") == expected


def test_the_end_of_the_process_gives_a_job_back_uncounted(feed: Queue) -> None:
    feed.put(b"x")
    with pytest.raises(KeyboardInterrupt), one(feed):
        raise KeyboardInterrupt
    assert places("feed") == {"ready": 1}


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


# --- raw bytes


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
        handle = feed.put(b"x", delay=60)
        assert (handle.outcome, places("feed")) == ("on_commit", {})
    assert (handle.outcome, places("feed")) == ("created", {"delayed": 1})
    with suppress(ZeroDivisionError), transaction.atomic():
        feed.put(b"y")
        _ = 1 / 0
    assert places("feed") == {"delayed": 1}
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


# --- waiting


def soon(act: Callable[[], Any]) -> Any:
    """``act()`` in another thread; ``.result(…)`` is its answer."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(act)
    pool.shutdown(wait=False)
    return future


def test_a_job_that_is_put_meanwhile_is_there_within_milliseconds(feed: Queue) -> None:
    late = []
    for _ in range(7):
        taken = soon(lambda: (one(feed, wait=PATIENCE), time.monotonic()))
        waiting()
        put_at = time.monotonic()
        feed.put(b"x")
        job, at = taken.result(PATIENCE)
        late.append(at - put_at)
        assert job.ack()
    assert sorted(late)[3] < 0.05


def test_a_delayed_job_is_taken_when_it_is_due(feed: Queue) -> None:
    feed.put(b"x", delay=0.3)
    taken = soon(lambda: (one(feed, wait=PATIENCE), timezone.now()))
    job, at = taken.result(PATIENCE)
    assert timedelta(0) <= at - job.due < timedelta(seconds=0.2)


def test_who_waits_hears_of_a_due_time_that_comes_before_the_one_he_knows(feed: Queue) -> None:
    feed.put(b"later", id="later", delay=3600)
    taken = soon(lambda: one(feed, wait=timedelta(seconds=PATIENCE)))
    waiting()
    feed.put(b"sooner", delay=0.1)
    assert taken.result(PATIENCE).body == b"sooner"


def test_a_wait_ends_in_time_with_nothing(feed: Queue) -> None:
    began = time.monotonic()
    assert feed.reserve(wait=0.3) == []
    assert 0.3 <= time.monotonic() - began < 1.5


def test_who_waits_for_ever_hears_of_every_one_of_his_queues() -> None:
    feed, both = Queue("feed"), Queue("wide", "feed")
    alone = soon(lambda: one(feed, wait=None))
    waiting()
    taken = soon(lambda: one(both, wait=None))  # of queues of which nobody heard so far
    waiting(2)
    Queue("wide").put(b"for both")
    assert taken.result(PATIENCE).body == b"for both"
    feed.put(b"for the one")
    assert alone.result(PATIENCE).body == b"for the one"


@pytest.mark.one_server("the line is that of a blocking list read")
def test_all_waiting_threads_of_a_process_share_one_blocking_connection(feed: Queue) -> None:
    client = connections.broker().client

    def blocked() -> set[str]:
        return {each["id"] for each in client.client_list() if each["cmd"] == "blpop"}

    before = blocked()  # a line of an earlier test may still be there
    taken = [soon(lambda: feed.reserve(wait=PATIENCE)) for _ in range(8)]
    waiting(8)
    wait_until(lambda: blocked() - before, PATIENCE, "a blocked connection")
    assert len(blocked() - before) == 1
    for number in range(8):
        feed.put(b"%d" % number)
    bodies = [job.body for future in taken for job in future.result(PATIENCE)]
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


def test_t25_waiting_threads_get_jobs_in_the_order_in_which_they_came(feed: Queue) -> None:
    """20 consumers, jobs that come one at a time: an equal share for each, whoever is the fastest."""
    shares: Counter[int] = Counter()
    done = threading.Semaphore(0)

    def consume(name: int) -> None:
        while one(feed, wait=PATIENCE).body != b"end":
            shares[name] += 1
            done.release()

    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(consume, name) for name in range(20)]
        for number in range(60):
            waiting(20)
            feed.put(b"%d" % number)
            assert done.acquire(timeout=PATIENCE)
        for _ in futures:
            feed.put(b"end")
        for future in futures:
            future.result(PATIENCE)
    assert shares == dict.fromkeys(range(20), 3)


@pytest.mark.parametrize("name", ["feed", "wide"])
def test_t25_twenty_consumers_of_ten_thousand_ready_jobs_never_get_an_empty_answer(name: str) -> None:
    """Each makes as many calls as the others; the shares are equal because no answer is short."""
    queue, calls, limit = Queue(name), 50, 10
    live = connections.queue(name)
    live.schedule_many(NewJob(f"j{number}", "raw") for number in range(10_000))

    def consume() -> list[str]:
        taken: list[str] = []
        for _ in range(calls):
            jobs = queue.reserve(limit)
            assert jobs, "an empty answer while jobs are ready"
            assert all(job.ack() for job in jobs)
            taken += [job.id for job in jobs]
        return taken

    with ThreadPoolExecutor(20) as pool:
        shares = [future.result() for future in [pool.submit(consume) for _ in range(20)]]
    assert [len(share) for share in shares] == [500] * 20
    assert len({ident for share in shares for ident in share}) == 10_000
    assert queue.reserve(limit) == []
    assert places(name) == {}


@pytest.mark.one_server("counts the requests of one server")
def test_waiting_costs_less_than_a_request_a_second(redis_box: RedisBox) -> None:
    wide = Queue("wide", "feed")
    assert wide.reserve() == []
    requests: Counter[str] = Counter()
    with redis_box.client().monitor() as monitor:
        taken = [soon(lambda: wide.reserve(wait=14)) for _ in range(3)]
        waiting(3)
        since = time.time() + 2  # the start looks everywhere
        for future in taken:
            assert future.result(PATIENCE) == []
        redis_box.client().echo("the end")
        for said in monitor.listen():
            if said["command"].startswith("ECHO"):
                break
            if said["client_type"] != "lua" and since <= said["time"] <= since + 8:
                requests[said["command"].split()[0]] += 1
    assert 3 <= sum(requests.values()) <= 8, requests


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_token_that_nobody_here_waits_for_any_more_is_left_to_other_processes(feed: Queue) -> None:
    broker = connections.broker()
    assert feed.reserve(wait=0.05) == []  # the blocking read is still outstanding now
    put_at = time.monotonic()
    feed.put(b"x")
    tokens: Callable[[], list[bytes]] = lambda: broker.client.lrange(wake_key(broker.prefix, "feed"), 0, -1)  # noqa: E731
    wait_until(lambda: tokens() == [b"0"], PATIENCE, "the token on the list")
    assert time.monotonic() - put_at < 5
    assert one(feed).ack()


def test_who_waits_when_nobody_has_waited_for_a_while_hears_of_a_job_at_once(
    feed: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SAFETY_CHECK", 60.0)
    monkeypatch.setattr(wake_listener, "BLOCK", 0.1)
    assert feed.reserve(wait=0.2) == []
    time.sleep(0.3)  # the blocking read is over, and the thread waits for somebody to read for
    taken = soon(lambda: feed.reserve(wait=PATIENCE))
    waiting()
    time.sleep(0.2)
    put_at = time.monotonic()
    feed.put(b"x")
    assert len(taken.result(PATIENCE)) == 1
    assert time.monotonic() - put_at < 5


def test_a_job_whose_wake_token_was_lost_is_found(feed: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SAFETY_CHECK", 0.2)
    broker = connections.broker()
    assert Queue("wide").reserve() == []
    taken = soon(lambda: Queue("wide", "feed").reserve(wait=PATIENCE))
    waiting()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(keys, "wake_key", lambda prefix, queue: f"{prefix}:{queue}:where nobody listens")
        Broker(broker.connection, prefix=broker.prefix).queue("feed").schedule(NewJob("lost", "raw", b"x"))
    (job,) = taken.result(PATIENCE)
    assert job.id == "lost"


@pytest.mark.one_server("a channel keeps no tokens")
def test_a_due_time_that_only_this_process_knows_is_told_to_others_when_it_stops_waiting(feed: Queue) -> None:
    broker = connections.broker()
    taken = soon(lambda: feed.reserve(wait=1.0))
    waiting()
    feed.put(b"x", delay=3600)
    assert taken.result(PATIENCE) == []
    wait_until(lambda: broker.client.lrange(wake_key(broker.prefix, "feed"), 0, -1) == [b"0"], PATIENCE, "the token")


def test_a_paused_queue_hands_nothing_out_until_it_is_resumed(feed: Queue) -> None:
    feed.put(b"x")
    feed.pause("out")
    assert feed.reserve(wait=0.1) == []
    taken = soon(lambda: feed.reserve(wait=PATIENCE))
    waiting()
    feed.resume()
    assert [job.body for job in taken.result(PATIENCE)] == [b"x"]


def test_shards_that_come_later_are_visited_and_waited_for(feed: Queue) -> None:
    feed.put(b"old", id="old")
    taken = soon(lambda: Queue("feed").reserve(250, wait=PATIENCE))
    assert [job.body for job in taken.result(PATIENCE)] == [b"old"]
    taken = soon(lambda: Queue("feed").reserve(250, wait=PATIENCE))
    waiting()
    connections.broker().reshard("feed", 3)
    feed.put(b"new", id="new")
    assert [job.body for job in taken.result(PATIENCE)] == [b"new"]


# --- Redis goes away


@pytest.fixture
def proxied(proxy_factory: Callable[[Any], TcpProxy], redis_box: RedisBox, settings: Any) -> Iterator[TcpProxy]:
    """The same Redis behind a line that can be cut."""
    proxy = proxy_factory(str(redis_box.socket_path))
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": proxy.url}
    yield proxy
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_box.url}


@pytest.mark.one_server("the line is that to one server")
@pytest.mark.usefixtures("redis_url")
class TestAnOutage:
    def test_is_told_at_once_or_at_the_end_of_the_wait(self, feed: Queue, proxied: TcpProxy) -> None:
        assert feed.reserve() == []
        proxied.refuse()
        with pytest.raises(QueueUnavailable):
            feed.reserve()
        began = time.monotonic()
        with pytest.raises(QueueUnavailable):
            feed.reserve(wait=1)
        assert time.monotonic() - began >= 1

    def test_before_the_first_call_is_no_other_thing(self, feed: Queue, proxied: TcpProxy) -> None:
        proxied.refuse()
        with pytest.raises(QueueUnavailable):
            feed.reserve()
        taken = soon(lambda: feed.reserve(wait=PATIENCE))
        proxied.passing()
        feed.put(b"x")
        assert [job.body for job in taken.result(PATIENCE)] == [b"x"]

    def test_is_sat_out_by_who_waits(self, feed: Queue, proxied: TcpProxy, delayq: Broker) -> None:
        taken = soon(lambda: feed.reserve(wait=PATIENCE))
        waiting()
        proxied.refuse()
        delayq.queue("feed", kind="pull").schedule(NewJob("a", "raw", b"x"))
        proxied.passing()
        assert [job.body for job in taken.result(PATIENCE)] == [b"x"]
        delayq.connection.close()

    def test_does_not_make_a_held_job_end_unheard(self, feed: Queue, proxied: TcpProxy) -> None:
        feed.put(b"x")
        job = one(feed)
        proxied.refuse()
        with pytest.raises(QueueUnavailable):
            job.ack()
        with pytest.raises(ZeroDivisionError), job:
            _ = 1 / 0
        proxied.passing()
        assert job.ack()
        assert places("feed") == {}

    def test_that_takes_the_answer_loses_no_job(self, feed: Queue, proxied: TcpProxy) -> None:
        feed.put(b"x")
        feed.put(b"y")
        assert one(feed).ack()  # loads the script
        proxied.cut_after_request(1, when=lambda said: b"EVALSHA" in said)
        assert [job.body for job in feed.reserve(wait=5)] == [b"y"]


# --- in the middle of a call


def interrupted(error: BaseException) -> tuple[Search, Iterator[ReserveCall]]:
    """A call that takes two jobs of a shard and meets ``error`` at the next one."""
    live = connections.queue("wide")
    live.schedule_many(NewJob(f"j{number}", "raw") for number in range(40))
    search = Search(coordinator_of(), ("wide",), Terms(250, 60_000, "w"))

    def questions() -> Iterator[ReserveCall]:
        yield coordinator_of().begin_reserve(coordinator_of().places([live], 0)[0])
        raise error

    return search, questions()


def test_what_is_in_hand_when_redis_goes_away_is_handed_out() -> None:
    search, questions = interrupted(QueueUnavailable("gone"))
    jobs = search._collect(questions)
    assert places("wide") == {"ready": 40 - len(jobs), "reserved": len(jobs)}


def test_what_is_in_hand_when_the_process_ends_goes_back() -> None:
    search, questions = interrupted(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        search._collect(questions)
    assert places("wide") == {"ready": 40}


def test_a_raw_job_is_of_no_registered_task() -> None:
    assert isinstance(note, Task)
    assert registry.get("raw") is None


@pytest.mark.django_db(transaction=True)
def test_puts_of_a_transaction_share_a_round_trip(feed: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    send = Sender.schedule_many

    def counted(self: Sender, news: Any, **options: Any) -> Any:
        calls.append(len(news))
        return send(self, news, **options)

    monkeypatch.setattr(Sender, "schedule_many", counted)
    with transaction.atomic():
        handles = [feed.put(b"x", id=f"put-{n}") for n in range(3)]
    assert calls == [3]
    assert [handle.outcome for handle in handles] == ["created"] * 3
