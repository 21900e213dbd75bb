"""Metrics of finished attempts: histograms, their form in Redis, their collection and sending; depths of queues."""

from __future__ import annotations

import os
import random
import threading
from bisect import bisect_left

import pytest

from django_delayq.core import (
    Broker,
    Job,
    NewJob,
    QueueUnavailable,
    Settlement,
    ack,
    bury,
    fail,
    figures,
    release,
)
from django_delayq.core.figures import (
    BUCKETS_MS,
    MINUTES,
    MOST_FIELDS,
    DepthPoint,
    Figures,
    Histogram,
    fill,
    from_fields,
    histogram_of,
    new_cells,
    to_fields,
)
from tests.support.core_calls import lock_of
from tests.support.core_figures import (
    Tally,
    added,
    flush_now,
    is_scheduled,
    remind_again,
    set_pace,
    store_violations,
    without,
)
from tests.support.core_stored import depth_key, figures_keys
from tests.support.processes import wait_until
from tests.support.seeds import seed_of_run

from .epochs_stage import other

DUE = 1_700_000_000_000


def histogram(*values: int) -> Histogram:
    """Return a histogram of these durations in ms."""
    cells = new_cells()
    for value in values:
        fill(cells, [value])
    return histogram_of(cells)


def job(task: str = "work", queue: str = "q") -> Job:
    return Job(queue, 0, "a", task, b"k" * 16, b"", b"", 4, DUE)


def ran(late_ms: int, run_ms: int, task: str = "work") -> Settlement:
    return ack(job(task), DUE + late_ms, run_ms)


class Post:
    """Stand-in for Redis that records calls, and raises an error while ``down``."""

    def __init__(self) -> None:
        self.sent: list[tuple[Figures, bytes]] = []
        self.down = False

    def __call__(self, figures: Figures, request: bytes) -> None:
        self.sent.append((figures, request))
        if self.down:
            raise QueueUnavailable("gone")


# -- histograms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3, 600, 5_000_000])
def test_a_batch_of_lengths_lies_in_the_buckets_in_which_each_of_them_lies(most: int) -> None:
    dice = random.Random(seed_of_run())
    values = [dice.randint(-2, most) for _ in range(2000)] + [bound for bound in BUCKETS_MS if bound <= most]
    expected = [0] * (len(BUCKETS_MS) + 1)
    for value in values:
        expected[bisect_left(BUCKETS_MS, value)] += 1
    cells = new_cells()
    fill(cells, list(values))
    assert histogram_of(cells) == Histogram(tuple(expected), sum(max(0, value) for value in values))
    assert histogram_of(cells).count == len(values)


def test_parts_of_milliseconds_are_not_lost_although_whole_ones_are_kept() -> None:
    whole, total = new_cells(), 0
    for _ in range(2000):
        cells = new_cells()
        fill(cells, [0.3])
        total += histogram_of(cells).sum_ms
    assert 450 < total < 750, "600 are likely; these are seven deviations away"
    fill(whole, [5, 6])
    assert {histogram_of(whole).sum_ms for _ in range(100)} == {11}


def test_a_quantile_lies_inside_the_bucket_of_its_rank() -> None:
    even = histogram(*[8] * 50, *[40] * 50)  # (5, 10] and (25, 50]
    assert [even.quantile(q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)] == [5.0, 7.5, 10.0, 37.5, 50.0]
    assert histogram(0, 0).quantile(0.5) == 0.5
    assert Histogram().quantile(0.5) is None
    assert histogram(1, 10**9).quantile(0.99) == BUCKETS_MS[-1], "what is above the last bound counts as that"


def test_what_came_in_since_is_the_difference_unless_redis_lost_the_counts() -> None:
    before = histogram(5, 5, 70)
    now = before + histogram(6, 10**9)
    assert now == histogram(5, 5, 70, 6, 10**9)
    assert now.since(before) == histogram(6, 10**9)
    assert now.since(now) == Histogram()
    assert now.since(None) == now
    assert histogram(70).since(before) == histogram(70)


# -- in Redis --------------------------------------------------------------------------------------------------------

SEVERAL = Figures(
    {"q": histogram(1, 3, 3, 10**9), "a:b\u20ac": histogram(0)},
    {("q", "work"): histogram(7), ("q", "shop.tasks:sync"): histogram(2), ("other", "work"): histogram(10**10)},
    {"reserve": histogram(0, 1)},
    {("redis_error", "transient"): 3},
)


