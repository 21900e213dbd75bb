"""Bulk operations on the jobs that meet conditions."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from django_delayq.core import Broker, JobView, bulk
from django_delayq.core.bulk import Verb
from tests.support.core_calls import watch_calls
from tests.support.core_values import encode_args

from .bulk_stage import JobFilter, ProgressLog, everything_in_morgue
from .stage import T0, Stage


@pytest.fixture
def stage(clocked: Broker) -> Stage:
    return Stage(clocked, shards=3)


def fill(stage: Stage, number: int = 6) -> None:
    """Schedule jobs of north and south in turn, a second apart."""
    for n in range(number):
        customer = "north" if n % 2 == 0 else "south"
        stage.put(f"{customer}-{n}", at=1000 * n + 1000, args=encode_args((customer, n), {}))


def change(stage: Stage, verb: Verb, **conditions: Any) -> dict[str, int]:
    return dict(bulk.change(stage.queue, verb, JobFilter(**conditions)).counts)


def waiting(stage: Stage) -> list[str]:
    return [view.id for view in stage.broker.inspector.page("q", "waiting", limit=250).jobs]


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ({"prefix": "north"}, ["south-1", "south-3", "south-5"]),
        ({"text": '"south",3'}, ["north-0", "south-1", "north-2", "north-4", "south-5"]),
        ({"due_before_ms": T0 + 3000}, ["north-2", "south-3", "north-4", "south-5"]),
        ({"due_from_ms": T0 + 2000, "prefix": "north"}, ["north-0", "south-1", "south-3", "south-5"]),
        ({"task": "other"}, ["north-0", "south-1", "north-2", "south-3", "north-4", "south-5"]),
    ],
)
def test_the_waiting_jobs_that_match_are_cancelled_and_no_others(
    stage: Stage, conditions: dict[str, Any], left: list[str]
) -> None:
    fill(stage)
    stage.put("north-running", at=-1)
    (running,) = stage.take(number=stage.queue.shard_of("north-running"))
    counts = change(stage, bulk.CANCEL, **conditions)
    assert counts == ({"cancelled": 6 - len(left)} if len(left) < 6 else {})
    assert waiting(stage) == left
    assert stage.done(running) == [True]


def test_the_matching_jobs_fall_due_now(stage: Stage) -> None:
    fill(stage)
    assert change(stage, bulk.RUN_NOW, prefix="south") == {"moved": 3}
    due = {view.id: view.due_ms - T0 for view in stage.broker.inspector.page("q", "waiting").jobs}
    assert due == {"south-1": 0, "south-3": 0, "south-5": 0, "north-0": 1000, "north-2": 3000, "north-4": 5000}


def test_failed_jobs_are_ended_by_their_number_of_failures(stage: Stage) -> None:
    for ident, times in (("once", 1), ("twice", 2), ("thrice", 3), ("runs", 2)):
        stage.put(ident, at=-1)
        for _ in range(times):
            (job,) = stage.queue.reserve_id(ident, worker="w", early=True).jobs
            assert stage.failed(job, 60_000)
    assert stage.queue.reserve_id("runs", worker="w", early=True).jobs
    assert change(stage, bulk.KILL_FAILED, failures=3) == {"killed": 1}
    assert change(stage, bulk.DELETE_FAILED, failures=2) == {"deleted": 1}
    assert (waiting(stage), stage.picture()["morgue"]) == (["once"], ["thrice buried"])


def test_morgue_records_that_match_are_kicked_or_discarded(stage: Stage) -> None:
    for ident in ("north-1", "north-2", "south-1"):
        stage.in_morgue(ident, at=-1, args=encode_args((f"to {ident}",), {}))
    stage.put("north-2", at=50_000)
    verb = bulk.kick(5000)
    assert change(stage, verb, prefix="north") == {"kicked": 1, "live": 1}
    assert change(stage, bulk.DISCARD, text="to south") == {"discarded": 1}
    assert stage.picture()["waiting"] == ["north-1 +5000", "north-2 +50000"]
    assert stage.picture()["morgue"] == ["north-2 buried"]


def test_it_stops_in_time_and_the_cursor_continues(stage: Stage) -> None:
    for n in range(700):
        stage.put(f"{'a' if n % 100 == 99 else 'b'}-{n}", at=n + 1)
    where, cursor, counts, calls = JobFilter(prefix="a"), "", 0, 0
    while True:
        changed = bulk.change(stage.queue, bulk.CANCEL, where, cursor=cursor, seconds=0)
        counts, cursor, calls = counts + changed.counts["cancelled"], changed.cursor, calls + 1
        assert changed.examined <= 250
        if not cursor:
            break
    assert (counts, calls, len(stage.broker.inspector.page("q", "waiting", limit=250).jobs)) == (7, 3, 250)


def test_its_progress_is_reported(stage: Stage) -> None:
    fill(stage, 600)
    told = ProgressLog()
    bulk.change(stage.queue, bulk.CANCEL, JobFilter(prefix="north"), progress=told)
    assert told.steps[-1] == (600, 600)


def test_a_job_that_was_replaced_since_it_was_read_is_left_alone(stage: Stage) -> None:
    fill(stage)

    def replace_the_others(view: JobView) -> bool:
        if view.id == "north-4":
            stage.queue.cancel("north-2")
            stage.put("north-2", at=9000)
            assert stage.queue.reserve_id("north-4", worker="w", early=True).jobs
        return True

    changed = bulk.change(stage.queue, bulk.CANCEL, JobFilter(prefix="north"), accepts=replace_the_others)
    assert changed.counts == {"cancelled": 1}
    assert waiting(stage) == ["south-1", "south-3", "south-5", "north-2"]


def test_jobs_that_are_buried_again_meanwhile_are_not_read_twice(stage: Stage) -> None:
    everything_in_morgue(stage, 1600)  # of each shard more than two pages of its index
    pages: list[int] = []

    def bury_another(seen: int, total: int) -> None:
        pages.append(seen)
        stage.wait(1000)
        stage.in_morgue("a-new", at=-1)

    changed = bulk.change(stage.queue, bulk.DISCARD, JobFilter(task="work"), progress=bury_another)
    assert (changed.counts, changed.cursor, pages) == ({"discarded": 1600}, "", [*range(250, 1600, 250), 1600])
    assert stage.picture()["morgue"] == ["a-new buried"] * 7, "one behind each page"


def test_without_a_condition_all_jobs_are_changed_and_none_is_read(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident, at=5000)
    with watch_calls(stage.broker) as calls:
        assert change(stage, bulk.CANCEL) == {"cancelled": 3}
    requests = [msgpack.unpackb(call.args[2], raw=True) for call in calls if call.name == "read"]
    assert all(request[b"names"] for request in requests)
