"""T34 with real workers: the number of shards changes under load, and nobody stops, loses or overtakes anything."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import bury, fail
from django_delayq.core.redis.connection import RedisConfig, connect

from .conftest import MakeMill
from .world import Mill, until

IDS_EACH = 8
PORTIONS = 250
#: s; the change itself takes milliseconds, the rest is for a slow machine
LONGEST_STOP = 2.0


class Producer(threading.Thread):
    """A process of its own as far as the queue is concerned: it hears of a change only from the shards."""

    def __init__(self, mill: Mill, number: int, pace: threading.Barrier) -> None:
        super().__init__()
        self.mill, self.number, self.pace = mill, number, pace
        self.ids = [f"id-{number}-{n}" for n in range(IDS_EACH)]
        self.longest = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        connection = connect(RedisConfig.parse(self.mill.url))
        try:
            queue = Broker(connection, prefix=self.mill.prefix).queue("blend")
            for score in range(PORTIONS):
                if score % (PORTIONS // 5) == 0:
                    self.pace.wait(60)  # so that every change falls into the middle of the work
                jobs = [self.mill.portion("blend", ident, score, score) for ident in self.ids]
                began = time.monotonic()
                if score % 3:
                    assert {queue.schedule(job) for job in jobs} <= {"created", "merged", "gated"}
                else:
                    assert set(queue.schedule_many(jobs)) <= {"created", "merged", "gated"}
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException as error:
            self.error = error
            self.pace.abort()
        finally:
            connection.close()


def seed(mill: Mill) -> None:
    """One in the morgue and one that has failed and waits for long, before the change."""
    queue = mill.broker.queue("blend", shards=5)
    for ident in ("dead", "failed"):
        mill.add("blend", ident, f"portion of {ident}", queue="blend")
        (job,) = queue.reserve_id(ident, worker="test").jobs
        end = bury(job, 1, 2, reason="why") if ident == "dead" else fail(job, 1, 2, delay_ms=3_600_000)
        assert queue.settle([end]) == [True]


def runs_of(mill: Mill) -> dict[str, list[dict[str, Any]]]:
    """The lines of each id, in the order in which they were written."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in mill.lines():
        found[line["id"]].append(line)
    return found


def test_t34_the_number_of_shards_changes_under_load(make_mill: MakeMill) -> None:
    mill = make_mill(lease=3.0)
    seed(mill)
    mill.start("--processes", 2, "--threads", 3, queues="blend")
    pace = threading.Barrier(5)
    producers = [Producer(mill, number, pace) for number in range(4)]
    for producer in producers:
        producer.start()
    for shards in (0, 12, 3, 7, 0):
        pace.wait(60)
        if shards:
            until(lambda: len(mill.starts()) > 20, "work that is going on")
            mill.broker.reshard("blend", shards)
    for producer in producers:
        producer.join(60)
        assert producer.error is None
    until(lambda: all(done(mill, ident) for producer in producers for ident in producer.ids), "all portions", 90)

    assert [shards for _, shards in mill.broker.queue("blend").epochs][-1] == 7
    for ident, lines in runs_of(mill).items():
        assert [line["event"] for line in lines] == ["start", "end"] * (len(lines) // 2), f"runs of {ident} overlap"
        assert all(one["token"] < two["token"] for one, two in pairwise(lines[::2])), "tokens grow from run to run"
        portions = [portion for line in lines[1::2] if not line["failed"] for portion in line["payloads"]]
        assert portions == list(range(PORTIONS)), f"{ident} got each portion once, in order"
    assert max(producer.longest for producer in producers) < LONGEST_STOP
    view = mill.view("failed", "blend")
    assert view is not None
    assert (view.state, view.job.failures, view.payload_count) == ("delayed", 1, 1)
    dead = mill.buried("dead", "blend")
    assert [payload.score for payload in dead.payloads] == ["1"]
    assert mill.broker.queue("blend").kick("dead") == "kicked"
    until(
        lambda: [line for line in mill.lines("end", "dead") if not line["failed"]], "the end of the one from the morgue"
    )


def done(mill: Mill, ident: str) -> bool:
    return sum(len(line["payloads"]) for line in mill.lines("end", ident) if not line["failed"]) >= PORTIONS
