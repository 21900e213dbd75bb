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
#: task -> number of its ids
TASKS = {"blend": 200, "crush": 60}


class Millers:
    """Producers. Each sends the payloads of its own ids, whose scores count 0, 1, 2 … without a gap."""

    def __init__(self, mill: Mill, task: str, seed: int, count: int = 3) -> None:
        self.sent: Counter[str] = Counter()
        self._mill = mill
        self._task = task
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._produce, args=(random.Random(seed + number), range(number, TASKS[task], count))
            )
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
        while not self._stop.wait(dice.choice((0.002, 0.01, 0.02))):
            jobs = []
            for _ in range(dice.choice((1, 1, 1, 30))):
                ident = f"{self._task}-{dice.choice(own)}"
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


def kill_at_random(mill: Mill, *, kills: int) -> Campaign:
    """Two nodes work, producers produce, processes are killed, one of the nodes too; until the queues are empty."""
    seed = seed_of_run()
    dice = random.Random(seed)
    queues = [mill.broker.queue(task, shards=5) for task in TASKS]
    options = ("--processes", 2, "--threads", 4)
    nodes = [mill.start(*options, queues=",".join(TASKS)) for _ in range(2)]
    killed: dict[int, float] = {}
    with Millers(mill, "blend", seed) as blended, Millers(mill, "crush", seed) as crushed:
        for number in range(kills):
            node = nodes[number % 2].wait_ready(2)
            threading.Event().wait(dice.uniform(0, 0.5))  # a random moment is the point
            at = time.time()
            killed[kill_one(node, dice)] = at
        nodes[0].wait_ready(2)
        killed |= dict.fromkeys(nodes[0].children(), time.time())
        nodes[0].kill()  # its leases have to run out
        mill.start(*options, queues=",".join(TASKS))

    def empty() -> bool:
        for queue in queues:
            bulk.change(queue, bulk.RUN_NOW)  # a second crash of an id is not retried at once; do not wait for that
        counts = [mill.counts(task) for task in TASKS]
        return not any(count.ready + count.delayed + count.reserved + count.gated for count in counts)

    until(empty, "empty queues")
    campaign = Campaign(seed, blended.sent + crushed.sent, killed, runs_by_id(mill))
    print(campaign)
    assert set(campaign.runs) == set(campaign.sent)
    return campaign


def test_runs_of_an_id_never_overlap_and_its_scores_never_go_back_whatever_is_killed(make_mill: MakeMill) -> None:
    """Each payload is done, or lies in the morgue if its task gives up so soon."""
    mill = make_mill(lease=4.0)
    campaign = kill_at_random(mill, kills=6)
    faults = {}
    for ident, sent in campaign.sent.items():
        runs, graves = campaign.runs[ident], mill.broker.inspector.graves("crush", ident)
        buried = Counter(int(payload.score) for grave in graves for payload in grave.payloads)
        if ident.startswith("blend"):
            faults[ident] = fault_of(runs, campaign.killed, sent)
        else:
            faults[ident] = lost_or_twice(runs, campaign.killed, sent, buried)
    faults = {ident: fault for ident, fault in faults.items() if fault}
    assert not faults, f"{campaign}: {faults}"
    assert mill.counts("blend").morgue == 0
    assert mill.counts("crush").morgue > 0
    assert any(run["batch"] > 1 for runs in campaign.runs.values() for run in runs)


def lost_or_twice(runs: list[dict[str, Any]], killed: dict[int, float], sent: int, buried: Counter[int]) -> str:
    """Return which of the scores 0 … ``sent`` − 1 were neither done nor buried, and which were both or twice, or ""."""
    surely = Counter(buried)
    perhaps: set[int] = set()  # done by an attempt whose process died around its end
    for run in runs:
        if not run["failed"]:
            late = killed.get(run["pid"], NEVER) - run["end"] < SETTLED
            (perhaps if late else surely).update(run["scores"])
    twice = [score for score, times in surely.items() if times > 1]
    lost = set(range(sent)) - set(surely) - perhaps
    return f"twice {twice}, lost {lost}" if twice or lost else ""


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
