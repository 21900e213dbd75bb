"""Merged tasks with real workers: the payloads of an id come together, in order, and never in two runs at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from django_delayq.core import bulk
from tests.support.seeds import seed_of_run

from .conftest import MakeMill
from .test_crashes import kill_one
from .world import Mill, until

#: s; what had ended so long before its process was killed had been acked
SETTLED = 2.0
NEVER = float("inf")


class Millers:
    """Producers. Each sends the payloads of its own ids, whose scores count 0, 1, 2 … without a gap."""

    def __init__(self, mill: Mill, task: str, ids: int, seed: int, count: int = 3) -> None:
        self.sent: Counter[str] = Counter()
        self._mill = mill
        self._task = task
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(random.Random(seed + number), range(number, ids, count)))
            for number in range(count)
        ]

    def __enter__(self) -> Millers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _produce(self, dice: random.Random, own: range) -> None:
        queue = self._mill.broker.queue(self._task)
        while not self._stop.wait(dice.choice((0, 0.004, 0.01))):
            jobs = []
            for _ in range(dice.choice((1, 1, 1, 30))):
                ident = f"id-{dice.choice(own)}"
                number = self.sent[ident]
                self.sent[ident] = number + 1
                delay = dice.choice((0, 0, 0, 150))
                jobs.append(self._mill.portion(self._task, ident, {"n": number}, number, delay_ms=delay))
            if len(jobs) == 1:
                assert queue.schedule(jobs[0]) in ("created", "merged", "gated")
            else:
                assert {"created", "merged", "gated"}.issuperset(queue.schedule_many(jobs))


@dataclass
class Campaign:
    """Results of a campaign of kills."""

    seed: int
    #: id -> number of its payloads
    sent: Counter[str]
    #: when which process was killed
    killed: dict[int, float]
    #: id -> its runs
    runs: dict[str, list[dict[str, Any]]]

    def __str__(self) -> str:
        runs = sum(map(len, self.runs.values()))
        return f"{self.sent.total()} payloads, {runs} runs, {len(self.killed)} processes killed, seed {self.seed}"


def kill_at_random(mill: Mill, task: str, *, ids: int, kills: int) -> Campaign:
    """Two nodes work, producers produce, processes are killed, one of the nodes too; until the queue is empty."""
    seed = seed_of_run()
    dice = random.Random(seed)
    queue = mill.broker.queue(task, shards=5)
    options = ("--processes", 2, "--threads", 4)
    nodes = [mill.start(*options, queues=task) for _ in range(2)]
    killed: dict[int, float] = {}
    with Millers(mill, task, ids, seed) as millers:
        for number in range(kills):
            node = nodes[number % 2].wait_ready(2)
            threading.Event().wait(dice.uniform(0, 0.5))  # a random moment is the point
            at = time.time()
            killed[kill_one(node, dice)] = at
        nodes[0].wait_ready(2)
        killed |= dict.fromkeys(nodes[0].children(), time.time())
        nodes[0].kill()  # its leases have to run out
        mill.start(*options, queues=task)

    def empty() -> bool:
        bulk.change(queue, bulk.RUN_NOW)  # a second crash of an id is not retried at once; do not wait for that
        counts = mill.counts(task)
        return counts.ready + counts.delayed + counts.reserved + counts.gated == 0

    until(empty, "an empty queue")
    campaign = Campaign(seed, millers.sent, killed, runs_by_id(mill))
    print(campaign)
    assert set(campaign.runs) == set(campaign.sent)
    return campaign


def test_runs_of_an_id_never_overlap_and_its_scores_never_go_back_whatever_is_killed(make_mill: MakeMill) -> None:
    mill = make_mill(lease=4.0)
    campaign = kill_at_random(mill, "blend", ids=200, kills=6)
    faults = {
        ident: fault
        for ident, sent in campaign.sent.items()
        if (fault := fault_of(campaign.runs[ident], campaign.killed, sent))
    }
    assert not faults, f"{campaign}: {faults}"
    assert mill.counts("blend").morgue == 0
    assert any(run["batch"] > 1 for runs in campaign.runs.values() for run in runs)


def test_each_payload_is_done_or_lies_in_the_morgue_whatever_is_killed(make_mill: MakeMill) -> None:
    mill = make_mill(lease=4.0)
    campaign = kill_at_random(mill, "crush", ids=60, kills=4)
    faults = {}
    for ident, sent in campaign.sent.items():
        surely, perhaps = done_by(campaign.runs[ident], campaign.killed)
        graves = mill.broker.inspector.graves("crush", ident)
        buried = Counter(int(payload.score) for grave in graves for payload in grave.payloads)
        twice = [score for score, times in (surely + buried).items() if times > 1]
        lost = set(range(sent)) - set(surely) - set(perhaps) - set(buried)
        if twice or lost:
            faults[ident] = {"twice": twice, "lost": lost}
    assert not faults, f"{campaign}: {faults}"
    assert mill.counts("crush").morgue > 0


def done_by(runs: list[dict[str, Any]], killed: dict[int, float]) -> tuple[Counter[int], Counter[int]]:
    """Count each score: surely done, and done by an attempt whose process died around its end."""
    surely: Counter[int] = Counter()
    perhaps: Counter[int] = Counter()
    for run in runs:
        if not run["failed"]:
            late = killed.get(run["pid"], NEVER) - run["end"] < SETTLED
            (perhaps if late else surely).update(run["scores"])
    return surely, perhaps


def runs_by_id(mill: Mill) -> dict[str, list[dict[str, Any]]]:
    """The runs of each id in the order of their starts, with ``end`` (None if there was none) and ``failed``."""
    ends = {(line["id"], line["token"]): line for line in mill.lines("end")}
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(mill.starts(), key=lambda line: line["at"]):
        end = ends.get((line["id"], line["token"]))
        run = {name: line[name] for name in ("pid", "token", "at", "scores", "payloads", "batch")}
        runs.setdefault(line["id"], []).append(
            {**run, "end": end and end["at"], "failed": end is None or end["failed"]},
        )
    return runs


def fault_of(runs: list[dict[str, Any]], killed: dict[int, float], sent: int) -> str:
    """Return the first fault in the attempts of an id that got the scores 0 … ``sent`` − 1, or "".

    Args:
        killed: when which process was killed.
    """
    #: the first score that no run has done; two possibilities after a run whose process died around its end
    following = {0}
    before: dict[str, Any] | None = None
    for number, run in enumerate(runs):
        scores = run["scores"]
        if before is not None:
            if before["token"] >= run["token"]:
                return f"run {number}: the token does not grow"
            if (before["end"] or NEVER) > run["at"] and killed.get(before["pid"], NEVER) > run["at"]:
                return f"run {number} began during the one before it"
        if scores[0] not in following or scores != list(range(scores[0], scores[0] + len(scores))):
            return f"run {number} has {scores}, and what follows is {following}"
        if [payload["n"] for payload in run["payloads"]] != scores:
            return f"run {number} has {scores}, but other payloads: {run['payloads']}"
        following = {scores[0]} if run["failed"] else {scores[-1] + 1}
        if not run["failed"] and killed.get(run["pid"], NEVER) - run["end"] < SETTLED:
            following.add(scores[0])
        before = run
    return "" if sent in following else f"{sent} payloads were sent, after the last run {following} follows"


def run_of(pid: int, at: float, *scores: int, end: float | None = None, failed: bool = False) -> dict[str, Any]:
    payloads = [{"n": score} for score in scores]
    return {
        "pid": pid,
        "token": at,
        "at": at,
        "end": end,
        "failed": failed or end is None,
        "scores": list(scores),
        "payloads": payloads,
    }


@pytest.mark.parametrize(
    ("runs", "fault"),
    [
        ([run_of(1, 10, 0, 1, end=11), run_of(1, 12, 2, end=13)], ""),
        ([run_of(1, 10, 0, 1, end=11, failed=True), run_of(1, 12, 0, 1, 2, end=13)], ""),
        ([run_of(9, 10, 0, 1), run_of(1, 21, 0, 1, 2, end=22)], ""),
        ([run_of(9, 10, 0, 1, end=19.9), run_of(1, 21, 0, 1, 2, end=22)], ""),
        ([run_of(9, 10, 0, 1, end=11), run_of(1, 21, 0, 1, 2, end=22)], "run 1 has"),
        ([run_of(1, 10, 0, 1, end=11), run_of(1, 12, 1, 2, end=13)], "run 1 has"),
        ([run_of(1, 10, 0, end=11), run_of(1, 12, 2, end=13)], "run 1 has"),
        ([run_of(1, 10, 1, 0, 2, end=11)], "run 0 has"),
        ([run_of(1, 10, 0, 1, end=12, failed=True), run_of(2, 11, 0, 1, 2, end=13)], "run 1 began"),
        ([run_of(9, 10, 0, 1), run_of(1, 19, 0, 1, 2, end=22)], "run 1 began"),
        ([run_of(1, 10, 0, 1, end=11)], "3 payloads were sent"),
    ],
)
def test_the_check_of_runs_finds_what_is_wrong(runs: list[dict[str, Any]], fault: str) -> None:
    found = fault_of(runs, {9: 20.0}, sent=3)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_t20_in_a_call_with_a_hundred_ids_the_one_that_fails_is_the_only_one_to_come_back(mill: Mill) -> None:
    ids = [f"id-{number}" for number in range(100)]
    for ident in ids:
        mill.add("knead_hundred", ident, "sour" if ident == "id-57" else "sweet", queue="hundred")
    mill.start("--threads", 2, queues="hundred")
    mill.wait_starts("id-57", 2)
    mill.wait_empty("hundred")
    assert mill.starts_by_id() == {**dict.fromkeys(ids, 1), "id-57": 2}
    assert [(line["batch"], line["attempt"]) for line in mill.starts("id-57")] == [(100, 1), (1, 2)]
    counters = mill.counts("hundred").counters
    assert (counters["acked"], counters["failed"]) == (100, 1)


def test_t37_while_an_id_with_ten_thousand_payloads_is_worked_on_the_others_are_done(mill: Mill) -> None:
    queue = mill.broker.queue("pour")
    gate = mill.gate()
    mill.add("pour", "hot", str(gate), -1, queue="pour")
    queue.schedule_many(mill.portion("pour", "hot", number, number) for number in range(9_999))
    others = [f"other-{number}" for number in range(500)]
    queue.schedule_many(mill.portion("pour", ident, 0, 0) for ident in others)
    mill.start("--threads", 2, queues="pour")
    mill.wait_starts("hot")
    mill.wait_ended(others)
    assert mill.lines("end", "hot") == []
    view = mill.view("hot", "pour")
    assert view is not None
    assert view.state == "reserved"
    gate.touch()
    mill.wait_empty("pour")
    hot = mill.lines("end", "hot")
    assert [score for line in hot for score in line["scores"]] == list(range(-1, 9_999))
    assert max(Counter(line["id"] for line in mill.starts() if line["id"] in others).values()) == 1


def test_a_hundred_queued_updates_of_an_order_cost_one_run(mill: Mill) -> None:
    outcomes = [mill.add("pour", "order-5", number, number, queue="pour") for number in range(100)]
    assert Counter(outcomes) == {"created": 1, "merged": 99}
    mill.start("--threads", 4, queues="pour")
    mill.wait_ended(["order-5"])
    (run,) = mill.starts("order-5")
    assert run["payloads"] == list(range(100))

    gate = mill.gate()
    mill.add("pour", "order-5", str(gate), 100, queue="pour")
    mill.wait_starts("order-5", 2)
    for number in reversed(range(101, 201)):
        assert mill.add("pour", "order-5", number, number, queue="pour") == "gated"
    gate.touch()
    mill.wait_empty("pour")
    assert [line["scores"] for line in mill.starts("order-5")] == [list(range(100)), [100], list(range(101, 201))]
    assert mill.counts("pour").counters["acked"] == 3


def test_exhausted_attempts_bury_the_oldest_payload_and_the_others_go_on(mill: Mill) -> None:
    stone = mill.gate("stone")
    for score, payload in enumerate((str(stone), 1, 2, 3), 1):
        mill.add("sift", "x", payload, score, queue="sift")
    mill.start("--threads", 2, queues="sift")
    mill.wait_ended(["x"])
    mill.wait_empty("sift")
    assert [(line["attempt"], line["scores"]) for line in mill.starts("x")] == [
        (1, [1, 2, 3, 4]),
        (2, [1, 2, 3, 4]),
        (1, [2, 3, 4]),
    ]
    (grave,) = mill.broker.inspector.graves("sift", "x")
    assert ([payload.score for payload in grave.payloads], grave.reason) == (["1"], "exhausted")

    stone.touch()
    assert mill.begin("retry", "--queue", "sift", "--id", "x", command="delayq_jobs").wait() == 0
    mill.wait_starts("x", 4)
    mill.wait_empty("sift")
    assert [(line["attempt"], line["payloads"]) for line in mill.starts("x")][3:] == [(1, [str(stone)])]
    assert mill.counts("sift").morgue == 0


def test_a_batch_size_of_ten_really_makes_calls_with_ten_ids(mill: Mill) -> None:
    ids = [f"id-{number}" for number in range(400)]
    mill.broker.queue("ten").schedule_many(mill.portion("knead_ten", ident, 0, 0) for ident in ids)
    mill.start("--threads", 3, queues="ten")
    mill.wait_empty("ten")
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    calls = Counter((line["token"], line["thread"], line["at"]) for line in mill.starts())
    assert max(calls.values()) == 10
    assert Counter(calls.values())[10] >= 35, Counter(calls.values())
