"""Twenty programs on one server: nothing is lost, nothing is in two hands at once, and the counts add up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from django_delayq.api.settle import read_lease
from django_delayq.core.job import NewJob
from tests.support.processes import wait_until
from tests.support.reaping import reaping

from .stage import PATIENCE, Server

JOBS = 2000
CLIENTS = 20
#: s; a client that dies leaves its jobs for so long
SHORT = 3.0


@dataclass
class Ledger:
    """Observations of all clients together."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    #: job → until when (Redis's clock, ms) it is in somebody's hands
    held: dict[str, float] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    uncounted: list[str] = field(default_factory=list)

    def take(self, job: dict[str, Any], ttr: float) -> None:
        taken_ms = read_lease(job["lease"]).taken_ms
        with self.lock:
            # Of a job that comes again before its lease is over somebody else has the lease.
            if self.held.get(job["id"], 0.0) > taken_ms:
                self.twice.append(job["id"])
            self.held[job["id"]] = taken_ms + ttr * 1000

    def give(self, job: dict[str, Any]) -> None:
        """Before its end is sent: from then on it may be in other hands."""
        with self.lock:
            self.held.pop(job["id"], None)


def client(server: Server, ledger: Ledger, number: int, finished: threading.Event) -> None:
    dice = random.Random(number)
    with closing(server.program()) as program:
        while not finished.is_set():
            dies = dice.random() < 0.05
            ttr = SHORT if dies else 60.0
            asked = {"max": dice.choice([1, 5, 25, 100]), "wait": 1, "ttr": ttr, "worker": f"c{number}"}
            jobs = program.post("reserve", asked, queue="wide")["jobs"]
            for job in jobs:
                ledger.take(job, ttr)
            if dies and all(job["attempt"] == 1 for job in jobs):  # after a second crash a job waits for long
                with ledger.lock:
                    ledger.ends["died"] += len(jobs)
                continue
            if dies:
                touched = program.post("touch", {"jobs": [entry(job, ttr=60) for job in jobs]}, queue="wide")["results"]
                assert {one["held"] for one in touched} == {True}
            by_verb: dict[str, list[dict[str, Any]]] = {}
            for job in jobs:
                by_verb.setdefault(dice.choice(["ack"] * 8 + ["fail", "release"]), []).append(job)
            for verb, mine in by_verb.items():
                settle(program, ledger, verb, mine)
            if sum(ledger.done.values()) >= JOBS:
                finished.set()


def entry(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": job["id"], "lease": job["lease"], **more}


def settle(program: Any, ledger: Ledger, verb: str, jobs: list[dict[str, Any]]) -> None:
    more: dict[str, Any] = {"fail": {"error": "dice", "delay": 0.05}, "release": {"delay": 0.05}, "ack": {}}[verb]
    for job in jobs:
        ledger.give(job)
    results = program.post(verb, {"jobs": [entry(job, **more) for job in jobs]}, queue="wide")["results"]
    with ledger.lock:
        for one in results:
            if not one["counted"]:
                ledger.uncounted.append(one["id"])
            elif verb == "ack":
                ledger.done[one["id"]] += 1
            ledger.ends[verb] += one["counted"]


def test_twenty_clients_share_two_thousand_jobs(asgi: Server) -> None:
    queue = asgi.broker.queue("wide")
    before = asgi.broker.inspector.counts("wide").counters
    jobs = [NewJob(f"n{number}", "raw", b"%d" % number) for number in range(JOBS)]
    assert set(queue.schedule_many(jobs)) == {"created"}
    ledger, finished = Ledger(), threading.Event()
    with reaping(asgi.broker, "wide"), ThreadPoolExecutor(CLIENTS) as team:
        running = [team.submit(client, asgi, ledger, number, finished) for number in range(CLIENTS)]
        began = time.monotonic()
        while not finished.wait(0.2) and time.monotonic() - began < 4 * PATIENCE:
            if any(one.done() and one.exception() for one in running):
                break
        finished.set()
    for one in running:
        one.result()
    wait_until(lambda: asgi.places("wide") == {}, PATIENCE, "an empty queue")
    assert ledger.twice == [] and ledger.uncounted == []
    assert ledger.done == Counter({job.id: 1 for job in jobs}), "each was done once"
    assert min(ledger.ends.values()) > 0 and set(ledger.ends) == {"ack", "fail", "release", "died"}
    now = asgi.broker.inspector.counts("wide").counters
    change = Counter(now)
    change.subtract(before)
    assert (change["acked"], change["failed"], change["crashed"], change["late"]) == (
        JOBS,
        ledger.ends["fail"],
        ledger.ends["died"],
        0,
    )
    assert change["reserved"] == sum(ledger.ends.values())