def test_figures_are_added_up_and_read_back_whole(broker: Broker) -> None:
    assert broker.figures() == Figures()
    assert not broker.figures()
    broker.note_figures(SEVERAL)
    assert broker.figures() == SEVERAL
    other(broker).note_figures(Figures({"q": histogram(2)}, counts={("redis_error", "overload"): 1}))
    assert broker.figures() == added(SEVERAL, Figures({"q": histogram(2)}, counts={("redis_error", "overload"): 1}))


def test_a_call_that_is_sent_again_adds_nothing(broker: Broker) -> None:
    many = Figures(counts={("redis_error", str(number)): 1 for number in range(2_500)})
    for _ in range(2):
        broker.note_figures(SEVERAL, request=b"0123456789abcdef")
        broker.note_figures(many, request=b"fedcba9876543210")
    assert broker.figures() == added(SEVERAL, many), "also of more than one call takes"
    broker.note_figures(SEVERAL)
    assert broker.figures() == added(added(SEVERAL, many), SEVERAL)


def test_counters_that_replace_are_set_and_not_added(broker: Broker) -> None:
    broker.note_figures(SEVERAL)
    store_violations(broker, 7, 5)
    store_violations(broker, 0, 9)
    stored = Figures(counts={("fsck", "violations"): 0, ("fsck", "at_ms"): 9})
    assert broker.figures() == added(SEVERAL, stored)


def test_the_requests_that_were_heard_are_few_and_are_forgotten(broker: Broker) -> None:
    _, heard = figures_keys(broker.prefix)
    now = int(broker.now_ms())
    broker.client.zadd(heard, {"old": now - 700_000, **{f"r{number}": now - number for number in range(11_000)}})
    broker.note_figures(SEVERAL)
    assert broker.client.zcard(heard) == 10_000
    assert broker.client.zscore(heard, "old") is None
    assert broker.client.zscore(heard, "r0") == now
    broker.client.delete(heard)
    broker.client.zadd(heard, {"old": now - 700_000, "young": now - 500_000})
    broker.note_figures(SEVERAL)
    assert {name for name in broker.client.zrange(heard, 0, -1) if len(name) < 10} == {b"young"}


