"""Merged jobs: retention and order of payloads, and the handling of failed ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload, QueueFull, ack, fail, release
from tests.support.core_stored import assert_invariants, check_stored
from tests.support.core_values import new_key

from .stage import LEASE, T0, Stage, data_of
from .world import unchanged

HOURS_45 = 45 * 3_600_000


def commands(stage: Stage, call: Callable[[], Any]) -> int:
    """Return the number of Redis commands of a call, including those inside its scripts."""

    def seen() -> int:
        # Not `info` itself, nor the calls of scripts.
        stats = stage.broker.client.info("commandstats")
        return sum(of["calls"] for name, of in stats.items() if "info" not in name and "eval" not in name)

    before = seen()
    call()
    return seen() - before


# --- the scenarios


def test_t06_a_payload_that_comes_during_the_run_runs_afterwards_exactly_once(stage: Stage) -> None:
    stage.add("x", b"first")
    job = stage.take_one()
    assert stage.add("x", b"second") == "gated"
    assert stage.add("x", b"first", "1") == "gated"
    assert not stage.take(), "never beside the first run"
    stage.done(job)
    again = stage.take_one()
    assert data_of(again) == [b"second", b"first"]
    stage.done(again)
    assert not stage.take()
    assert stage.shard_is_empty()


def test_t07_after_a_failed_run_all_payloads_are_there_in_the_order_of_their_scores(stage: Stage) -> None:
    stage.add("x", b"2", "2")
    stage.add("x", b"4", "4")
    job = stage.take_one()
    for score in ("5", "1", "3"):
        stage.add("x", score.encode(), score)
    stage.failed(job, HOURS_45)
    assert data_of(stage.take_one()) == [b"1", b"2", b"3", b"4", b"5"]


def test_t08_of_a_thousand_payloads_by_fifty_producers_each_is_kept(broker: Broker) -> None:
    queue = broker.queue("q")
    start = threading.Barrier(50)

    def produce(number: int) -> list[str]:
        start.wait()
        return [
            queue.schedule(
                NewJob(
                    "x",
                    "sync",
                    on_conflict="merge",
                    due_policy="keep",
                    payload=Payload(b"%d/%d" % (number, turn), str(turn), new_key()),
                )
            )
            for turn in range(20)
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


def test_t31_a_corrected_payload_does_not_wait_out_a_back_off_of_45_hours(stage: Stage) -> None:
    stage.add("a", b"wrong", "1")
    stage.failed(stage.take_one(), HOURS_45)
    stage.wait(5000)
    stage.add("a", b"right", "2")
    assert data_of(stage.take_one()) == [b"wrong", b"right"]


def test_t31_nor_does_one_that_came_during_the_run_that_failed(stage: Stage) -> None:
    stage.add("a", b"wrong", "1")
    job = stage.take_one()
    stage.add("a", b"right", "2", at=70)
    stage.failed(job, HOURS_45)
    assert stage.picture() == {"waiting": ["a +70"], "payloads": ["a: wrong right"], "failed": ["a x1"]}


def test_t31_who_wants_the_back_off_to_be_kept_says_inherit(stage: Stage) -> None:
    stage.add("a", b"wrong", "1")
    job = stage.take_one()
    stage.add("a", b"right", "2")
    stage.settle(replace(fail(job, 1, 2, delay_ms=HOURS_45), inherit=True))
    stage.wait(100_000)
    stage.add("a", b"righter", "3", due_policy="inherit")
    assert stage.picture() == {
        "waiting": [f"a +{HOURS_45}"],
        "payloads": ["a: wrong right righter"],
        "failed": ["a x1"],
    }


@pytest.mark.parametrize("scores", [("1", "3"), ("3", "1"), ("2", "2")])
def test_t32_of_equal_payloads_the_lowest_score_stays_in_any_order(stage: Stage, scores: tuple[str, str]) -> None:
    for score in scores:
        stage.add("a", b"p", score)
    (payload,) = stage.take_one().payloads
    assert payload.score == min(scores)


@pytest.mark.server
def test_t37_an_id_with_ten_thousand_payloads_does_not_hold_up_the_others(stage: Stage) -> None:
    hot = [
        NewJob("hot", "sync", on_conflict="merge", due_policy="keep", payload=Payload(b"%d" % n, str(n), new_key()))
        for n in range(10_000)
    ]
    assert stage.queue.count_many(hot) == {"created": 1, "merged": 9_999}
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
    assert list(itertools.chain(*runs)) == [b"%d" % n for n in range(10_000)] + [b"late"]
    assert max(map(len, runs)) == 250
    assert between[:10] == [9, 10, 10, 10, 10, 10, 10, 10, 10, 10], "what was due before the rest comes before it"
    assert stage.shard_is_empty()


@pytest.mark.parametrize("act", ["replace", "cancel", "lower the limit", "replace what is gated", "cancel a run"])
@pytest.mark.server
def test_t37_ten_thousand_payloads_are_dropped_in_few_commands(stage: Stage, act: str) -> None:
    news = [
        NewJob("hot", "sync", on_conflict="merge", due_policy="keep", payload=Payload(b"%d" % n, str(n), new_key()))
        for n in range(10_000)
    ]
    stage.queue.schedule_many(news)
    if act in ("replace what is gated", "cancel a run"):
        stage.take_one()
    make: dict[str, Callable[[], Any]] = {
        "replace": lambda: stage.add("hot", b"new", on_conflict="replace"),
        "cancel": lambda: stage.queue.cancel("hot"),
        "lower the limit": lambda: stage.add("hot", b"new", "10000", payloads="last", max_payloads=1),
        "replace what is gated": lambda: stage.add("hot", b"new", on_conflict="replace"),
        "cancel a run": lambda: stage.queue.cancel("hot"),
    }
    assert commands(stage, make[act]) < 160
    left = stage.picture().get("payloads", [""])[0]
    assert (
        len(left.split())
        == {"replace": 2, "cancel": 0, "lower the limit": 2, "replace what is gated": 253, "cancel a run": 251}[act]
    )


# --- which payloads are kept


def test_a_payload_beyond_the_limit_is_refused_and_changes_nothing(stage: Stage) -> None:
    for data in (b"p", b"q"):
        stage.add("a", data, at=500, max_payloads=2)
    with unchanged(stage.broker), pytest.raises(QueueFull, match=r"max_payloads \(2\)"):
        stage.add("a", b"r", at=1, priority=0, due_policy="replace", max_payloads=2)


def test_an_equal_payload_is_merged_even_at_the_limit(stage: Stage) -> None:
    stage.add("a", b"p", "5", max_payloads=1)
    assert stage.add("a", b"p", "3", max_payloads=1) == "merged"
    (payload,) = stage.take_one().payloads
    assert payload.score == "3"


def test_payloads_in_flight_do_not_count_for_the_limit(stage: Stage) -> None:
    for data in (b"p", b"q"):
        stage.add("a", data, max_payloads=2)
    job = stage.take_one()
    for data in (b"r", b"p"):
        assert stage.add("a", data, "1", max_payloads=2) == "gated"
    with unchanged(stage.broker), pytest.raises(QueueFull):
        stage.add("a", b"s", max_payloads=2)
    stage.done(job)
    assert stage.picture()["payloads"] == ["a: r p"]


@pytest.mark.parametrize(("policy", "kept"), [("last", "b c"), ("first", "n a")])
def test_only_so_many_payloads_are_kept_by_their_scores(stage: Stage, policy: str, kept: str) -> None:
    outcomes = [
        stage.add("x", data.encode(), score, payloads=policy, max_payloads=2)
        for data, score in (("b", "20"), ("a", "10"), ("c", "30"), ("n", "-1"))
    ]
    assert (
        outcomes
        == {"last": ["created", "merged", "merged", "ignored"], "first": ["created", "merged", "ignored", "merged"]}[
            policy
        ]
    )
    assert stage.picture()["payloads"] == [f"x: {kept}"]


def test_of_equal_scores_the_later_one_is_the_last(stage: Stage) -> None:
    for data in (b"p", b"q"):
        stage.add("a", data, payloads="last", max_payloads=1)
        stage.add("b", data, payloads="first", max_payloads=1)
    assert stage.picture()["payloads"] == ["a: q", "b: p"]


def test_a_payload_that_is_not_kept_moves_nothing(stage: Stage) -> None:
    stage.add("a", b"p", "5", at=500, payloads="last", max_payloads=1)
    with unchanged(stage.broker):
        assert (
            stage.add("a", b"q", "4", at=1, priority=0, due_policy="replace", payloads="last", max_payloads=1)
            == "ignored"
        )


@pytest.mark.parametrize(("policy", "kept"), [("last", "s t"), ("first", "o p")])
def test_a_limit_that_was_lowered_holds_from_the_next_payload_on(stage: Stage, policy: str, kept: str) -> None:
    for score, data in enumerate("pqrst"):
        stage.add("a", data.encode(), str(score))
    new = {"last": ("t", "4"), "first": ("o", "-1")}[policy]
    assert stage.add("a", new[0].encode(), new[1], payloads=policy, max_payloads=2) == "merged"
    assert stage.picture()["payloads"] == [f"a: {kept}"]


@pytest.mark.parametrize(
    ("policy", "outcome", "kept"),
    [
        ("all", "merged", "p q r"),
        ("last", "merged", "q r"),
        ("first", "ignored", "p q r"),
    ],
)
def test_an_equal_payload_meets_a_limit_that_was_lowered(stage: Stage, policy: str, outcome: str, kept: str) -> None:
    for score, data in (("1", b"p"), ("2", b"q"), ("3", b"r")):
        stage.add("a", data, score)
    assert stage.add("a", b"r", "2.5", payloads=policy, max_payloads=2) == outcome
    assert stage.picture()["payloads"] == [f"a: {kept}"]


@pytest.mark.parametrize("policy", ["last", "first"])
def test_what_a_run_has_in_its_hands_is_never_dropped(stage: Stage, policy: str) -> None:
    for score, data in enumerate("pqr"):
        stage.add("a", data.encode(), str(score * 10))
    stage.take()
    outcomes = [
        stage.add("a", data.encode(), score, payloads=policy, max_payloads=1)
        for data, score in (("s", "15"), ("t", "5"), ("u", "25"))
    ]
    assert outcomes == ["gated", *{"last": ("ignored", "gated"), "first": ("gated", "ignored")}[policy]]
    assert stage.picture()["payloads"] == [f"a: p q r | {'u' if policy == 'last' else 't'}"]


def test_a_limit_is_one_or_more(stage: Stage) -> None:
    with unchanged(stage.broker), pytest.raises(InvalidJob, match="use 1 or more"):
        stage.add("a", b"p", max_payloads=0)


# --- a payload without a score


def test_a_payload_without_a_score_has_the_moment_of_its_arrival(stage: Stage) -> None:
    stage.wait(0.001)
    stage.add("a", b"q", "")
    stage.add("a", b"later", f"{(T0 + 1) / 1000:.6f}")
    stage.add("a", b"earlier", str(T0 // 1000))
    stage.wait(0.001)
    stage.add("a", b"r", "")
    payloads = stage.take_one().payloads
    assert [payload.data for payload in payloads] == [b"earlier", b"q", b"r", b"later"]
    assert [payload.score for payload in payloads] == [
        "1700000000",
        "1700000000.000001",
        "1700000000.000002",
        "1700000000.001000",
    ]


def test_payloads_of_one_moment_keep_the_order_of_the_calls(stage: Stage) -> None:
    for data in (b"c", b"a", b"b"):
        stage.add("x", data, "")
    assert data_of(stage.take_one()) == [b"c", b"a", b"b"]


# --- the end of a run


@pytest.mark.parametrize(("policy", "kept"), [("min", "3"), ("max", "5"), ("first", "5"), ("last", "3")])
@pytest.mark.parametrize("verb", ["fail", "release"])
def test_a_payload_that_comes_back_meets_its_twin_under_the_score_policy(
    stage: Stage, verb: str, policy: str, kept: str
) -> None:
    stage.add("a", b"p", "5")
    job = stage.take_one()
    stage.add("a", b"p", "3")
    ended = fail(job, 1, 2, delay_ms=0) if verb == "fail" else release(job, delay_ms=0)
    stage.settle(replace(ended, score_policy=policy))
    (payload,) = stage.take_one().payloads
    assert payload.score == kept


def test_a_united_job_has_the_priority_that_was_asked_for_last(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"q", priority=0)
    stage.failed(job, 10)
    assert stage.picture()["waiting"] == ["a +0 p0"]


def test_a_released_job_keeps_its_place_if_that_is_inherited(stage: Stage) -> None:
    stage.add("a", b"p", at=0)
    job = stage.take_one()
    stage.add("a", b"q", at=-10)
    stage.settle(replace(release(job), inherit=True))
    assert stage.picture()["waiting"] == ["a +0"]


# --- limits of one run


def test_a_run_gets_no_more_bytes_than_a_reply_can_bear_and_the_rest_runs_next(stage: Stage) -> None:
    for n in range(60):
        stage.add("a", b"%02d" % n + b"x" * 200_000, str(n))
    seen: list[bytes] = []
    while jobs := stage.take():
        (job,) = jobs
        assert len(job.payloads) in (25, 10)
        seen += [payload.data[:2] for payload in job.payloads]
        stage.done(job)
    assert seen == [b"%02d" % n for n in range(60)]
    assert stage.shard_is_empty()


# --- damage


@pytest.mark.broken_on_purpose
def test_payloads_behind_a_run_get_their_gate_back(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"q")
    stage.broker.client.delete(stage.key("gate"))
    assert "payloads behind run without gate" in check_stored(stage.broker, repair=True).violations[0]
    assert_invariants(stage.broker)
    stage.done(job)
    assert data_of(stage.take_one()) == [b"q"]


@pytest.mark.broken_on_purpose
def test_a_gate_with_nothing_behind_it_is_taken_away(stage: Stage) -> None:
    stage.add("a", b"p")
    stage.take()
    body = stage.broker.client.hget(stage.key("body"), "a")
    stage.broker.client.hset(stage.key("gate"), "a", bytes(8) + body)
    assert "gate without payload" in check_stored(stage.broker, repair=True).violations[0]
    assert stage.picture() == {"reserved": [f"a by w until +{LEASE}"], "payloads": ["a: p"]}
    assert_invariants(stage.broker)
