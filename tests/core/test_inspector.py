"""Counts, pages with a cursor, ranges, and views; reading changes nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, JobView, NewJob
from tests.support.core_values import Lease, Undecodable

from .stage import LEASE, T0, Stage


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
    assert reverse or found[:5] == [view.id for view in crowd.broker.inspector.peek("q", 5)]


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


def test_a_view_tells_all_that_is_known_of_a_job(stage: Stage) -> None:
    stage.put("a", at=5, args=b"[1]", priority=1)
    delayed = stage.view("a")
    assert (delayed.state, delayed.due_ms, delayed.job.args, delayed.job.priority) == ("delayed", T0 + 5, b"[1]", 1)
    stage.wait(5)
    assert stage.view("a").state == "ready"
    stage.take(worker="me")
    stage.put("a", at=70)
    reserved = stage.view("a")
    assert (reserved.state, reserved.due_ms, reserved.gated_due_ms) == ("reserved", T0 + 5, T0 + 70)
    assert (reserved.deadline_ms, reserved.job.worker, reserved.job.reserves) == (T0 + 5 + LEASE, "me", 1)
    assert stage.broker.inspector.get("q", "nobody") is None


def cursor_of(score: str) -> str:
    return base64.urlsafe_b64encode(f"0:{score}:a".encode()).decode().rstrip("=")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("place", "by", "options"),
    [
        ("nowhere", "", {}),
        ("waiting", "failures", {}),
        ("waiting", "id", {}),
        *(("waiting", "", {"cursor": cursor}) for cursor in ("!!", "YWJj")),
        *(("waiting", "", {"cursor": cursor_of(score)}) for score in ("1_0", " 10 ", "+10", "0x1")),
        *(("waiting", "due", {end: bound}) for end in ("low", "high") for bound in ("x", True, float("nan"))),
        *(("morgue", "id", {end: bound}) for end in ("low", "high") for bound in (5, "\ud800")),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    stage: Stage, place: str, by: str, options: dict[str, Any], reverse: bool
) -> None:
    with pytest.raises(InvalidJob):
        stage.broker.inspector.page("q", place, by, reverse=reverse, **options)


@pytest.mark.parametrize("horizon", [[0], [5, 5], [2, 1], [1.5]])
def test_a_horizon_that_does_not_increase_is_refused(stage: Stage, horizon: list[int]) -> None:
    with pytest.raises(InvalidJob, match="a horizon is a list of increasing whole milliseconds"):
        stage.broker.inspector.all_counts(horizon=horizon)


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


# -- pages of a range: of due times, leases, failures, burials and ids_of_views ----------------------------------------


def walked(stage: Stage, place: str, by: str = "", *, limit: int = 2, **options: Any) -> list[str]:
    """Return the ids of a range, read by pages, after a walk in the other direction that has to find the same."""

    def walk(reverse: bool) -> list[str]:
        found, cursor = [], ""
        while True:
            page = stage.broker.inspector.page("q", place, by, cursor=cursor, limit=limit, reverse=reverse, **options)
            found += [view.id for view in page.jobs]
            if not (cursor := page.cursor):
                return found
            assert len(page.jobs) == limit

    forth = walk(False)
    assert sorted(walk(True)) == sorted(forth)
    return forth


@pytest.fixture
def row(clocked: Broker) -> Stage:
    """Eight jobs over three shards, due 10 ms one after another, two at each moment."""
    stage = Stage(clocked, shards=3)
    for n in range(8):
        stage.put(f"j{n}", at=10 + n // 2 * 10, priority=n % 3)
    return stage


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 250])
@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (None, None, "01234567"),
        (10, 40, "01234567"),
        (11, 40, "234567"),
        (10.5, 39.5, "2345"),
        (20, 20, "23"),
        (None, 19, "01"),
        (31, None, "67"),
        (50, None, ""),
        (30, 20, ""),
    ],
)
def test_a_page_has_what_falls_due_in_a_range(
    row: Stage, low: float | None, high: float | None, wanted: str, limit: int
) -> None:
    def moment(ms: float | None) -> float | None:
        return None if ms is None else T0 + ms

    found = walked(row, "waiting", limit=limit, low=moment(low), high=moment(high))
    assert sorted(found) == [f"j{n}" for n in wanted]
    assert [int(ident[1]) // 2 for ident in found] == sorted(int(ident[1]) // 2 for ident in found)


def test_a_range_of_the_morgue_by_time_and_by_id(stage: Stage) -> None:
    for ident in ("b", "a", "ab", "ä", "a"):
        stage.in_morgue(ident)
        stage.wait(10)
    assert walked(stage, "morgue", low=T0 + 10, high=T0 + 30) == ["a", "ab", "ä"]
    assert walked(stage, "morgue", "id", low="a", high="a") == ["a", "a"]
    assert walked(stage, "morgue", "id", low="ab") == ["ab", "b", "ä"]
    assert walked(stage, "morgue", "id", high="aa") == ["a", "a"]
    assert walked(stage, "morgue", "id", low="", high="ÿ") == ["a", "a", "ab", "b", "ä"]


def test_a_range_of_leases_and_of_failures(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    (first,) = stage.batch(1).jobs
    stage.wait(10)
    stage.batch(2)
    assert walked(stage, "reserved", low=T0 + LEASE + 1) == ["b", "c"]
    assert walked(stage, "reserved", high=T0 + LEASE) == [first.id]
    stage.failed(first)
    stage.wait(1)
    (again,) = stage.take()
    stage.failed(again, 1000)
    assert walked(stage, "failed", "failures", low=2, high=2) == [first.id]
    assert walked(stage, "failed", "failures", low=3) == []
    assert walked(stage, "failed", "updated", low=T0 + 11) == [first.id]
    assert walked(stage, "failed", "updated", high=T0 + 10) == []


def test_a_cursor_goes_on_inside_its_range_whatever_came_and_went(row: Stage) -> None:
    inspector = row.broker.inspector
    bounds = {"low": T0 + 20, "high": T0 + 40}
    first = inspector.page("q", "waiting", limit=3, **bounds)
    for view in first.jobs:
        row.queue.cancel(view.id)
    row.put("sooner", at=20, due_policy="replace")
    row.put("outside", at=41)
    rest = inspector.page("q", "waiting", limit=250, cursor=first.cursor, **bounds)
    assert sorted(view.id for view in first.jobs + rest.jobs) == [f"j{n}" for n in range(2, 8)]
    assert rest.cursor == ""


# -- views without large arguments: they stay in Redis, and everything else is told ------------------------------------


LARGE = b'["' + b"x" * 5000 + b'"]'
OPTIONS = b'{"context":{"trace":"needle"}}'


def told(view: JobView) -> tuple[Any, ...]:
    gated = view.gated and (view.gated.args, view.gated_left_out)
    return view.id, view.cut, view.size, view.job.args, view.job.task, dict(view.job.context), view.payload_count, gated


def test_large_arguments_stay_where_they_are(stage: Stage) -> None:
    stage.put("small", args=b"[1]", options=OPTIONS)
    stage.put("large", args=LARGE, options=OPTIONS, at=10)
    (held,) = stage.batch(1).jobs
    stage.put("small", args=LARGE, at=50)
    stage.add("merged", b"1" * 3000, "1", at=20)
    inspector, context = stage.broker.inspector, {"trace": "needle"}
    large = ("large", True, 5004, b"", "work", context, 0, None)
    assert [told(view) for view in inspector.page("q", "waiting", most_bytes=5003).jobs] == [
        large,
        ("merged", False, 0, b"", "sync", {}, 1, None),
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=2).jobs] == [
        ("small", True, 3, b"", "work", context, 0, (b"", 5004))
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=3).jobs] == [
        ("small", False, 3, b"[1]", "work", context, 0, (b"", 5004))
    ]
    whole = inspector.page("q", "waiting", most_bytes=5004).jobs[0]
    assert told(whole) == ("large", False, 5004, LARGE, "work", context, 0, None)
    assert whole.arguments == (["x" * 5000], {})
    cut = inspector.get("q", "large", most_bytes=10)
    assert cut is not None and told(cut) == large
    with pytest.raises(Undecodable, match="5004 bytes of arguments were left out"):
        _ = cut.arguments
    assert stage.done(held) == [True]
