"""Heartbeat: one duty per process that renews all leases, receives cancellations and announces the process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .attempt import Attempt, trusted
from .parts import Part, Parts

if TYPE_CHECKING:
    from ..core.workers import AnnouncementReply
    from .fetch import Consumer
    from .slots import Slots
    from .worker import Process, WorkerCommands

logger = logging.getLogger(__name__)

#: seconds between two announcements that include the task names; Redis may have lost them
TASKS_SECONDS: Final = 60.0

#: on a Cluster, seconds that the renewal of one shard and the announcement may take: the leases on other nodes wait
PART_SECONDS: Final = 1.0


class Heartbeat:
    """Duty for a :class:`~.loop.Loop`.

    Args:
        describe: returns the process's entry for the worker registry.
        announced: called with the reply to each announcement; it also shows whether the registry of queues changed.
        commands: carries out commands that were sent to this worker.
    """

    def __init__(
        self,
        process: Process,
        describe: Callable[[], dict[str, Any]],
        consumer: Consumer | None,
        slots: Slots | None,
        announced: Callable[[AnnouncementReply], None],
        commands: WorkerCommands,
    ) -> None:
        self._broker = process.broker
        self._name = process.name
        self._health = process.health
        self._rest = process.config.heartbeat
        self._describe = describe
        self._consumer = consumer
        self._slots = slots
        self._announced = announced
        self._commands = commands
        self._tasks_at = 0.0
        self._trust = trusted(process.lease)
        self._parts = Parts("heartbeat", process.broker, longest=self._rest / 2, seconds=PART_SECONDS)

    def run(self) -> float:
        """Renew the leases, then announce the process. No part of it that fails stops the rest.

        A registry that cannot be written must not cost leases, nor a broken shard the announcement: other processes
        take a worker that is not announced for dead.
        """
        began = time.monotonic()
        if self._consumer is not None:
            try:
                self._parts.attempt("permits", self._consumer.limits.renew)  # first, so that they outlive the leases
            finally:
                self._renew(list(self._consumer.held))
        self._parts.attempt("announcement", partial(self._announce, began))
        # Measured from the start of this turn: a Redis that stalls must not delay two turns.
        return max(0.0, began + self._rest - time.monotonic())

    def _announce(self, began: float) -> None:
        tasks = self._consumer.tasks if self._consumer is not None and began >= self._tasks_at else None
        announcement = self._broker.announce(self._name, self._describe(), done=self._commands.done, tasks=tasks)
        self._health.recovered()
        if tasks is not None:
            self._tasks_at = began + TASKS_SECONDS
        self._announced(announcement)
        self._commands.carry_out(announcement)

    def _renew(self, attempts: list[Attempt]) -> None:
        now = time.monotonic()
        by_shard: dict[Part, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.acked:
                continue
            if now >= attempt.deadline:
                attempt.should_stop = True  # this process may have lost the lease
            if not attempt.lost and not self._is_live_locked(attempt, now):
                by_shard.setdefault((attempt.queue.name, attempt.job.shard), []).append(attempt)
        for shard, mine in by_shard.items():
            self._parts.attempt(shard, partial(self._touch, mine))

    def _touch(self, attempts: list[Attempt]) -> None:
        """Renew the leases of attempts from one shard."""
        started = {
            (part.job.id, part.job.token)
            for attempt in (self._slots.running if self._slots else ())
            if attempt is not None
            for part in attempt.parts
        }
        sent_at = time.monotonic()
        answers = attempts[0].queue.touch([attempt.job for attempt in attempts], started)
        for attempt, answer in zip(attempts, answers, strict=True):
            attempt.renewed(answer, sent_at + self._trust)

    def _is_live_locked(self, attempt: Attempt, now: float) -> bool:
        """Return True if the attempt has exceeded its ``max_lease``, or the listeners of its end have.

        Its lease is then not renewed any more, although its process lives.
        """
        limit, began = attempt.policy.max_lease, attempt.ended or attempt.started
        if limit is None or not began or now - began < limit:
            return False
        if not attempt.should_stop:
            text = "%s: the lease of task %s is not renewed any more: its max_lease of %s s is over"
            logger.warning(text, attempt.job.id, attempt.job.task, limit)
            attempt.should_stop = True
        return True
