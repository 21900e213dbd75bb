"""Merged jobs with many producers or very many payloads. Everything else of them is compared with the model."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, Payload, ack, fail, release
from tests.support.core_values import created_ms, new_key

from .stage import Stage, data_of, oldest_buried


def commands(stage: Stage, call: Callable[[], Any]) -> int:
    """Return the number of Redis commands of a call, including those inside its scripts."""

    def seen() -> int:
        # Not `info` itself, nor the calls of scripts.
        stats = stage.broker.client.info("commandstats")
        return sum(of["calls"] for name, of in stats.items() if "info" not in name and "eval" not in name)

    before = seen()
    call()
    return seen() - before


def test_t08_of_a_thousand_payloads_by_fifty_producers_each_is_kept(broker: Broker) -> None:
    queue = broker.queue("q")
    start = threading.Barrier(50)

    def produce(number: int) -> list[str]:
        start.wait()
        payloads = (Payload(b"%d/%d" % (number, turn), str(turn), new_key()) for turn in range(20))
        return [
            queue.schedule(NewJob("x", "sync", on_conflict="merge", due_policy="keep", payload=payload))
            for payload in payloads
        ]

    with ThreadPoolExecutor(50) as pool:
        outcomes = [outcome for outcomes in pool.map(produce, range(50)) for outcome in outcomes]
    assert (outcomes.count("created"), outcomes.count("merged")) == (1, 999)
    runs = []
    while jobs := queue.reserve(0, 10, worker="w").jobs:
        runs.append(jobs[0].payloads)
        assert queue.settle([ack(jobs[0], 0, 0)]) == [True]
    assert [len(payloads) for payloads in runs] == [250] * 4
    found = [payload for payloads in runs for payload in payloads]
    assert {payload.data for payload in found} == {b"%d/%d" % (n, turn) for n in range(50) for turn in range(20)}
    assert [int(payload.score) for payload in found] == sorted(turn for turn in range(20) for _ in range(50))


@pytest.mark.parametrize(("policy", "kept"), [("min", "3"), ("max", "5"), ("first", "5"), ("last", "3")])
def test_t32_a_payload_that_comes_back_meets_its_twin_under_the_score_policy(
    stage: Stage, policy: str, kept: str
) -> None:
    for ident in "ab":
        stage.add(ident, b"p", "5")
    a, b = stage.take()
    for ident in "ab":
        stage.add(ident, b"p", "3")
    ends = (fail(a, 1, 2, delay_ms=0), release(b, delay_ms=0))
    assert stage.settle(*(replace(end, score_policy=policy) for end in ends)) == [True, True]
    assert [payload.score for job in stage.take() for payload in job.payloads] == [kept, kept]


@pytest.mark.server
def test_t37_an_id_with_ten_thousand_payloads_does_not_hold_up_the_others(stage: Stage) -> None:
    stage.add_many("hot", 10_000)
    for n in range(100):
        stage.wait(1)
        stage.add(f"id{n}", b"p")
    assert commands(stage, lambda: stage.add("hot", b"late", "10000", max_payloads=10_001)) < 25

    runs: list[list[bytes]] = []
    between: list[int] = []
    while jobs := stage.take(10):
        runs.extend(data_of(job) for job in jobs if job.id == "hot")
        between.append(sum(job.id != "hot" for job in jobs))
        stage.wait(1)
        assert commands(stage, lambda: stage.done(*jobs)) < 60
    assert list(itertools.chain(*runs)) == [b"%03d" % n for n in range(10_000)] + [b"late"]
    assert max(map(len, runs)) == 250
    assert between[:10] == [9, 10, 10, 10, 10, 10, 10, 10, 10, 10], "what was due before the rest comes before it"
    assert stage.shard_is_empty()


DROPPED: dict[str, tuple[Callable[[Stage], object], int]] = {
    "replace": (lambda stage: stage.add("hot", b"new", on_conflict="replace"), 1),
    "cancel": (lambda stage: stage.queue.cancel("hot"), 0),
    "lower the limit": (lambda stage: stage.add("hot", b"new", "10000", payloads="last", max_payloads=1), 1),
    "run, and replace what is gated": (lambda stage: stage.add("hot", b"new", on_conflict="replace"), 251),
    "run, and cancel it": (lambda stage: stage.queue.cancel("hot"), 250),
}


@pytest.mark.parametrize("act", DROPPED)
@pytest.mark.server
def test_t37_ten_thousand_payloads_are_dropped_in_few_commands(stage: Stage, act: str) -> None:
    drop, left = DROPPED[act]
    stage.add_many("hot", 10_000)
    if act.startswith("run"):
        stage.take_one()
    assert commands(stage, lambda: drop(stage)) < 160
    assert stage.broker.client.hlen(stage.key("payload")) == left


def test_only_the_oldest_payload_is_buried_and_the_rest_is_tried_under_another_key(stage: Stage) -> None:
    stage.add("a", b"q", "2")
    stage.add("a", b"p", "1")
    job = stage.take_one()
    assert oldest_buried(stage, job)
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: q"], "morgue": ["a exhausted"]}
    assert stage.take_one().key not in {job.key, *(payload.key for payload in job.payloads)}


@pytest.mark.parametrize("end", [Stage.done, oldest_buried])
def test_what_was_too_much_for_one_run_is_tried_too_and_does_not_wait_for_what_came_during_it(
    stage: Stage, end: Callable[..., object]
) -> None:
    stage.add_many("a", 260)
    job = stage.take_one()
    assert data_of(job) == [b"%03d" % n for n in range(250)]
    stage.add("a", b"later", "999", at=3_600_000)
    end(stage, job)
    rest = stage.take_one()
    assert created_ms(rest.key) == created_ms(job.key) and rest.key != job.key
    if end is Stage.done:
        assert data_of(rest) == [*(b"%03d" % n for n in range(250, 260)), b"later"]
    else:
        assert data_of(rest) == [b"%03d" % n for n in range(1, 251)]
