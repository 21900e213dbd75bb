"""Many jobs at once, chosen by SQL; and none that changed since it was seen."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import Job, NewJob, Payload, new_key
from django_delayq.core.outcomes import bury, fail
from django_delayq.core.queue import Queue
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.repair import Group, MaintainOptions, Selection, carry_out, choose

FAR = 3_600_000


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.queue("q", shards=2)


@pytest.fixture
def access(redis_url: str, broker: Broker) -> dict[str, str]:
    return {"redis": redis_url, "prefix": broker.prefix}


def put(queue: Queue, *idents: str, task: str = "work", delay_ms: int = FAR, **options: Any) -> None:
    queue.schedule_many(NewJob(ident, task, delay_ms=delay_ms, **options) for ident in idents)


def take(queue: Queue, ident: str) -> Job:
    (job,) = queue.reserve_id(ident, worker="w", early=True).jobs
    return job


def failed(queue: Queue, *idents: str, **options: Any) -> None:
    put(queue, *idents, **options)
    assert all(
        queue.settle(
            [
                fail(take(queue, ident), 1, 2, delay_ms=FAR, error=b'{"class":"ValueError","message":"no"}')
                for ident in idents
            ]
        )
    )


def buried(queue: Queue, *idents: str, **options: Any) -> None:
    put(queue, *idents, **options)
    assert all(queue.settle([bury(take(queue, ident), 1, 2, reason="why") for ident in idents]))


def picture(broker: Broker, name: str = "q") -> dict[str, list[str]]:
    """Return the ids by place; jobs that are due are under ``ready``."""
    found: dict[str, list[str]] = {}
    for place in ("waiting", "reserved", "morgue"):
        for view in broker.inspector.page(name, place, limit=100).jobs:
            now = place if place != "waiting" else "ready" if view.job.due_ms <= broker.now_ms() else "delayed"
            found.setdefault(now, []).append(view.id)
    return {place: sorted(idents) for place, idents in found.items()}


def shown(selection: Selection) -> list[str]:
    return [row["id"] for row in selection.examples]


def test_jobs_are_chosen_by_everything_that_is_known_of_them(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, "a1", "a2", "a3", task="mail")
    put(queue, "b1")
    failed(queue, "f1")
    put(broker.queue("other"), "o1", task="mail")

    def chosen(where: str, **options: Any) -> Selection:
        return choose(spark, MaintainOptions("cancel", where, access, **options))

    everything = chosen("true")
    assert everything.total == 6
    assert everything.groups == (
        Group("other", "mail", "waiting", 1),
        Group("q", "mail", "waiting", 3),
        Group("q", "work", "waiting", 2),
    )
    assert shown(everything) == ["o1", "a1", "a2", "a3", "b1", "f1"]
    assert shown(chosen("task = 'mail' and id like 'a%' and id <> 'a2'")) == ["a1", "a3"]
    assert shown(chosen("TASK = 'mail'", queues=("other",))) == ["o1"]
    assert shown(chosen("failures > 0 and error_class = 'ValueError'")) == ["f1"]
    assert shown(chosen("due < current_timestamp()")) == []
    assert shown(chosen("queue = 'q' and state = 'waiting' and due > current_timestamp() + interval 59 minutes")) == [
        "a1",
        "a2",
        "a3",
        "b1",
        "f1",
    ]
    assert picture(broker) == {"delayed": ["a1", "a2", "a3", "b1", "f1"]}, "nothing was done"


def test_what_changed_since_it_was_seen_is_not_hit(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, "same", "replaced", "gone", "anew", "running")
    options = MaintainOptions("cancel", "true", access)
    selection = choose(spark, options)
    put(queue, "replaced")
    queue.cancel("gone")
    queue.cancel("anew")
    put(queue, "anew", "young")
    take(queue, "running")
    seen: list[int] = []
    told = carry_out(selection, options, seen.append)
    assert told == {"cancelled": 1, "gone": 3, "stopping": 1}
    assert seen[-1] == 5
    assert picture(broker) == {"delayed": ["anew", "replaced", "young"], "reserved": ["running"]}
    assert carry_out(selection, options) == {"gone": 4, "stopping": 1}, "twice is once"


def test_failed_and_buried_jobs_are_retried_and_no_others(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, "fresh")
    failed(queue, "f1", "f2", "ran")
    buried(queue, "m1", "m2", "twin")
    put(queue, "twin")
    options = MaintainOptions("retry", "id <> 'f2' and id <> 'm2'", access)
    selection = choose(spark, options)
    assert [group.jobs for group in selection.groups] == [2, 2]
    take(queue, "ran")
    assert carry_out(selection, options) == {"retried": 2, "live": 1, "running": 1}
    assert picture(broker) == {
        "delayed": ["f2", "fresh", "twin"],
        "ready": ["f1", "m1"],
        "reserved": ["ran"],
        "morgue": ["m2", "twin"],
    }
    again = MaintainOptions("retry", "id = 'twin'", access, delay_ms=60_000, replace=True)
    assert carry_out(choose(spark, again), again) == {"retried": 1}
    assert picture(broker)["morgue"] == ["m2"]


def test_another_grave_of_an_id_is_not_hit(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    buried(queue, "a")
    options = MaintainOptions("discard", "reason = 'why'", access)
    selection = choose(spark, options)
    assert selection.total == 1
    assert queue.discard("a")
    buried(queue, "a")
    assert carry_out(selection, options) == {"gone": 1}
    assert picture(broker) == {"morgue": ["a"]}
    assert carry_out(choose(spark, options), options) == {"discarded": 1}
    assert picture(broker) == {}


def test_jobs_get_another_due_time(spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]) -> None:
    put(queue, "a", "b")
    held = new_key()
    put(queue, "held", key=held)
    take(queue, "held")
    put(queue, "held")
    now = round(broker.now_ms())
    later = MaintainOptions("reschedule", "id in ('a', 'held')", access, due_ms=now + 7_000_000)
    selection = choose(spark, later)
    assert [(group.state, group.jobs) for group in selection.groups] == [("gated", 1), ("waiting", 1)]
    assert carry_out(selection, later) == {"moved": 2}
    soon = MaintainOptions("reschedule", "id = 'b'", access, delay_ms=0)
    assert carry_out(choose(spark, soon), soon) == {"moved": 1}
    assert picture(broker) == {"delayed": ["a"], "ready": ["b"], "reserved": ["held"]}
    view = broker.inspector.get("q", "a")
    assert view is not None
    assert view.job.due_ms == now + 7_000_000


def test_merged_jobs_go_with_their_payloads(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    queue.schedule_many(
        NewJob(f"m{n % 2}", "sync", payload=Payload(b"%d" % n, str(n), new_key()), on_conflict="merge", delay_ms=FAR)
        for n in range(6)
    )
    options = MaintainOptions("cancel", "payloads = 3 and id = 'm1'", access)
    assert carry_out(choose(spark, options), options) == {"cancelled": 1}
    assert picture(broker) == {"delayed": ["m0"]}


def test_any_number_goes_through_in_chunks_and_a_repeated_call_does_the_rest(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, *[f"j{n}" for n in range(1200)])
    options = MaintainOptions("cancel", "true", access)
    selection = choose(spark, options)
    steps: list[int] = []

    def die(seen: int) -> None:
        steps.append(seen)
        if len(steps) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(selection, options, progress=die)
    assert steps == [250, 500]
    assert carry_out(selection, options) == {"gone": 500, "cancelled": 700}
    assert picture(broker) == {}


def test_jobs_of_a_deleted_queue_are_gone(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, "a")
    options = MaintainOptions("cancel", "true", access)
    selection = choose(spark, options)
    assert broker.delete_queue("q", force=True)
    assert carry_out(selection, options) == {"gone": 1}


@pytest.mark.broken_on_purpose
def test_a_job_that_nobody_can_read_is_counted_and_left_alone(
    spark: SparkSession, broker: Broker, queue: Queue, access: dict[str, str]
) -> None:
    put(queue, "a", "b")
    broker.client.hset(queue.shard(queue.shard_of("a")).names["body"], "a", b"x")
    options = MaintainOptions("cancel", "true", access)
    assert carry_out(choose(spark, options), options) == {"cancelled": 1, "unreadable": 1}
    assert broker.client.hkeys(queue.shard(queue.shard_of("a")).names["body"]) == [b"a"]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("task == 'x", "the condition cannot be used"),
        ("taks = 'x'", "taks"),
        ("id = 'a'; drop table jobs", "the condition cannot be used"),
        ("id", "cannot be used"),
        ("count(*) > 1", "the condition cannot be used"),
        ("id in (select id from nowhere)", "nowhere"),
        ("   ", "which jobs?"),
    ],
)
def test_a_condition_that_cannot_be_is_told_so(
    spark: SparkSession, queue: Queue, access: dict[str, str], where: str, text: str
) -> None:
    with pytest.raises(PipelineError, match=text) as error:
        choose(spark, MaintainOptions("cancel", where, access))
    assert len(str(error.value)) < 700, "one sentence, and the columns"


@pytest.mark.parametrize(
    ("verb", "options", "text"),
    [
        ("kill", {}, "verb"),
        ("reschedule", {}, "either a delay from now or a moment"),
        ("reschedule", {"delay_ms": 1, "due_ms": 1}, "either a delay from now or a moment"),
        ("retry", {"due_ms": 1}, "retry takes no due; leave it out"),
        ("cancel", {"delay_ms": 1}, "cancel takes no delay"),
        ("discard", {"due_ms": 1}, "discard takes no due"),
        ("cancel", {"replace": True}, "cancel takes no replace"),
    ],
)
def test_what_does_not_go_together_is_refused(verb: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        MaintainOptions(verb, "true", {}, **options)


def test_a_time_out_of_all_bounds_is_refused(spark: SparkSession, queue: Queue, access: dict[str, str]) -> None:
    put(queue, "a")
    options = MaintainOptions("reschedule", "true", access, due_ms=10**14)
    with pytest.raises(InvalidJob):
        carry_out(choose(spark, options), options)
