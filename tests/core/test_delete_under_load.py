"""Deletion of jobs while producers push: a payload is deleted with its job, or is not lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, NewJob, Payload, Queue, fail
from tests.support.core_stored import assert_invariants
from tests.support.core_values import new_key

from .bulk_stage import CANCEL, JobFilter, cancel_all, change, delete_failed

SECONDS = 2.0
#: deletions at least, on a machine that gets that far in MOST_SECONDS
DELETIONS = 21
MOST_SECONDS = 60.0


class Producer(threading.Thread):
    """Thread that is the only producer of its ids. A push that creates its job begins a new list of payloads."""

    def __init__(self, queue: Queue, idents: list[str], stop: threading.Event) -> None:
        super().__init__()
        self.queue = queue
        self.stop = stop
        self.expected: dict[str, list[bytes]] = {ident: [] for ident in idents}
        self.created = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.stop.is_set():
                number += 1
                for ident in self.expected:
                    self.push(ident, number)
        except BaseException as error:
            self.error = error

    def push(self, ident: str, number: int) -> None:
        data = b"%06d" % number
        payload = Payload(data, str(number), new_key())
        outcome = self.queue.schedule(
            NewJob(ident, "sync", payload=payload, on_conflict="merge", due_policy="keep", max_payloads=100_000)
        )
        assert outcome in ("created", "merged", "gated"), outcome
        if outcome == "created":
            self.created += 1
            self.expected[ident] = []
        self.expected[ident].append(data)


def work(queue: Queue, stop: threading.Event) -> None:
    """Fail every job, so that there is always something to delete."""
    while not stop.is_set():
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 4, worker="w").jobs]
        queue.settle([fail(job, 1, 2, delay_ms=50) for job in jobs])


def under_load(
    queue: Queue, operate: Callable[[], dict[str, int]], outcome: str
) -> tuple[list[Producer], Counter[str]]:
    """Call ``operate`` again and again beside two producers and a worker; return the producers and the counts.

    It ends after ``SECONDS``, or later, with the first ``DELETIONS`` jobs that have this outcome.
    """
    stop = threading.Event()
    producers = [Producer(queue, [f"{name}-{n}" for n in range(4)], stop) for name in "ab"]
    worker = threading.Thread(target=work, args=(queue, stop))
    for thread in (*producers, worker):
        thread.start()
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < SECONDS or (counts[outcome] < DELETIONS and took < MOST_SECONDS):
        counts.update(operate())
    stop.set()
    for thread in (*producers, worker):
        thread.join()
    assert [producer.error for producer in producers] == [None, None]
    return producers, counts


def cancel_matching(queue: Queue) -> Counter[str]:
    return change(queue, CANCEL, JobFilter(task="sync")).counts


@pytest.mark.parametrize(
    ("operate", "outcome"),
    [(delete_failed, "deleted"), (cancel_all, "cancelled"), (cancel_matching, "cancelled")],
)
def test_t19_a_payload_pushed_while_its_id_is_deleted_is_not_lost(
    broker: Broker, operate: Callable[[Queue], dict[str, int]], outcome: str
) -> None:
    queue = broker.queue("q", shards=2)
    producers, counts = under_load(queue, lambda: operate(queue), outcome)
    assert_invariants(broker)
    expected = {ident: payloads for producer in producers for ident, payloads in producer.expected.items()}
    found = {ident: [payload.data for payload in broker.inspector.payloads("q", ident)] for ident in expected}
    # Each deletion of a job lets the next push create it. Behind the last one nothing may be missing.
    living = {ident for ident, payloads in found.items() if payloads}
    assert counts[outcome] >= DELETIONS, "the deletions met the load"
    assert sum(producer.created for producer in producers) == counts[outcome] + len(living)
    assert {ident: found[ident] for ident in living} == {ident: expected[ident] for ident in living}
