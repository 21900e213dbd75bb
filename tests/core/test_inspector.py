"""Counts, pages with a cursor, and views; reading changes nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from django_delayq.core import Broker, InvalidJob, JobView, NewJob
from tests.support.core_values import Lease

from .stage import LEASE, T0, Stage
from .world import unchanged


def pages(stage: Stage, place: str, by: str = "", limit: int = 100, **options: bool) -> Iterator[list[JobView]]:
    cursor = ""
    while True:
        page = stage.broker.inspector.page("q", place, by, cursor=cursor, limit=limit, **options)
        assert len(page.jobs) <= limit
        yield page.jobs
        cursor = page.cursor
        if not cursor:
            return


def ids(stage: Stage, place: str, by: str = "", limit: int = 100, **options: bool) -> list[str]:
    return [view.id for page in pages(stage, place, by, limit, **options) for view in page]


@pytest.fixture
def crowd(clocked: Broker) -> Stage:
    """Create 90 jobs over 3 shards and 3 classes, ten at each of 9 due times."""
    stage = Stage(clocked, shards=3)
    stage.queue.schedule_many(
        NewJob(f"j{n:02}", "work", due_ms=T0 + n // 10, priority=(0, 4, 7)[n % 3]) for n in range(90)
    )
    return stage


@pytest.mark.parametrize("limit", [1, 7, 10, 45, 90, 250])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_show_every_job_once_in_order_over_shards_classes_and_ties(
    crowd: Stage, limit: int, reverse: bool
) -> None:
    found = ids(crowd, "waiting", "due", limit, reverse=reverse)
    assert sorted(found) == [f"j{n:02}" for n in range(90)]
    dues = [int(ident[1:]) // 10 for ident in found]
    assert dues == sorted(dues, reverse=reverse)
    assert found == ids(crowd, "waiting", "due", 250, reverse=reverse)
    assert found == ids(crowd, "waiting", "due", limit, reverse=not reverse)[::-1]


def test_a_page_goes_on_although_the_entry_of_its_cursor_is_gone(crowd: Stage) -> None:
    everything = ids(crowd, "waiting", limit=250)
    first = crowd.broker.inspector.page("q", "waiting", limit=30)
    for ident in everything[25:35]:
        crowd.queue.cancel(ident)
    crowd.put("new before", at=0, due_policy="replace")
    rest = crowd.broker.inspector.page("q", "waiting", limit=250, cursor=first.cursor)
    assert [view.id for view in rest.jobs] == everything[35:]


def test_looking_at_everything_changes_nothing(crowd: Stage) -> None:
    crowd.wait(20)
    jobs = [job for number in range(3) for job in crowd.take(8, number=number)]
    crowd.failed(jobs[0], 100)
    crowd.buried(jobs[1])
    inspector = crowd.broker.inspector
    with unchanged(crowd.broker):
        for place, orders in (
            ("waiting", ["due"]),
            ("reserved", ["deadline"]),
            ("failed", ["updated", "failures"]),
            ("morgue", ["updated", "id"]),
        ):
            for by in orders:
                list(pages(crowd, place, by, 10))
        inspector.counts("q")
        inspector.all_counts()
        inspector.peek("q")
        for job in jobs:
            inspector.get("q", job.id)
            inspector.graves("q", job.id)


def test_jobs_are_counted_where_they_lie(stage: Stage) -> None:
    for ident in "abcdef":
        stage.put(ident)
    a, b, c = stage.take(3)
    stage.failed(a, 1000)
    stage.buried(b)
    stage.put(c.id)
    stage.wait(500)
    counts = stage.broker.inspector.counts("q")
    assert (counts.ready, counts.delayed, counts.reserved, counts.gated, counts.failed, counts.morgue) == (
        3,
        1,
        1,
        1,
        1,
        1,
    )
    assert counts.lag_seconds == 0.5
    assert counts.counters == {"created": 6, "changed": 1, "reserved": 3, "failed": 1, "buried": 1}


def test_the_backlog_is_divided_by_when_it_falls_due(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    for n, at in enumerate((-5, 0, 1, 999, 1000, 1001, 59_999, 60_000, 60_001, 10**9)):
        stage.put(f"j{n}", at=at, priority=n % 3)
    inspector = stage.broker.inspector
    (counts,) = inspector.all_counts(horizon=[1000, 60_000])
    assert counts.backlog == (2, 3, 3, 2)
    assert sum(counts.backlog) == counts.ready + counts.delayed
    assert inspector.counts("q").backlog == (2, 8)
    assert inspector.counts("nowhere").backlog == (0, 0)
    (by_shard,) = inspector.all_counts(horizon=[1000, 60_000], by_shard=True)
    assert [number for number, _ in by_shard.shards] == list(stage.queue.numbers)
    assert [sum(bins) for bins in zip(*(one.backlog for _, one in by_shard.shards), strict=True)] == [2, 3, 3, 2]


@pytest.mark.parametrize("horizon", [[0], [5, 5], [2, 1], [1.5]])
def test_a_horizon_that_does_not_increase_is_refused(stage: Stage, horizon: list[int]) -> None:
    with pytest.raises(InvalidJob, match="a horizon is a list of increasing whole milliseconds"):
        stage.broker.inspector.all_counts(horizon=horizon)


def test_all_queues_are_counted_in_one_go(broker: Broker) -> None:
    for number in range(5):
        broker.queue(f"q{number}", shards=3).schedule_many(NewJob(f"j{n}", "work") for n in range(number))
    assert {counts.queue: counts.ready for counts in broker.inspector.all_counts()} == {f"q{n}": n for n in range(5)}
    assert broker.queue_names() == [f"q{n}" for n in range(5)]
    broker.client.script_flush()
    assert sum(counts.ready for counts in broker.inspector.all_counts()) == 10


def test_many_shards_are_counted_together_whichever_queues_there_are(broker: Broker) -> None:
    for place, name in enumerate("abcd", 1):
        broker.queue(name, shards=10).schedule_many(
            NewJob(f"{name}{n}", "t", delay_ms=60_000) for n in range(10 * place)
        )

    def counted(*names: str) -> list[int]:
        return [one.delayed for one in broker.inspector.all_counts(queues=[broker.queue(name) for name in names])]

    assert counted("a", "b", "c", "d") == [10, 20, 30, 40], "40 shards are counted by two calls"
    # The first and the last shard of these calls are the same.
    assert (counted("a", "b", "d"), counted("a", "c", "d")) == ([10, 20, 40], [10, 30, 40])
    assert [one.delayed for one in broker.inspector.count_each_shard(broker.queue("a"), broker.queue("a").numbers)] == [
        broker.inspector.count_shards(broker.queue("a"), [number]).delayed for number in broker.queue("a").numbers
    ]


def test_failed_jobs_are_paged_by_failures_and_by_time(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    a, b, c = stage.take()
    stage.failed(b)
    stage.wait(1)
    (b,) = stage.take()
    stage.failed(b, 1)
    stage.failed(c, 5)
    stage.wait(1)
    stage.failed(a, 5)
    assert ids(stage, "failed", "updated") == ["b", "c", "a"]
    assert ids(stage, "failed", "failures", reverse=True) == ["b", "c", "a"]
    assert ids(stage, "failed", "failures") == ["a", "c", "b"]


def test_the_morgue_is_paged_by_time_and_by_id(stage: Stage) -> None:
    for ident in ("c", "a", "b", "a"):
        stage.in_morgue(ident)
        stage.wait(1)
    for limit in (1, 3, 100):
        assert ids(stage, "morgue", "updated", limit) == ["c", "a", "b", "a"]
        assert ids(stage, "morgue", "id", limit) == ["a", "a", "b", "c"]


def test_a_view_tells_all_that_is_known_of_a_job(stage: Stage) -> None:
    stage.put("a", at=5, args=b"[1]", priority=1)
    delayed = stage.broker.inspector.get("q", "a")
    assert delayed is not None
    assert (delayed.state, delayed.due_ms, delayed.job.args, delayed.job.priority) == ("delayed", T0 + 5, b"[1]", 1)
    stage.wait(5)
    ready = stage.broker.inspector.get("q", "a")
    assert ready is not None
    assert ready.state == "ready"
    stage.take(worker="me")
    stage.put("a", at=70)
    reserved = stage.broker.inspector.get("q", "a")
    assert reserved is not None
    assert (reserved.state, reserved.due_ms, reserved.gated_due_ms) == ("reserved", T0 + 5, T0 + 70)
    assert (reserved.deadline_ms, reserved.job.worker, reserved.job.reserves) == (T0 + 5 + LEASE, "me", 1)
    assert stage.broker.inspector.get("q", "nobody") is None


def test_peek_shows_what_comes_next(crowd: Stage) -> None:
    assert [view.id for view in crowd.broker.inspector.peek("q", 5)] == ids(crowd, "waiting")[:5]


@pytest.mark.parametrize(
    ("place", "by", "cursor"),
    [
        ("nowhere", "", ""),
        ("waiting", "failures", ""),
        ("waiting", "", "!!"),
        ("waiting", "", "YWJj"),
    ],
)
def test_an_unknown_place_order_or_cursor_is_refused(stage: Stage, place: str, by: str, cursor: str) -> None:
    with pytest.raises(InvalidJob):
        stage.broker.inspector.page("q", place, by, cursor=cursor)


@pytest.mark.parametrize("score", ["1_0", " 10 ", "+10", "0x1", "10", "1e1", "-1.5"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_cursor_that_somebody_wrote_himself_is_read_or_refused(stage: Stage, score: str, reverse: bool) -> None:
    stage.put("a", at=0)
    cursor = base64.urlsafe_b64encode(f"0:{score}:a".encode()).decode().rstrip("=")
    if score in ("10", "1e1", "-1.5"):
        page = stage.broker.inspector.page("q", "waiting", cursor=cursor, reverse=reverse)
        assert [view.id for view in page.jobs] == ([] if reverse else ["a"])
    else:
        with pytest.raises(InvalidJob, match="not a cursor"):
            stage.broker.inspector.page("q", "waiting", cursor=cursor, reverse=reverse)


def test_redis_decides_how_many_shards_a_queue_has(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("q", shards=3)
    other = Broker(broker.connection, prefix=broker.prefix)
    with caplog.at_level("WARNING", "django_delayq"):
        assert other.queue("q", shards=5).shards == 3
    assert "3 shards in Redis, but 5 are configured" in caplog.text
    assert Broker(broker.connection, prefix=broker.prefix).queues()[0].shards == 3


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize(
    "body",
    [
        b"\x14" + b"x" * 5000,  # of a version that nobody knows
        b"\x34\1\0" + b"k" * 16 + b"\xff\xff" + b"x" * 5000,  # cut off inside its options
        b"\x24\xee\xee" + b"k" * 16 + b"x" * 5000,  # its task has no name
    ],
)
def test_of_a_large_body_that_nobody_can_read_the_size_is_told(stage: Stage, body: bytes) -> None:
    stage.put("a")
    stage.broker.client.hset(stage.key("body"), "a", body)
    (whole,) = stage.broker.inspector.page("q", "waiting").jobs
    assert (whole.cut, whole.job.args, whole.size) == (False, body, len(body))
    (cut,) = stage.broker.inspector.page("q", "waiting", most_bytes=100).jobs
    assert (cut.cut, cut.job.args, cut.id) == (True, b"", "a")
    assert len(body) - 21 <= cut.size <= len(body)


def test_more_large_jobs_than_redis_reads_in_one_go_are_all_on_the_page(stage: Stage) -> None:
    wanted = [f"j{n:02}" for n in range(25)]
    for n, ident in enumerate(wanted):
        stage.put(ident, at=n, args=b"x" * 400_000)
    page = stage.broker.inspector.page("q", "waiting", most_bytes=1000)
    assert [(view.id, view.cut, view.size) for view in page.jobs] == [(ident, True, 400_000) for ident in wanted]
    stage.wait(100)
    for job in stage.take():
        stage.buried(job)
    page = stage.broker.inspector.page("q", "morgue", "id", most_bytes=1000)
    assert [(view.id, view.cut, view.size) for view in page.jobs] == [(ident, True, 400_000) for ident in wanted]


@pytest.mark.server
def test_of_many_large_records_of_an_id_only_those_are_read_that_are_asked_for(stage: Stage) -> None:
    keys = []
    for _ in range(12):
        keys.append(stage.in_morgue("a", args=b"x" * 400_000))
        stage.wait(1)
    inspector, newest_first = stage.broker.inspector, keys[::-1]
    sent = sent_bytes(stage.broker)
    view = inspector.get("q", "a")
    assert view is not None
    assert (view.job.key, len(view.job.args)) == (keys[-1], 400_000)
    assert sent_bytes(stage.broker) - sent < 1_000_000

    found, cursor = [], ""
    for wanted in (3, 3, 2, 3, 1):
        sent = sent_bytes(stage.broker)
        page = inspector.graves_page("q", "a", cursor=cursor, limit=2 if wanted == 2 else 250, page_bytes=1_000_000)
        assert (len(page.jobs), bool(page.cursor)) == (wanted, wanted != 1)
        assert sent_bytes(stage.broker) - sent < 3_000_000
        found += [one.job.key for one in page.jobs]
        cursor = page.cursor
    assert found == [one.job.key for one in inspector.graves("q", "a")] == newest_first


def sent_bytes(broker: Broker) -> int:
    return sum(int(info["total_net_output_bytes"]) for info in broker.inspector.servers())


def test_it_is_told_for_how_long_nothing_is_reaped(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    stage.put("a")
    assert clocked.inspector.counts("q").hold_ms == 0
    stage.wait(-3_600_000)  # the clock was put back by an hour
    stage.put("a")
    assert clocked.inspector.counts("q").hold_ms == LEASE
    stage.wait(LEASE - 1000)
    assert clocked.inspector.counts("q").hold_ms == 1000
    stage.wait(1000)
    assert clocked.inspector.counts("q").hold_ms == 0


def test_no_queue_has_no_name(broker: Broker) -> None:
    broker.queue("orders")  # from now on the registry counts its changes, under ""
    assert broker.known_queue("") is None
    assert broker.inspector.counts("").ready == 0


def test_leases_of_many_jobs_are_read_in_one_call(stage: Stage) -> None:
    other = Stage(stage.broker, name="other", shards=4)
    for ident in ("held", "again", "waits"):
        stage.put(ident)
    other.put("held", at=1_000)
    (held,) = stage.queue.reserve_id("held", worker="w-1", ttr_ms=15_000).jobs
    stage.queue.reserve_id("again", worker="w-2", ttr_ms=30_000)
    wanted = [
        (stage.queue, "held"),
        (other.queue, "held"),
        (stage.queue, "nobody"),
        (stage.queue, "again"),
        (stage.queue, ""),
        (stage.queue, "x" * 256),
        (stage.queue, "waits"),
        (stage.queue, "held"),
    ]
    inspector, name = stage.broker.inspector, stage.queue.name
    assert inspector.leases(wanted) == {
        (name, "held"): Lease("w-1", T0 + 15_000),
        (name, "again"): Lease("w-2", T0 + 30_000),
    }
    stage.done(held)
    assert inspector.leases(wanted[:1]) == {}
    assert inspector.leases([]) == {}


@pytest.mark.parametrize(("size", "cut"), [(100, 0), (101, 101)])
def test_arguments_are_left_out_when_they_alone_are_too_large(stage: Stage, size: int, cut: int) -> None:
    stage.put("a", at=1000, args=b"x" * size, options=b'{"max_attempts":3}')
    (view,) = stage.broker.inspector.page("q", "waiting", most_bytes=100).jobs
    assert (len(view.job.args), view.cut) == (size - cut, cut > 0)
