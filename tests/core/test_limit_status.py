"""Limits as people see them: which one, how many due jobs wait behind it, since when, and the next start."""

from __future__ import annotations

import json
import time
from typing import Any
from unittest import mock

import pytest

from django_delayq.core import Broker, NewJob, Registry, Task, TaskOptions
from django_delayq.core.options import Limits
from tests.support.core_figures import Limiter, LimitsPage, LimitStatus, ask_permits, read_limits
from tests.support.core_stored import LaneNotes, assert_invariants

from .stage import T0, Stage


def page_of(stage: Stage, of_queue: Limits | None = None, *tasks: Task, **options: Any) -> LimitsPage:
    registry = Registry()
    for task in tasks:
        registry.add(task)
    (page,) = read_limits([stage.queue], of_queue, registry, **options)
    return page


def limited(name: str = "limited", **options: Any) -> Task:
    return Task(print, name=name, options=TaskOptions(queue="q", **options))


def behind(page: LimitsPage) -> list[tuple[str, str, int, float | None]]:
    """Return limits with waiting jobs: kind, name, number, and ms after T0 since when."""
    return [(one.kind, one.subject, one.jobs, one.since_ms and one.since_ms - T0) for one in page.waiting]


def move_into_lanes(stage: Stage, *tasks: str, whole: bool = False) -> None:
    for number in stage.queue.numbers:
        stage.batch(100, number=number, lanes=LaneNotes(tasks=tasks, whole=whole, most=0).pack())


def grouped(numbers: tuple[int, float, int]) -> bytes:
    return json.dumps({"group_limits": numbers}).encode()


def test_a_queue_without_limits_shows_none(stage: Stage) -> None:
    stage.put("a")
    assert page_of(stage) == LimitsPage("q")


