"""Merged jobs: one call of the handler for several ids, each with a fate of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from django_delayq import PartialFailure, current_job
from django_delayq.core import (
    Broker,
    Bury,
    Job,
    LeakedTransaction,
    Payload,
    Registry,
    Release,
    Retry,
    Settlement,
    Task,
    TaskOptions,
    release,
)
from django_delayq.worker.attempt import arrange, batch_size_of, expected_batch
from tests.support.attempt_stage import (
    Attempt,
    BatchAttempt,
    execute_batch,
    handler_view,
    make_attempt,
    make_job,
    payloads_of,
    perform,
)
from tests.support.waiting_stage import FetchRoom
from tests.support.worker_stage import (
    Gate,
    Hooks,
    config,
    eventually,
    places,
    put_payload,
    registry_of,
    run_dry,
    settled_by,
    working,
)

# --- which jobs share a run


def merged(ident: str, task: str = "work", **changes: Any) -> Job:
    return make_job(id=ident, task=task, merged=True, payloads=payloads_of(ident), **changes)


def ids(attempt: Attempt) -> list[str]:
    return [part.job.id for part in attempt.parts]


def test_runs_are_united_by_task_up_to_the_batch_size_in_the_order_they_came() -> None:
    registry = Registry()
    for name, options in (("three", {"batch_size": 3}), ("two", {"batch_size": 2}), ("one", {})):
        registry.add(Task(lambda batch: None, name=name, options=TaskOptions(merge=True, **options)))
    registry.add(Task(lambda: None, name="plain"))
    wanted = ["three", "plain", "two", "three", "one", "unknown", "three", "three", "two", "two", "one"]
    jobs = [make_job(id=str(n), task=task, merged=task != "plain") for n, task in enumerate(wanted)]
    arranged = arrange(registry, [make_attempt(job) for job in jobs])
    assert [" ".join(ids(attempt)) for attempt in arranged] == ["0 3 6", "1", "2 8", "4", "5", "7", "9", "10"]
    assert [place for place, attempt in enumerate(arranged) if isinstance(attempt, BatchAttempt)] == [0, 2]
    first, second = ([part.job for part in attempt.parts] for attempt in arranged[:2])
    assert first == [jobs[0], jobs[3], jobs[6]] and second == [jobs[1]]


def test_the_expected_size_is_what_every_task_of_the_queue_can_take() -> None:
    registry = Registry()
    for name, queue, options in (
        ("a", "one", {"merge": True, "batch_size": 10}),
        ("b", "one", {"merge": True, "batch_size": 4}),
        ("c", "two", {"merge": True, "batch_size": 9}),
        ("d", "two", {}),
    ):
        registry.add(Task(lambda batch: None, name=name, options=TaskOptions(queue=queue, **options)))
    assert [expected_batch(registry, queue) for queue in ("one", "two", "three")] == [4, 1, 1]
    assert [batch_size_of(registry, merged("x", task)) for task in ("a", "d", "unknown")] == [10, 1, 1]
    assert batch_size_of(registry, make_job(task="a")) == 1


# --- one batch, without a queue


def fates(attempt: BatchAttempt) -> dict[str, tuple[str, str, str]]:
    """id -> verb, outcome, reason of each member."""
    found: dict[str, tuple[str, str, str]] = {}
    for member in attempt.members:
        settlement = member.settlement
        assert isinstance(settlement, Settlement) and settlement.job is member.job
        found[member.job.id] = (settlement.verb, settlement.outcome, settlement.reason)
    return found


ACKED = ("ack", "succeeded", "")
FAILED = ("fail", "failed", "")


def test_the_handler_gets_all_ids_with_their_payloads_and_all_are_acked() -> None:
    seen: list[Any] = []
    jobs = [make_job(id=ident, merged=True, payloads=payloads_of(1, ident)) for ident in "abc"]

    def work(batch: dict[str, list[Any]]) -> None:
        seen.append(batch)

    attempt = execute_batch(work, jobs)
    assert seen == [{"a": [1, "a"], "b": [1, "b"], "c": [1, "c"]}]
    assert fates(attempt) == dict.fromkeys("abc", ACKED)
    assert all(member.ended and member.started for member in attempt.members)


def test_each_id_is_decided_by_its_own_exception() -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise PartialFailure(
            {
                "retry": Retry(delay=3),
                "bury": Bury("no such order"),
                "release": Release("later", delay=1),
                "text": "went wrong",
                "fail": ValueError(),
                "last": ValueError(),
                7: ValueError(),
            }
        )  # type: ignore[dict-item]

    names = ("retry", "bury", "release", "text", "fail", "last", "7", "good")
    attempt = execute_batch(
        work, [merged(name, failures=2 * (name == "last")) for name in names], max_attempts=3, retry_in=lambda n: 9.0
    )
    assert fates(attempt) == {
        "retry": FAILED,
        "bury": ("bury", "buried", "no such order"),
        "release": ("release", "released", "later"),
        "text": FAILED,
        "fail": FAILED,
        "last": ("bury", "exhausted", "exhausted"),
        "7": FAILED,
        "good": ACKED,
    }
    delays = {member.job.id: member.settlement.delay_ms for member in attempt.members if member.settlement}
    assert (delays["retry"], delays["release"], delays["fail"]) == (3000, 1000, 9000)
    text = next(member.settlement for member in attempt.members if member.job.id == "text")
    assert text and json.loads(text.error)["message"] == "went wrong"


def test_a_partial_failure_with_an_unknown_id_fails_them_all_and_says_so() -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise PartialFailure({"a": ValueError(), "order-99": ValueError()})

    attempt = execute_batch(work, [merged("a"), merged("b")])
    assert fates(attempt) == {"a": FAILED, "b": FAILED}
    record = json.loads(attempt.members[1].settlement.error)  # type: ignore[union-attr]
    assert "'order-99'" in record["message"] and "all ids of the batch count as failed" in record["message"]


def test_a_partial_failure_of_a_list_is_refused_where_it_is_made() -> None:
    with pytest.raises(TypeError, match="PartialFailure takes a dict, id → exception, not list"):
        PartialFailure(["57"])  # type: ignore[arg-type]


def test_a_partial_failure_without_ids_is_success() -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise PartialFailure({})

    assert fates(execute_batch(work, [merged("a"), merged("b")])) == {"a": ACKED, "b": ACKED}


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (ValueError(), FAILED),
        (SystemExit(), FAILED),
        (asyncio.CancelledError(), FAILED),
        (Retry(delay=1), FAILED),
        (Bury("closed"), ("bury", "buried", "closed")),
        (Release(), ("release", "released", "")),
    ],
)
def test_any_other_exception_is_that_of_every_id(error: BaseException, fate: Any) -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise error

    assert fates(execute_batch(work, [merged("a"), merged("b")])) == {"a": fate, "b": fate}


def test_every_id_fails_by_its_own_counters_and_options() -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise ValueError

    jobs = [merged("fresh"), merged("third", failures=2), merged("own", options_json=b'{"max_attempts":1}')]
    attempt = execute_batch(work, jobs, max_attempts=3)
    exhausted = ("bury", "exhausted", "exhausted")
    assert fates(attempt) == {"fresh": FAILED, "third": exhausted, "own": exhausted}
    assert [member.settlement.oldest for member in attempt.members] == [False, True, True]  # type: ignore[union-attr]


def test_a_payload_that_cannot_be_decoded_buries_its_id_only() -> None:
    seen: list[Any] = []

    def work(batch: dict[str, list[Any]]) -> None:
        job = current_job()
        assert job is not None
        seen.append((batch, job.id, [one.id for one in job.jobs]))

    bad = merged("bad")
    bad.payloads = (*bad.payloads, Payload(b"\xff\xfe", "2", b"k" * 16))
    attempt = execute_batch(work, [bad, merged("a"), merged("b")])
    assert seen == [({"a": ["a"], "b": ["b"]}, "a", ["a", "b"])]
    assert fates(attempt) == {"bad": ("bury", "undecodable", "undecodable"), "a": ACKED, "b": ACKED}
    assert fates(execute_batch(work, [bad])) == {"bad": ("bury", "undecodable", "undecodable")} and len(seen) == 1


def test_ids_whose_lease_is_over_do_not_start_and_take_nobody_with_them() -> None:
    seen: list[list[str]] = []

    def work(batch: dict[str, list[Any]]) -> None:
        seen.append(list(batch))

    registry = registry_of(work, merge=True, batch_size=3)
    members = [
        make_attempt(merged("lost"), lost=True),
        make_attempt(merged("over"), deadline=0.0),
        make_attempt(merged("good")),
    ]
    attempt = BatchAttempt(members)
    perform(attempt, registry)
    reason = ("release", "released", "the lease ended before the attempt could begin")
    assert seen == [["good"]] and fates(attempt) == {"lost": reason, "over": reason, "good": ACKED}


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_comes_back_unbegun_is_united_by_the_rules_of_its_task(jobs: int) -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise AssertionError("not to be called")

    registry = registry_of(work, merge=True, batch_size=2, score_policy="max", due_policy="inherit")
    members = [make_attempt(merged(str(number)), deadline=0.0) for number in range(jobs)]
    perform(members if jobs > 1 else members[0], registry)
    rules = [
        (one.settlement.verb, one.settlement.score_policy, one.settlement.inherit) for one in members if one.settlement
    ]
    assert rules == [("release", "max", True)] * jobs


def test_a_leak_found_after_a_partial_failure_is_that_of_every_id() -> None:
    def work(batch: dict[str, list[Any]]) -> None:
        raise PartialFailure({"a": ValueError()})

    def leak(job: Job) -> None:
        raise LeakedTransaction("atomic is open")

    attempt = execute_batch(work, [merged("a"), merged("b")], Hooks(after_job=leak))
    assert fates(attempt) == {"a": FAILED, "b": FAILED}
    assert {member.settlement.error_class for member in attempt.members if member.settlement} == {
        f"{LeakedTransaction.__module__}.LeakedTransaction"
    }


def test_hooks_surround_a_batch_once_and_events_tell_of_every_job() -> None:
    told: list[str] = []

    def work(batch: dict[str, list[Any]]) -> None:
        told.append("handler")
        raise PartialFailure({"b": ValueError()})

    hooks = Hooks(
        before_job=lambda job: told.append(f"before {job.id}"),
        after_job=lambda job: told.append(f"after {job.id}"),
        wants=lambda event, task: True,
        notify=lambda event, job, task, **_: told.append(f"{event} {job.id} {task.name}"),
    )
    execute_batch(work, [merged("a"), merged("b")], hooks)
    assert told == [
        "before a",
        "job_started a work",
        "job_started b work",
        "handler",
        "after a",
        "job_succeeded a work",
        "job_failed b work",
    ]


def test_the_current_job_of_a_batch_has_a_view_of_each_id() -> None:
    seen: list[Any] = []

    async def work(batch: dict[str, list[Any]]) -> None:
        job = current_job()
        assert job is not None
        seen.append((job.id, job.token, job.should_stop, job.lost))
        plain = attrgetter("id", "attempt", "lives", "key", "token", "payloads", "scores", "payload_keys")
        for one in job.jobs:
            seen.append((*plain(one), one.due.timestamp(), dict(one.context), [same.id for same in one.jobs]))

    a = make_job(id="a", merged=True, failures=2, payloads=payloads_of("x", "y"))
    b = make_job(
        id="b",
        merged=True,
        payloads=(Payload(b'"z"', "2.5", b"k" * 16),),
        options_json=b'{"context":{"trace":"t"},"max_attempts":3}',
    )
    execute_batch(work, [a, b], max_attempts=5)
    due = 1_700_000_000.0
    assert seen == [
        ("a", 7, False, False),
        ("a", 3, 3, a.key.hex(), 7, ["x", "y"], (1, 2), tuple(p.key.hex() for p in a.payloads), due, {}, ["a"]),
        ("b", 1, 3, b.key.hex(), 7, ["z"], (2.5,), ((b"k" * 16).hex(),), due, {"trace": "t"}, ["b"]),
    ]


def test_a_batch_should_stop_when_all_its_jobs_should() -> None:
    attempt = BatchAttempt([make_attempt(merged("a")), make_attempt(merged("b"))])
    view = handler_view(attempt)
    told = []
    for flag in (None, 0, 1):
        if flag is not None:
            attempt.members[flag].should_stop = attempt.members[flag].lost = True
        told.append((view.should_stop, view.lost, [one.should_stop for one in view.jobs]))
    assert told == [(False, False, [False, False]), (False, False, [True, False]), (True, True, [True, True])]
    attempt.members[1].should_stop = False
    attempt.should_stop = True  # its time is over
    assert view.should_stop


def test_the_smallest_time_limit_of_a_batch_counts() -> None:
    limits: list[Any] = []

    def work(batch: dict[str, list[Any]]) -> None: ...

    class Watch:
        def limited(self, attempt: Attempt, seconds: float, call: Callable[[], Any]) -> Any:
            limits.append(seconds)
            return call()

    own_limits = (("a", b""), ("b", b'{"timeout":4}'), ("c", b'{"timeout":null}'))
    members = [make_attempt(merged(name, options_json=own)) for name, own in own_limits]
    registry = registry_of(work, merge=True, batch_size=3, timeout=9.0)
    perform(members, registry, timeout_monitor=Watch())
    assert set(limits) == {4}


# --- in a worker, from the queue to the ends of the attempts


def test_a_free_slot_has_room_however_large_the_batches_are_that_run() -> None:
    """Else the fetch loop, which has a free slot and a due shard, would turn round and round."""

    def work(batch: dict[str, list[Any]]) -> None: ...

    shard = FetchRoom(registry_of(work, merge=True, batch_size=2), threads=5, batch_size=2)
    shard.run_batches(4, 250)
    assert shard.room == 1
    shard.run_batches(5, 200)
    assert shard.room <= 0


def test_reserves_are_as_large_as_the_batches(broker: Broker) -> None:
    sizes: list[int] = []

    def work(batch: dict[str, list[Any]]) -> None:
        sizes.append(len(batch))

    for n in range(25):
        put_payload(broker, "work", str(n), n)
    run_dry(broker, registry_of(work, merge=True, batch_size=10), threads=1)
    assert sizes == [10, 10, 5] and places(broker) == {}


def test_a_batch_runs_all_payloads_of_all_ids_in_score_order_once(broker: Broker) -> None:
    ran: dict[str, list[int]] = {}
    lock = threading.Lock()

    def work(batch: dict[str, list[int]]) -> None:
        with lock:
            for ident, payloads in batch.items():
                ran.setdefault(ident, []).extend(payloads)

    broker.queue("default", shards=3)
    for score in (3, 1, 2):
        for n in range(50):
            put_payload(broker, "work", str(n), score, score=score)
    worker = run_dry(broker, registry_of(work, merge=True, batch_size=20))
    assert ran == {str(n): [1, 2, 3] for n in range(50)} and places(broker) == {}
    assert settled_by(worker) == 50


def test_one_lost_id_does_not_cost_the_others_their_end(broker: Broker) -> None:
    calls: list[list[str]] = []
    answers: list[Any] = []

    def work(batch: dict[str, list[Any]]) -> None:
        job = current_job()
        assert job is not None
        calls.append(sorted(batch))
        if len(calls) == 1:
            queue = broker.queue("default")
            lost = next(held for held in queue.leases(0) if held.id == "b")
            queue.settle([release(lost)])  # as the supervisor of another machine would
            answers.extend([job.touch(), [one.lost for one in job.jobs], job.should_stop, job.lost])

    for ident in "abc":
        put_payload(broker, "work", ident, ident)
    with working(broker, registry_of(work, merge=True, batch_size=3), config(threads=1)):
        eventually(lambda: places(broker) == {})
    assert answers == [True, [False, True, False], False, False]
    assert calls == [["a", "b", "c"], ["b"]]


def test_the_heartbeat_keeps_all_jobs_of_a_long_batch(connection: Any, prefix: str) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    calls: list[list[str]] = []
    started: list[set[bool]] = []

    def work(batch: dict[str, list[Any]]) -> None:
        calls.append(sorted(batch))
        eventually(lambda: {bool(job.flags & 1) for job in broker.queue("default").leases(0)} == {True}, "all started")
        threading.Event().wait(2.0)
        started.append({bool(job.flags & 1) for job in broker.queue("default").leases(0)})

    for ident in "abc":
        put_payload(broker, "work", ident, ident)
    run_dry(broker, registry_of(work, merge=True, batch_size=3), heartbeat=0.2)
    assert calls == [["a", "b", "c"]] and started == [{True}] and places(broker) == {}


def test_slow_batches_are_not_held_beyond_the_free_slots(broker: Broker) -> None:
    gate = Gate()
    for n in range(50):
        put_payload(broker, "work", str(n), n)
    with working(broker, registry_of(gate.work, merge=True, batch_size=5), config(threads=3)):
        gate.wait_begun(3)
        assert eventually(lambda: places(broker) == {"ready": 35, "reserved": 15})
        gate.open()
        eventually(lambda: places(broker) == {})


# --- the end of attempts


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_t30_each_payload_of_a_merged_job_gets_exactly_its_attempts(broker: Broker, max_attempts: int) -> None:
    seen: list[tuple[list[str], int]] = []

    def work(batch: dict[str, list[str]]) -> None:
        job = current_job()
        assert job is not None
        seen.append((batch["x"], job.attempt))
        raise ValueError("no")

    put_payload(broker, "work", "x", "old", score=1)
    put_payload(broker, "work", "x", "new", score=2)
    registry = registry_of(work, merge=True, max_attempts=max_attempts, retry_in=lambda n: 0.0)
    with working(broker, registry):
        eventually(lambda: places(broker) == {"morgue": 2})
    attempts = range(1, max_attempts + 1)
    assert seen == [*((["old", "new"], n) for n in attempts), *((["new"], n) for n in attempts)]
