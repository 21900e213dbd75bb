"""Groups: jobs that take turns with those of others, with limits of their own; from the schedule call on in lanes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from django_delayq.core import Batch, InvalidJob, Misconfigured, NewJob, Task, TaskOptions, ack
from django_delayq.core.builder import JobBuilder
from tests.support.core_stored import Block, Grant, LaneNotes, assert_invariants

from .bulk_loads_stage import open_load, write
from .bulk_stage import cancel_action, cancel_all, reschedule_action
from .stage import T0, Stage


def asked(stage: Stage, n: int = 10, *blocks: Block, **changes: Any) -> Batch:
    said: dict[str, Any] = {"most": 100} | changes
    return stage.batch(n, lanes=LaneNotes(**said, blocks=list(blocks)).pack())


def offered(batch: Batch) -> list[tuple[str, int]]:
    return [(offer.group, offer.jobs) for offer in batch.offers]


def granted(stage: Stage, n: int = 10, **changes: Any) -> list[str]:
    """Reserve up to ``n`` jobs; every offer is granted."""
    batch = asked(stage, n, **changes)
    grants = [Grant(offer, offer.jobs) for offer in batch.offers]
    rest = n - len(batch.jobs)
    more = stage.batch(rest, lanes=LaneNotes(grants=grants).pack()).jobs if grants else []
    return [job.id for job in (*batch.jobs, *more)]


def fill(stage: Stage, group: str, jobs: int, **options: Any) -> None:
    for number in range(jobs):
        stage.put(f"{group}{number}", group=group, **options)


def test_a_job_with_a_group_is_offered_and_carries_its_group(stage: Stage) -> None:
    stage.put("a", group="acme", options=b'{"timeout":3}')
    batch = asked(stage)
    assert (batch.jobs, offered(batch), batch.offers[0].options_json) == ([], [("acme", 1)], b'{"timeout":3}')
    view = stage.broker.inspector.get("q", "a")
    assert view is not None and (view.job.group, view.job.options, view.job.parked) == ("acme", {"timeout": 3}, True)
    (job,) = stage.take()
    assert (job.group, job.options_json, job.args) == ("acme", b'{"timeout":3}', b"")
    assert_invariants(stage.broker)


def test_groups_take_turns_whatever_their_numbers(stage: Stage) -> None:
    fill(stage, "big", 30)
    fill(stage, "mid", 3)
    fill(stage, "few", 1)
    turns = []
    for _ in range(7):
        stage.wait(1)
        turns += granted(stage, 1)
    assert [ident.rstrip("0123456789") for ident in turns] == ["big", "few", "mid", "big", "mid", "big", "mid"]
    assert [ident for ident in turns if ident.startswith("big")] == ["big0", "big1", "big2"], "each in order"


def test_a_call_with_much_room_serves_groups_alike(stage: Stage) -> None:
    for group in ("a", "b", "c"):
        fill(stage, group, 20)
    assert offered(asked(stage, 10)) == [("a", 4), ("b", 3), ("c", 3)]


def test_a_call_with_room_for_one_job_of_each_group_serves_all_of_them(stage: Stage) -> None:
    names = [f"g{number}" for number in range(10)]
    for name in names:
        fill(stage, name, 3)
    assert offered(asked(stage, 10)) == [(name, 1) for name in names]


@pytest.mark.parametrize(
    ("limits", "jobs"),
    [(b"[0,0,0,1]", [3] * 32), (b"[2,0,0,1]", [2] * 32 + [3] * 8), (b"[0,2.5,1,1]", [1] * 32 + [3] * 8)],
    ids=["none", "concurrency", "rate"],
)
def test_a_call_with_room_for_very_many_jobs_serves_some_groups_after_the_others(
    stage: Stage, limits: bytes, jobs: list[int]
) -> None:
    names = [f"g{number:02}" for number in range(40)]
    for name in names:
        fill(stage, name, 3, options=b'{"group_limits":%b}' % limits)
    stage.wait(1)
    assert offered(asked(stage, 96)) == list(zip(names, jobs, strict=False)), "those behind get what is left"


@pytest.mark.parametrize(("room", "calls"), [(1, 160), (4, 40), (24, 8)], ids=["one", "some", "all"])
@pytest.mark.parametrize("others", [1, 3, 12])
def test_a_group_has_turns_by_its_weight(stage: Stage, room: int, calls: int, others: int) -> None:
    """Room of each call: for one group, for some of them or for several jobs of each."""
    fill(stage, "heavy", 200, options=b'{"group_limits":[0,0,0,3]}')
    for number in range(others):
        fill(stage, f"light{number}-", 200)
    found: Counter[str] = Counter()
    for _ in range(calls):
        stage.wait(20)
        found.update(ident.rstrip("0123456789") for ident in granted(stage, room))
    light = found.total() - found["heavy"]
    assert 2 < found["heavy"] * others / light <= 4, found


def test_many_jobs_of_one_group_are_one_lane_for_all_others(stage: Stage) -> None:
    fill(stage, "big", 2000)
    asked(stage, 0, Block("group:q:big", 1, 60_000))
    assert asked(stage).offers == []
    stage.put("plain")
    stage.put("other", group="other")
    batch = asked(stage, 5)
    assert ([job.id for job in batch.jobs], offered(batch), batch.moved) == (["plain"], [("other", 1)], 0)


def test_a_delayed_job_waits_in_its_lane_and_wakes_a_consumer_when_it_is_earlier(stage: Stage) -> None:
    wake = stage.broker.wake_key("q")
    stage.put("late", group="a", at=60_000)
    stage.broker.client.delete(wake)
    stage.put("later", group="a", at=90_000)
    stage.put("other", group="b", at=70_000)
    assert not stage.broker.client.exists(wake)
    stage.put("soon", group="a", at=30_000)
    assert stage.broker.client.lrange(wake, 0, -1) == [b"0"]
    assert asked(stage).next_due_ms == 30_000
    counts = stage.broker.inspector.counts("q")
    assert (counts.delayed, counts.ready, counts.parked) == (4, 0, 0)
    stage.wait(65_000)
    assert granted(stage) == ["soon", "late"]
    assert asked(stage).next_due_ms == 5000


def test_priorities_hold_among_groups(stage: Stage) -> None:
    fill(stage, "low", 2, priority=7)
    fill(stage, "high", 2, priority=0)
    assert granted(stage, 3) == ["high0", "high1", "low0"]


def test_a_blocked_group_is_put_off_and_comes_back_with_its_release(stage: Stage) -> None:
    fill(stage, "a", 3)
    fill(stage, "b", 1)
    batch = asked(stage, 10, Block("group:q:a", 10, 4000))
    assert (offered(batch), batch.next_due_ms) == ([("b", 1)], 0)
    assert granted(stage) == ["b0"]
    assert asked(stage).next_due_ms == 4000
    stage.put("a9", group="a")
    assert asked(stage).offers == []
    batch = asked(stage, 10, Block("group:q:a", 11))
    assert (offered(batch), batch.idle) == ([("a", 4)], [])
    asked(stage, 10, Block("group:q:a", 12, 4000))
    stage.wait(4000)
    assert offered(asked(stage)) == [("a", 4)]


def test_a_late_block_of_a_group_is_ignored_and_an_idle_one_is_reported(stage: Stage) -> None:
    fill(stage, "a", 1)
    assert asked(stage, 0, Block("group:q:a", 12)).idle == []
    assert offered(asked(stage, 10, Block("group:q:a", 11, 4000))) == [("a", 1)]
    assert asked(stage, 0, Block("group:q:b", 12)).idle == ["b\0"]
    cancel_all(stage.queue)
    assert asked(stage, 0, Block("group:q:a", 13)).idle == ["a\0"]


def test_a_tick_forgets_what_was_said_of_groups_long_ago(stage: Stage) -> None:
    fill(stage, "a", 1)
    asked(stage, 0, Block("group:q:a", stage.us, 4000), Block("queue:q", stage.us, 1))
    stage.wait(30_000)
    stage.queue.tick(0)
    assert stage.broker.client.hlen(stage.key("blocked")) == 2
    stage.wait(40_000)
    stage.queue.tick(0)
    assert stage.broker.client.hkeys(stage.key("blocked")) == [b""]


def test_a_job_stays_in_its_group_through_all_that_happens_to_it(stage: Stage) -> None:
    stage.put("a", group="acme", task="limited")
    (job,) = stage.take()
    assert stage.failed(job)
    assert offered(asked(stage)) == [("acme", 1)]
    (job,) = stage.take()
    assert stage.buried(job)
    assert stage.queue.kick("a")
    assert offered(asked(stage)) == [("acme", 1)]
    assert reschedule_action(delay_ms=1000).anywhere(stage.queue, "a") == "moved"
    assert asked(stage).next_due_ms == 1000
    stage.wait(1000)
    assert [one.id for one in stage.queue.reserve_id("a", worker="w").jobs] == ["a"]
    assert_invariants(stage.broker)


def test_a_new_call_moves_a_job_to_another_group(stage: Stage) -> None:
    stage.put("a", group="one")
    assert stage.put("a", group="two") == "replaced"
    assert offered(asked(stage)) == [("two", 1)]
    assert stage.put("a") == "replaced"
    assert [job.id for job in asked(stage).jobs] == ["a"]
    stage.put("b", group="one")
    assert cancel_action().anywhere(stage.queue, "b") == "cancelled"
    assert asked(stage).next_due_ms is None
    assert_invariants(stage.broker)


def test_content_behind_a_run_has_its_own_group(stage: Stage) -> None:
    stage.put("a", group="one")
    (job,) = stage.take()
    assert stage.put("a", group="two") == "gated"
    assert stage.settle(ack(job, 1, 2)) == [True]
    assert offered(asked(stage)) == [("two", 1)]


def test_a_group_whose_name_looks_like_something_else_is_its_own(stage: Stage) -> None:
    for group in ("task:limited", "a:b", "\1\2", "ß" * 64):
        stage.put(f"job-{group}", group=group)
    batch = asked(stage)
    assert sorted(offered(batch)) == sorted((group, 1) for group in ("task:limited", "a:b", "\1\2", "ß" * 64))
    blocks = [Block(f"group:q:{group}", 10, 4000) for group, _ in offered(batch)]
    assert asked(stage, 10, *blocks).offers == []
    assert len(asked(stage, 10, *(Block(block.limit, 11) for block in blocks)).offers) == 4


def test_a_bulk_load_keeps_the_groups_of_its_jobs(stage: Stage) -> None:
    news = [NewJob(f"{group}{n}", "work", due_ms=T0, delay_ms=None, group=group) for group in "ab" for n in range(3)]
    load = open_load(stage.broker, "load", "q")
    assert write(stage.broker, load, news) == {"created": 6}
    assert sorted(offered(asked(stage))) == [("a", 3), ("b", 3)]
    assert_invariants(stage.broker)


# -- schedule calls --------------------------------------------------------------------------------------------------


def handler(customer: str, plan: str = "free") -> None: ...


def built(arguments: tuple[Any, ...] = ("acme",), call: dict[str, Any] | None = None, **options: Any) -> Any:
    return JobBuilder(Task(handler, name="t", options=TaskOptions(**options))).build(arguments, {}, call or {})


def test_the_group_of_a_job_is_a_text_a_template_or_a_function_of_its_arguments() -> None:
    assert built().group == ""
    assert built(group="all").group == "all"
    assert built(group="{customer}-{plan}").group == "acme-free"
    assert built(group=lambda customer, plan="free": customer.upper()).group == "ACME"
    assert built(group="{customer}", call={"group": "own"}).group == "own"
    assert built(group=lambda customer: None).group == "", "a function may decide that it has none"


def test_the_limits_of_a_group_are_stored_with_its_jobs() -> None:
    new = built(
        group="{customer}",
        group_concurrency=lambda customer, plan="free": 10 if plan == "gold" else 1,
        group_rate="10/s",
        group_burst=4,
        call={"ttr": 60},
    )
    assert new.options == b'{"group_limits":[1,100000.0,4,1],"ttr_ms":60000}'
    gold = built(("acme", "gold"), group="a", group_concurrency=lambda c, plan: 10, group_weight=lambda c, plan: 3)
    assert gold.options == b'{"group_limits":[10,0,0,3]}'
    assert built(group_concurrency=3).options == b"", "a job without a group has no limits of one"
    assert built(group="a", group_rate=lambda customer: None).options == b""


@pytest.mark.parametrize("wrong", ["", "a\0b", "x" * 129, 7])
def test_a_wrong_group_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidJob, match="group"):
        built(call={"group": wrong})


def test_wrong_limits_of_groups_are_refused() -> None:
    with pytest.raises(InvalidJob, match="group_concurrency must be"):
        built(group="a", group_concurrency=lambda customer: 0)
    with pytest.raises(InvalidJob, match="group_weight must be"):
        built(group="a", group_weight=lambda customer: 101)
    with pytest.raises(InvalidJob, match="its group_rate= failed for these arguments"):
        built(group="a", group_rate=lambda customer: 1 / 0)
    with pytest.raises(InvalidJob, match="group_rate"):
        TaskOptions(group="a", group_rate="often")
    with pytest.raises(Misconfigured, match="names no argument"):
        built(group="{nobody}")