def test_the_hash_does_not_grow_without_end(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    full = Figures(counts={("full", str(number)): 1 for number in range(MOST_FIELDS - 5)})
    broker.note_figures(full)
    remind_again()
    for number in range(10):
        broker.note_figures(Figures(counts={("redis_error", str(number)): 1, ("redis_error", "0"): 1}))
    store_violations(broker, 7)
    few = {("redis_error", "0"): 10, **{("redis_error", str(n)): 1 for n in range(1, 5)}}
    assert broker.figures() == added(full, Figures(counts=few))
    assert sum("left out" in record.getMessage() for record in caplog.records) == 1, "not with every call"


def test_the_figures_of_a_deleted_queue_go_with_it(broker: Broker) -> None:
    broker.queue("q")
    broker.note_figures(SEVERAL)
    assert broker.delete_queue("q")
    assert broker.figures() == without(SEVERAL, "q")
    assert broker.figures().run == {("other", "work"): histogram(10**10)}


def test_fields_that_are_not_known_here_are_left_out() -> None:
    stored = {name: b"%d" % count for name, count in to_fields(Figures({"q": histogram(1)}))}
    strange = {
        b"l7:q": b"2",
        b"lfoo:q": b"1",
        b"x9:q": b"1",
        b"c:bad": b"?",
        b"nothing": b"1",
        b"v:bad": b"1",
        b"l5:\xff": b"1",
        b"r5:q\0\xff": b"1",
        b"s5:\xff": b"1",
        b"c:\xff\0": b"1",
    }
    assert from_fields({**stored, **strange}) == Figures({"q": histogram(1)})


# -- in the process --------------------------------------------------------------------------------------------------


def test_every_attempt_that_began_is_counted_with_its_lateness_and_its_length() -> None:
    post = Post()
    tally = Tally(post)
    record = Settlement(job("early"), DUE + 2, 30, verb="record")
    tally.ended(
        "q",
        [
            ran(0, 10),
            ran(-5, 20),
            ran(300, 7, "slow"),
            record,
            fail(job(), DUE + 1, 4, delay_ms=0),
            bury(job(), DUE + 1, 5, reason="why"),
            bury(job(), 0, 0, reason="undecodable"),
            ack(job(), 0, 0, event=False),
            release(job()),
            Settlement(job(), DUE, 1, verb="expire"),
        ],
    )
    assert tally.flush()
    ((figures, _),) = post.sent
    assert figures == Figures(
        {"q": histogram(0, 0, 300, 2, 1, 1)},
        {("q", "work"): histogram(10, 20, 4, 5), ("q", "slow"): histogram(7), ("q", "early"): histogram(30)},
    )


def test_what_could_not_be_sent_is_sent_again_as_it_was_and_then_the_rest() -> None:
    """The first call may have been applied although its reply was lost."""
    post = Post()
    tally = Tally(post)
    tally.ended("q", [ran(1, 1)])
    post.down = True
    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            tally.flush()
        tally.ended("q", [ran(2, 2)])
    post.down = False
    assert tally.flush()
    assert not tally
    first, again, at_last, rest = post.sent
    assert first == again == at_last
    assert first[0].lateness == {"q": histogram(1)}
    assert rest[0].lateness == {"q": histogram(2, 2)}
    assert rest[1] != first[1]


def test_a_timer_sends_the_first_counter_and_what_comes_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post()
    tally = Tally(post)
    tally.ended("q", [release(job())])
    tally.waited("note", 0.1, False)
    assert not tally
    assert tally.flush()
    assert post.sent == [], "nothing happened"
    assert not is_scheduled(tally)
    for _ in range(3):
        tally.ended("q", [ran(1, 1)])
        tally.count("redis_error", "transient")
    assert is_scheduled(tally)
    assert post.sent == [], "not before the pace is over"
    flush_now(tally)
    assert [figures.counts for figures, _ in post.sent] == [{("redis_error", "transient"): 3}]
    assert not is_scheduled(tally), "nothing is sent while nothing is counted"
    tally.waited("reserve", 0.2, False)
    assert is_scheduled(tally)
    set_pace(monkeypatch, 0.05)
    flush_now(tally)
    tally.count("redis_error", "transient")
    wait_until(lambda: len(post.sent) == 3, 10, "the timer")
    assert not tally
    set_pace(monkeypatch, 60)
    tally.count("redis_error", "transient")
    tally.close()
    assert len(post.sent) == 4, "a closed one sends what it has"
    assert not is_scheduled(tally)


def test_a_flush_that_fails_while_the_tally_is_closed_is_not_tried_again() -> None:
    def send(figures: Figures, request: bytes) -> None:
        tally.close()
        raise QueueUnavailable("gone")

    tally = Tally(send, patience=0.01)
    tally.count("redis_error", "transient")
    flush_now(tally)
    assert not is_scheduled(tally)


def test_a_flush_ends_although_something_always_comes_in() -> None:
    """Otherwise a busy process would send without a pause, and would end only in a quiet moment."""
    sent: list[Figures] = []

    def send(figures: Figures, request: bytes) -> None:
        assert len(sent) < 5, "it does not end"
        sent.append(figures)
        if len(sent) < 3:  # the timer sends the last one, after the test
            tally.count("redis_error", "transient")

    tally = Tally(send)
    tally.count("redis_error", "overload")
    assert tally.flush()
    assert [dict(one.counts) for one in sent] == [{("redis_error", "overload"): 1}]
    assert tally, "what came in meanwhile is for the next one"
    assert tally.flush()
    assert dict(sent[1].counts) == {("redis_error", "transient"): 1}


def test_threads_lose_nothing(broker: Broker) -> None:
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            broker.tally.flush()

    def work() -> None:
        for _ in range(500):
            broker.tally.ended("q", [ran(1, 1), ran(700, 3)])

    flushing, working = threading.Thread(target=flush), [threading.Thread(target=work) for _ in range(4)]
    flushing.start()
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    stop.set()
    flushing.join()
    broker.tally.flush()
    assert broker.figures().lateness == {"q": histogram(*[1] * 2000, *[700] * 2000)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_tells_nothing_of_what_its_parent_counted() -> None:
    tally = Tally(Post())
    tally.ended("q", [ran(1, 1)])
    lock_of(tally).acquire()  # another thread of the parent is at it, which the child does not have
    child = os.fork()
    if child == 0:
        try:
            before = bool(tally)
            tally.count("redis_error", "transient")
            os._exit(0 if not before and tally else 1)
        finally:
            os._exit(2)
    lock_of(tally).release()
    assert os.waitpid(child, 0)[1] == 0
    assert tally


def test_calls_of_scripts_are_figures_where_somebody_asks_for_it(broker: Broker) -> None:
    broker.observe(broker.tally.waited)
    broker.queue("q").schedule(NewJob("a", "work"))
    broker.tally.flush()
    assert {name: found.count for name, found in broker.figures().script.items()}["schedule"] == 1
    assert not broker.tally, "the call that carries figures is none"


# -- depth of queues over time: a sample a minute for a day ------------------------------------------------------------


MINUTE = 60_000
NOON = 1_700_000_000_000 // MINUTE * MINUTE


def sample(broker: Broker, minute: float, **values: float | None) -> None:
    figures.record_depths(broker, {"orders": DepthPoint(**values)}, NOON + minute * MINUTE + 1_234)  # type: ignore[arg-type]


def series(broker: Broker, minute: int, minutes: int = 60) -> list[DepthPoint]:
    return figures.read_depths(broker, ["orders"], NOON + minute * MINUTE + 30_000, minutes)["orders"]


def test_points_have_the_counts_of_their_minute_and_rates_since_the_one_before(broker: Broker) -> None:
    sample(broker, 0, ready=1)
    sample(broker, 0.5, ready=5, scheduled=100, done=10)  # of the same minute
    sample(
        broker, 1, ready=3, reserved=1, failed=1, morgue=2, lag_seconds=1.5, scheduled=160, done=40, failing=6, p99_ms=8
    )
    first, second = series(broker, 1)
    assert first == DepthPoint(NOON, 0, 5, 0, 0, 0, 0.0, None, None, None, None, None)
    assert second == DepthPoint(NOON + MINUTE, 0, 3, 1, 1, 2, 1.5, 1.0, 0.5, 0.1, None, 8.0)
    assert series(broker, 1, 1) == [second], "the first of those that are wanted has its rate, too"
    broker.queue("orders")
    assert broker.delete_queue("orders")
    assert series(broker, 1) == []


def test_a_minute_without_a_sample_has_no_point_and_the_next_rate_covers_it(broker: Broker) -> None:
    sample(broker, 0, done=0)
    sample(broker, 3, done=180)
    assert [(point.at_ms, point.done) for point in series(broker, 3)] == [(NOON, None), (NOON + 3 * MINUTE, 1.0)]


def test_a_series_has_a_day_and_never_grows_beyond_it(broker: Broker) -> None:
    for minute in range(0, 3 * MINUTES, 7):
        sample(broker, minute, ready=minute)
    last = range(0, 3 * MINUTES, 7)[-1]
    assert [point.ready for point in series(broker, last, MINUTES)] == [
        minute for minute in range(0, 3 * MINUTES, 7) if minute > last - MINUTES
    ][-MINUTES // 7 :]
    assert broker.client.xlen(depth_key(broker.prefix, "orders")) <= MINUTES / 7 + 1
    assert all(len(fields[b"sample"]) < 64 for _, fields in broker.client.xrange(depth_key(broker.prefix, "orders")))
    assert 0 < broker.client.ttl(depth_key(broker.prefix, "orders")) <= 86_400


def test_a_counter_that_was_lost_has_no_rate_below_zero(broker: Broker) -> None:
    sample(broker, 0, done=2**32 - 30, failing=500)
    sample(broker, 1, done=2**32 + 30, failing=0)
    assert [(point.done, point.failing) for point in series(broker, 1)][1] == (1.0, 0.0)


def test_a_series_that_ends_in_the_future_is_kept_until_it_expires(broker: Broker) -> None:
    """The clock was wrong, and has been sample back."""
    sample(broker, 60, ready=1)
    ends = broker.client.pttl(depth_key(broker.prefix, "orders"))
    sample(broker, 0, ready=2)
    assert [point.ready for point in series(broker, 60)] == [1]
    assert broker.client.pttl(depth_key(broker.prefix, "orders")) <= ends


def test_several_queues_are_read_together_and_unknown_ones_are_empty(broker: Broker) -> None:
    figures.record_depths(broker, {"": DepthPoint(ready=3), "orders": DepthPoint(ready=1)}, NOON)
    found = figures.read_depths(broker, ["", "orders", "none"], NOON)
    assert {name: [point.ready for point in points] for name, points in found.items()} == {
        "": [3],
        "orders": [1],
        "none": [],
    }
    assert figures.read_depths(broker, [], NOON) == {}


def test_one_worker_takes_the_samples_of_a_minute(broker: Broker) -> None:
    assert figures.claim_depths(broker, "w1")
    assert not figures.claim_depths(broker, "w2")
