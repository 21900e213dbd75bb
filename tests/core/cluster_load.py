"""Load for cluster tests: producers in this process, and one worker process."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django_delayq.core import Broker, QueueUnavailable, RedisConfig, connect
from tests.acceptance.world import Mill
from tests.support.cluster_box import ClusterBox
from tests.support.event_entries import read_events
from tests.support.processes import wait_until
from tests.support.seeds import seed_of_run

SHARDS = 16
QUEUE = "default"


class Producer:
    """Producer that schedules short jobs in four threads, due now or a little later, until the block ends."""

    def __init__(self, mill: Mill) -> None:
        self.accepted: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.longest = 0.0
        self._mill = mill
        self._numbers = itertools.count()
        self._dice = random.Random(seed_of_run())
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._produce, daemon=True) for _ in range(4)]

    def __enter__(self) -> Producer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` more jobs were accepted."""
        goal = len(self.accepted) + count
        wait_until(lambda: len(self.accepted) >= goal, 30, f"{count} more jobs")

    def _produce(self) -> None:
        while not self._stop.wait(0.01):
            job = self._mill.job("grind", id=f"job-{next(self._numbers)}", delay_ms=self._dice.choice((0, 0, 100, 400)))
            began = time.monotonic()
            try:
                self._mill.broker.queue(QUEUE).schedule(job)
                self.accepted.append(job.id)
            except QueueUnavailable as error:
                self.refused.append((job.id, str(error)))
            self.longest = max(self.longest, time.monotonic() - began)


class ClusterMill(Mill):
    """Deployment on a cluster with one queue of 16 shards."""

    def __init__(self, cluster: ClusterBox, folder: Path) -> None:
        super().__init__(cluster.nodes[0].url, folder, REDIS=cluster.setting)
        self.broker.connection.close()
        self.broker = Broker(connect(RedisConfig.parse(cluster.setting)), prefix=self.prefix)
        self.broker.queue(QUEUE, shards=SHARDS)

    def slots(self, cluster: ClusterBox) -> list[int]:
        """Return the slots of the shards."""
        queue = self.broker.queue(QUEUE)
        return [cluster.slot_of(queue.shard(number).names["meta"]) for number in range(SHARDS)]

    def unexplained(self, ids: list[str]) -> dict[str, int]:
        """Return the number of attempts of each job that never ran, or ran more often than recorded causes explain."""
        causes: Counter[str] = Counter()
        for number in range(SHARDS):
            found = read_events(self.broker, QUEUE, number, limit=20_000)
            causes.update(event.id for event in found if event.outcome in ("crashed", "lost", "released"))
        starts = self.starts_by_id()
        return {ident: starts[ident] for ident in {*ids, *starts} if not 1 <= starts[ident] <= 1 + causes[ident]}


@contextmanager
def at_work(cluster: ClusterBox, folder: Path) -> Iterator[ClusterMill]:
    """Provide a deployment with one worker process; at the end wait until the queue is empty, and check it."""
    with ClusterMill(cluster, folder) as mill:
        mill.start("--threads", 4)
        yield mill
        mill.wait_empty(QUEUE)
        mill.check()
