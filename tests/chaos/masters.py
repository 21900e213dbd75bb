"""Campaign on a cluster: masters die and come back under load, and the jobs of the others start all the same."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django_delayq.core import fsck
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.acceptance.world import Mill, until
from tests.support.cluster_box import ClusterBox
from tests.support.redis_box import RedisBox

from .history import Limit, Promise, exceeded, violations

QUEUES = tuple(f"q{number}" for number in range(18))
PRODUCERS = 6
#: s; how late a job of a living master may start while another master is gone
LATE_SECONDS = 5.0
DOWN_SECONDS = (3.0, 6.0)
DRAIN_SECONDS = 60.0
#: that of a worker without the setting
LEASE_SECONDS = 15.0
#: of a group in each queue
LIMIT = Limit(2, rate=10.0, burst=3)


@dataclass(frozen=True, slots=True)
class Outage:
    """Time in which a master was gone, by the wall clock."""

    node: RedisBox
    began: float
    ended: float


class Masters:
    """Deployment on three masters, with two workers and producers of a few jobs into each of many queues."""

    def __init__(self, cluster: ClusterBox, folder: Path, dice: random.Random) -> None:
        self.promises: list[Promise] = []
        self.accepted: dict[str, tuple[str, float]] = {}
        self.refused = 0
        self.outages: list[Outage] = []
        self.errors: list[BaseException] = []
        self.cluster = cluster
        setting = {**cluster.setting, "SOCKET_TIMEOUT": 1.0, "RETRIES": 1}
        self.mill = Mill(cluster.nodes[0].url, folder, REDIS=setting)
        self.mill.broker.connection.close()
        self.mill.broker = Broker(connect(RedisConfig.parse(setting)), prefix=self.mill.prefix)
        self.nodes = {name: cluster.node_of(self._queue(name).present[0].keys[0]) for name in QUEUES}
        #: node with the permits of all limits: while it is gone, no job of a group starts
        self.limiter = cluster.node_of(self.mill.broker.key("").encode())
        self._dice = dice
        self._stop = threading.Event()

    def _queue(self, name: str):  # type: ignore[no-untyped-def]
        return self.mill.broker.queue(name)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Schedule jobs as long as the block lasts."""
        seeds = [self._dice.random() for _ in range(PRODUCERS)]
        threads = [threading.Thread(target=self._produce, args=(number, seeds[number])) for number in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)

    def _produce(self, number: int, seed: float) -> None:
        dice, made = random.Random(seed), 0
        try:
            while not self._stop.wait(0.05):
                made += 1
                name, due = dice.choice(QUEUES), time.time() + dice.choice((0.0, 0.5, 2.0))
                group, options = dice.choice([("", b""), ("", b""), ("x", b'{"group_limits":[2,100000,3,1]}')])
                ident, due_ms = f"p{number}-{made}", int(due * 1000)
                new = self.mill.job("grind_on", 0.01, id=ident, due_ms=due_ms, group=group, options=options)
                try:
                    self._queue(name).schedule(new)
                except QueueUnavailable:
                    self.refused += 1  # perhaps it was stored: it may run, and need not
                    continue
                self.accepted[new.id] = name, time.time()
                self.promises.append(Promise(new.id, due_ms / 1000, limits=(f"{name}:{group}",) if group else ()))
        except BaseException as error:
            self.errors.append(error)

    def strike(self) -> None:
        """Kill a master, or let it stand still, for some seconds."""
        node, began = self._dice.choice(self.cluster.nodes), time.time()
        killed = self._dice.random() < 0.7
        (node.kill if killed else node.pause)()
        time.sleep(self._dice.uniform(*DOWN_SECONDS))
        (node.start if killed else node.resume)()
        # It serves when the others have noticed that it is back.
        until(lambda: all(map(self._serves, self.cluster.nodes)), "a cluster that serves all slots")
        self.outages.append(Outage(node, began, time.time()))

    def _serves(self, node: RedisBox) -> bool:
        with contextlib.suppress(Exception):
            return b"cluster_state:ok" in bytes(node.client().execute_command("CLUSTER", "INFO"))
        return False

    def broken(self) -> list[str]:
        """Wait until all queues are empty and return all broken promises."""
        found = [f"{error!r} in a producer" for error in self.errors]
        wanted = {promise.id for promise in self.promises}
        with contextlib.suppress(AssertionError):  # the jobs that are left are listed below
            self.mill.wait_ended(wanted, DRAIN_SECONDS)
        found += violations(self.promises, self.mill.lines(), [], [])
        found += exceeded(self.promises, self.mill.lines(), {f"{name}:x": LIMIT for name in QUEUES}, LEASE_SECONDS)
        return [*found, *self._late(), *fsck.check(self.mill.broker).violations]

    def _late(self) -> Iterator[str]:
        for promise in self.promises:
            name, accepted = self.accepted[promise.id]
            expected, starts = max(promise.due, accepted), self.mill.starts(promise.id)
            if not starts or starts[0]["at"] <= expected + LATE_SECONDS:
                continue
            needed = [self.nodes[name], *([self.limiter] if promise.limits else [])]
            own = [one for one in self.outages if one.node in needed]
            if not any(one.began <= starts[0]["at"] and one.ended + LATE_SECONDS >= expected for one in own):
                yield f"{promise.id} of {name}: started {starts[0]['at'] - expected:.1f} s late on a living master"


def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the campaign; print what happened and return the broken promises."""
    with ClusterBox(aof="always") as cluster:
        masters = Masters(cluster, folder, random.Random(seed))
        with masters.mill:
            for _ in range(2):
                masters.mill.start("--processes", 2, "--threads", 3, queues=",".join(QUEUES))
            with masters.at_work():
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(2.0)
                    masters.strike()
                time.sleep(2.0)
            found = masters.broken()
    print(
        f"{len(masters.promises)} jobs on three masters acknowledged, {masters.refused} refused, "
        f"{len(masters.outages)} masters gone for a while"
    )
    return found