def test_what_exceeds_the_concurrency_of_a_task_waits_behind_it(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    for number in range(9):
        stage.put(f"job-{number}", at=number, task="limited")
    stage.put("later", at=70_000, task="limited")
    stage.wait(100)
    move_into_lanes(stage, "limited")
    ask_permits(clocked, {"task:limited": 5}, 3)
    page = page_of(stage, None, limited(concurrency=5))
    assert (page.due, page.since_ms, page.more, page.unreachable) == (9, T0, "", False)
    (one,) = page.limits
    assert (one.kind, one.subject, one.numbers.total, one.leases, one.jobs) == ("task", "limited", 5, 3, 7)
    assert one.next_ms is not None  # two more may start now
    ask_permits(clocked, {"task:limited": 5}, 2)
    (one,) = page_of(stage, None, limited(concurrency=5)).waiting
    assert (one.leases, one.jobs, one.since_ms, one.next_ms) == (5, 9, T0, None)


def test_the_next_start_of_a_rate_is_a_moment(stage: Stage) -> None:
    stage.put("a", task="limited")
    move_into_lanes(stage, "limited")
    ask_permits(stage.broker, {"task:limited": Limits(None, None, 60e6, 1)}, 1)
    began = time.time() * 1000
    (one,) = page_of(stage, None, limited(rate="1/m")).waiting
    assert (one.numbers, one.leases, one.jobs) == (Limits(interval_us=60e6, burst=1), 0, 1)
    assert one.next_ms is not None
    assert one.next_ms - began == pytest.approx(60_000, abs=3000)


def test_a_paused_group_waits_until_its_pause_ends(stage: Stage) -> None:
    stage.put("a", group="acme")
    stage.put("b", group="other")
    Limiter(stage.broker.registry).call(pause=[("group:q:acme", 30_000)])
    page = page_of(stage)
    assert (page.due, behind(page)) == (2, [("group", "acme", 1, 0)])
    (next_ms,) = (one.next_ms for one in page.limits)
    assert next_ms is not None
    assert next_ms - time.time() * 1000 == pytest.approx(30_000, abs=3000)


def test_of_several_limits_jobs_wait_behind_the_tightest(clocked: Broker) -> None:
    stage = Stage(clocked, shards=2)
    for number in range(20):
        stage.put(f"big-{number}", at=10, group="big", task="limited", options=grouped((2, 0, 0)))
        stage.put(f"few-{number}", at=20, group="few", task="limited", options=grouped((50, 0, 0)))
    stage.wait(100)
    page = page_of(stage, Limits(30), limited(concurrency=12))
    assert behind(page) == [("group", "big", 18, 10), ("task", "limited", 10, 20)]
    assert {(one.kind, one.subject): one.numbers.total for one in page.limits} == {
        ("queue", "q"): 30,
        ("task", "limited"): 12,
        ("group", "big"): 2,
        ("group", "few"): 50,
    }


def test_numbers_that_were_set_at_run_time_are_in_force(stage: Stage) -> None:
    stage.put("a", group="acme", options=grouped((2, 0, 0)))
    Limiter(stage.broker.registry).set("group:q:acme", Limits(7))
    Limiter(stage.broker.registry).set("queue:q", Limits(1))
    found = {one.kind: (one.numbers.total, one.at_run_time) for one in page_of(stage, Limits(9)).limits}
    assert found == {"group": (7, True), "queue": (1, True)}


def test_counts_have_the_moment_since_when_jobs_are_parked(stage: Stage) -> None:
    stage.put("later", at=70_000, group="acme")
    assert stage.broker.inspector.counts("q").parked_since_ms is None
    stage.put("a", at=2000, group="acme")
    stage.wait(5000)
    counts = stage.broker.inspector.counts("q")
    assert (counts.parked, counts.parked_since_ms, counts.parked_seconds) == (1, T0 + 2000, 3.0)


def test_large_arguments_make_a_page_shorter_and_hide_no_group(stage: Stage) -> None:
    for number in range(6):
        stage.put(f"job-{number}", group=f"tenant-{number}", options=grouped((1, 0, 0)), args=bytes(400_000))
    first = page_of(stage)
    second = page_of(stage, after=first.more)
    assert (first.more, second.more) == ("tenant-2", "")
    assert [one.subject for page in (first, second) for one in page.limits] == [f"tenant-{n}" for n in range(6)]


def test_pages_have_every_group_once_whatever_the_shards(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    for number in range(90):
        stage.put(f"job-{number}", group=f"tenant-{number % 30:02}", options=grouped((1, 0, 0)))
    stage.put("alone", task="limited")
    move_into_lanes(stage, "limited")
    ask_permits(clocked, {f"group:q:tenant-{number:02}": 1 for number in range(30)}, 1)
    found: list[LimitStatus] = []
    after, pages = "", 0
    while not pages or after:
        page = page_of(stage, after=after, lanes=4)
        assert page.due == 91
        found += page.waiting
        after, pages = page.more, pages + 1
    assert sorted((one.subject, one.jobs) for one in found) == [(f"tenant-{number:02}", 3) for number in range(30)]
    assert pages > 3


def test_on_a_cluster_the_limits_of_all_nodes_are_read(cluster_broker: Broker) -> None:
    queue = cluster_broker.queue("q", shards=12)
    queue.schedule_many(
        [NewJob(f"job-{n}", "work", group=f"tenant-{n % 4}", options=grouped((2, 0, 0))) for n in range(40)]
    )
    (page,) = read_limits([queue], None, Registry())
    assert sorted((one.subject, one.jobs) for one in page.waiting) == [(f"tenant-{n}", 8) for n in range(4)]


def test_the_number_of_round_trips_does_not_depend_on_queues_and_groups(broker: Broker) -> None:
    queues = [broker.queue(name, shards=4) for name in ("a", "b", "c")]
    for queue in queues:
        for number in range(40):
            queue.schedule(NewJob(f"job-{number}", "work", group=f"tenant-{number}"))
    with mock.patch.object(broker.scripts, "send_many", wraps=broker.scripts.send_many) as sent:
        pages = read_limits(queues, Limits(5), Registry())
    assert [page.due for page in pages] == [40, 40, 40]
    assert sum(one.jobs for page in pages for one in page.limits) == 3 * 35
    assert [[call.name for call in calls] for (calls,), _ in sent.call_args_list] == [["waiting"] * 12, ["limit"] * 2]
    assert_invariants(broker)
