"""Row 26: strict priorities with a bound. A due job that has waited too long goes before more urgent ones."""

from __future__ import annotations

from collections import Counter

import pytest

from django_delayq.core import Broker, InvalidJob, ack
from tests.support.core_stored import LaneNotes, limits_in_force, stored_rules

from .stage import Stage


@pytest.fixture
def bounded(stage: Stage) -> Stage:
    """Return a queue whose due jobs starve after a second."""
    stage.broker.limit("q", starve_after=1)
    return stage


def fill(stage: Stage, priority: int, jobs: int = 20, *, at: int | None = None) -> None:
    """Schedule jobs "<priority>-<n>"."""
    for n in range(jobs):
        stage.put(f"{priority}-{n}", priority=priority, **({} if at is None else {"at": at}))


def classes(ids: list[str]) -> dict[str, int]:
    """Return how many jobs of each class are among some ids."""
    return dict(Counter(ident.partition("-")[0] for ident in ids))


def ids(stage: Stage, n: int) -> list[str]:
    """Reserve jobs; return their ids in their order."""
    return [job.id for job in stage.take(n)]


def test_t52_a_due_job_that_waits_longer_than_the_bound_goes_before_more_urgent_ones(bounded: Stage) -> None:
    fill(bounded, 7)
    bounded.wait(1000)
    fill(bounded, 0)
    assert ids(bounded, 4)[0] == "7-0"  # a second is the bound itself


def test_below_the_bound_the_classes_stay_strict(bounded: Stage) -> None:
    fill(bounded, 7)
    bounded.wait(999)
    fill(bounded, 0)
    assert classes(ids(bounded, 12)) == {"0": 12}


def test_a_delayed_job_starves_from_its_due_time_on(bounded: Stage) -> None:
    fill(bounded, 7, at=5000)
    fill(bounded, 0)
    bounded.wait(5999)
    assert classes(ids(bounded, 4)) == {"0": 4}
    bounded.wait(1)
    assert classes(ids(bounded, 4)) == {"7": 1, "0": 3}


def test_without_a_bound_a_lower_class_waits_for_as_long_as_there_is_urgent_work(stage: Stage) -> None:
    fill(stage, 7)
    stage.wait(86_400_000)
    fill(stage, 0)
    assert classes(ids(stage, 20)) == {"0": 20}


def test_t52_jobs_that_starve_get_a_quarter_so_that_urgent_ones_do_not_starve_in_turn(bounded: Stage) -> None:
    fill(bounded, 7)
    fill(bounded, 0)
    bounded.wait(60_000)
    assert classes(ids(bounded, 12)) == {"7": 3, "0": 9}


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_t52_the_share_holds_for_calls_for_few_jobs(bounded: Stage, limit: int) -> None:
    fill(bounded, 7, 200)
    fill(bounded, 0, 600)
    bounded.wait(60_000)
    found: Counter[str] = Counter()
    for _ in range(240 // limit):
        bounded.wait(1.37)
        found.update(classes(ids(bounded, limit)))
    assert sum(found.values()) == 240
    assert found["7"] == pytest.approx(60, abs=12), found


def test_the_class_that_starves_longest_goes_first(bounded: Stage) -> None:
    fill(bounded, 5)
    bounded.wait(10)
    fill(bounded, 3)
    bounded.wait(2000)
    fill(bounded, 0)
    assert classes(ids(bounded, 8)) == {"5": 2, "0": 6}


def test_only_jobs_beyond_the_bound_take_the_share(bounded: Stage) -> None:
    fill(bounded, 7, 1)
    bounded.wait(1000)
    fill(bounded, 6)
    fill(bounded, 0)
    assert classes(ids(bounded, 12)) == {"7": 1, "0": 11}


def test_urgent_work_that_does_not_fill_a_call_leaves_the_rest_to_the_others(bounded: Stage) -> None:
    fill(bounded, 7)
    bounded.wait(1000)
    fill(bounded, 0, 2)
    assert classes(ids(bounded, 12)) == {"7": 10, "0": 2}


def test_a_bound_holds_for_weighted_classes_too(bounded: Stage) -> None:
    bounded.broker.limit("q", priorities="weighted")
    for priority in range(8):
        fill(bounded, priority, 60)
    bounded.wait(60_000)
    assert all(set(classes(ids(bounded, 12)).values()) != {12} for _ in range(20))


def test_an_ack_with_a_reserve_keeps_the_bound(bounded: Stage) -> None:
    fill(bounded, 7)
    fill(bounded, 0)
    bounded.wait(60_000)
    held = bounded.take(4)
    answers, batch = bounded.queue.settle_reserve(0, [ack(job, 1, 2) for job in held], 8, worker="w")
    assert list(answers) == [True] * 4
    assert classes([job.id for job in batch.jobs]) == {"7": 2, "0": 6}


def test_a_job_that_starves_keeps_to_the_limit_of_its_task(bounded: Stage) -> None:
    for n in range(20):
        bounded.put(f"7-{n}", priority=7, task="limited")
    bounded.wait(1000)
    fill(bounded, 0)
    batch = bounded.batch(12, lanes=LaneNotes(["limited"], most=1).pack())
    assert classes([job.id for job in batch.jobs]) == {"0": 11}
    assert (batch.moved, [offer.jobs for offer in batch.offers]) == (20, [1])


def test_every_shard_has_the_bound_whole_also_after_a_reshard(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    broker.limit("q", starve_after=90, max_length=9)

    def bounds() -> set[float]:
        return {stored_rules(queue, number)["starve_after_ms"] for number in queue.numbers}

    assert bounds() == {90_000}
    broker.reshard("q", 5)
    assert bounds() == {90_000}
    broker.pause("q", "in")
    broker.resume("q")
    assert bounds() == {90_000}
    assert limits_in_force(broker.queue("q").layout)["starve_after"] == 90
    broker.limit("q", starve_after=0, max_length=0)
    assert limits_in_force(broker.queue("q").layout)["starve_after"] is None
    with pytest.raises(InvalidJob, match="starve_after must be 0 or more"):
        broker.limit("q", starve_after=-1)


def test_a_dispatcher_restores_a_lost_bound(bounded: Stage) -> None:
    bounded.broker.client.hdel(bounded.key("meta"), "rules")
    bounded.queue.tick(0)
    fill(bounded, 7)
    bounded.wait(1000)
    fill(bounded, 0)
    assert classes(ids(bounded, 4)) == {"7": 1, "0": 3}


@pytest.mark.server
def test_a_bound_costs_nothing_where_there_is_none(stage: Stage) -> None:
    def commands() -> int:
        before = stage.broker.client.info("commandstats")["cmdstat_zrange"]["calls"]
        stage.take(4)
        after: int = stage.broker.client.info("commandstats")["cmdstat_zrange"]["calls"]
        return after - before

    for priority in (0, 4, 7):
        fill(stage, priority)
    without = commands()
    stage.broker.limit("q", morgue_max=1000)
    assert commands() == without
    stage.broker.limit("q", starve_after=60)
    assert commands() == without + 3  # one for each class in use
