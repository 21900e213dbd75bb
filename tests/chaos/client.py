"""Client of a campaign: schedules, cancels and reschedules jobs, and records what was acknowledged."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.job import NewJob
from django_delayq.core.options import GROUP_LIMITS

from .history import Limit, Promise

T = TypeVar("T")
#: s; between two jobs
PAUSE = 0.004
#: s; how far ahead a delayed job is scheduled, at most
HORIZON = 4.0
#: s; how long an attempt takes
DURATIONS = (0.0, 0.0, 0.0, 0.05)
#: kinds of jobs and how often each is drawn
KINDS = {
    "now": 60,
    "delayed": 60,
    "failing": 20,
    "doomed": 10,
    "cancelled": 20,
    "rescheduled": 20,
    "limited": 1,
    "paced": 1,
    "narrow": 1,
}
#: so many jobs behind limits come together, more than may start at once
BUNCH = 20
#: tasks of kinds that have one of their own, and the queue of a kind that has limits of its own
TASKS = {"failing": "stumble", "doomed": "stumble", "limited": "grind_within", "paced": "grind_paced"}
QUEUES = {"narrow": "narrow"}
#: groups of jobs
GROUPS = ("x", "y", "z")
IN_A_GROUP = 0.01
LIMITS = {
    "mill.grind_within": Limit(3),
    "mill.grind_paced": Limit(rate=20.0, burst=5),
    "narrow": Limit(2, 40.0, 8),
    "x": Limit(2),
    "y": Limit(2, 20.0, 3),
    "z": Limit(rate=15.0, burst=1),
}
#: the setting of the queues with limits
QUEUE_LIMITS = {"narrow": {"concurrency": 2, "rate": 40, "burst": 8}}


class Client:
    """Thread that schedules jobs as long as the ``with`` block lasts."""

    def __init__(self, broker: Broker, name: str, seed: int) -> None:
        self.promises: list[Promise] = []
        self.errors: list[BaseException] = []
        self.outages = 0
        self._queues = {name: broker.queue(name) for name in ("default", *QUEUES.values())}
        self._name = name
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE):
                (kind,) = self._dice.choices(list(KINDS), list(KINDS.values()))
                # Groups of a name are others in each queue.
                is_grouped = kind not in QUEUES and self._dice.random() < IN_A_GROUP
                group = self._dice.choice(GROUPS) if is_grouped else ""
                for _ in range(BUNCH if group or kind in ("limited", "paced", "narrow") else 1):
                    self._live(kind, f"{self._name}-{kind}-{len(self.promises)}", group)
        except BaseException as error:
            self.errors.append(error)

    def _live(self, kind: str, ident: str, group: str) -> None:
        """Schedule one job and do with it what belongs to its kind."""
        is_delayed = kind in ("delayed", "cancelled", "rescheduled")
        due = time.time() + self._dice.uniform(0.5, HORIZON) if is_delayed else 0.0
        queue = self._queues[QUEUES.get(kind, "default")]
        new = _job(kind, ident, due, self._dice.choice(DURATIONS), group)
        limits = tuple(name for name in (new.task, group, queue.name) if name in LIMITS)
        promise = Promise(ident, due, doomed=kind == "doomed", limits=limits, queue=queue.name)
        while self._attempt(lambda: queue.schedule(new)) is None:
            pass  # on_conflict="ignore": the same job again does no harm
        self.promises.append(promise)
        if kind == "cancelled":
            promise.cancel = self._attempt(lambda: queue.cancel(ident)) or "unknown"
            promise.cancelled_at = time.time()
        elif kind == "rescheduled":
            later = due + self._dice.uniform(0.0, HORIZON)
            if self._attempt(lambda: queue.reschedule(ident, due_ms=int(later * 1000))):
                promise.due = int(later * 1000) / 1000

    def _attempt(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except QueueUnavailable:
            self.outages += 1
            time.sleep(0.05)
            return None


def _job(kind: str, ident: str, due: float, seconds: float, group: str) -> NewJob:
    args = {"failing": (1,), "doomed": ()}.get(kind, (seconds,))
    options: dict[str, Any] = {"max_attempts": 1 if kind == "doomed" else 100, "crash_limit": 100}
    if group:
        limit = LIMITS[group]
        options[GROUP_LIMITS] = [limit.total or 0, 1e6 / limit.rate if limit.rate else 0, limit.burst, 1]
    return NewJob(
        ident,
        f"mill.{TASKS.get(kind, 'grind_on')}",
        encode_args(args, {}),
        due_ms=int(due * 1000) if due else None,
        on_conflict="ignore",
        options=json.dumps(options, separators=(",", ":")).encode(),
        group=group,
    )
