"""Heartbeat: one duty per process that renews all leases, announces the process, and carries out what that returns."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from .attempt import Attempt, trusted
from .loop import Part, Parts, call_safely
from .shutdown import log_stacks

if TYPE_CHECKING:
    from ..core.workers import AnnouncementReply
    from .slots import Slots
    from .worker import Worker

logger = logging.getLogger(__name__)

#: seconds between two announcements that include the task names; Redis may have lost them
TASKS_SECONDS: Final = 60.0

#: on a Cluster, seconds that the renewal of one shard and the announcement may take: the leases on other nodes wait
PART_SECONDS: Final = 1.0


@dataclass(eq=False, repr=False)
class Heartbeat:
    """Duty for a :class:`~.loop.Loop`."""

    _process: Worker
    #: ids of commands that were carried out, confirmed with the next announcement; None before the first one
    done: list[str] | None = None
    _tasks_at: float = 0.0

    def __post_init__(self) -> None:
        self._rest = self._process.config.heartbeat
        self._parts = Parts("heartbeat", self._process.broker, longest=self._rest / 2, seconds=PART_SECONDS)

    def run(self) -> float:
        """Renew the leases, then announce the process. No part of it that fails stops the rest.

        A registry that cannot be written must not cost leases, nor a broken shard the announcement: other processes
        take a worker that is not announced for dead.
        """
        began, consumer = time.monotonic(), self._process.consumer
        if consumer is not None:
            try:
                # first, so that they outlive the leases
                self._parts.attempt("permits", partial(consumer.limits.renew, consumer.held))
            finally:
                self._renew(list(consumer.held), consumer.slots)
        self._parts.attempt("announcement", partial(self._announce, began))
        # Measured from the start of this turn: a Redis that stalls must not delay two turns.
        return max(0.0, began + self._rest - time.monotonic())

    def _announce(self, began: float) -> None:
        process = self._process
        # Other workers leave jobs of unknown tasks to a worker that announces them.
        tasks = process.registry.names if process.consumer is not None and began >= self._tasks_at else None
        announcement = process.broker.announce(process.name, process.entry(), done=self.done, tasks=tasks)
        process.health.recovered()
        if tasks is not None:
            self._tasks_at = began + TASKS_SECONDS
        process.scope.follow(announcement.choices)
        self.carry_out(announcement)

    def carry_out(self, announcement: AnnouncementReply) -> None:
        """Carry out the commands that an announcement returned, each once."""
        before = self.done or ()
        # A command that is not repeated was confirmed. One that is repeated is confirmed again.
        self.done = list(announcement.commands.values())
        for word, ident in announcement.commands.items():
            if ident in before:
                continue
            logger.warning("worker %s carries out the command %s", self._process.name, word)
            if word == "dump":
                self._dump(announcement.now_ms)
            else:
                self._process.end_by_command(word)

    def _dump(self, now_ms: float) -> None:
        keep_dump, name = self._process.broker.keep_dump, self._process.name
        call_safely("storing the stacks, which the log has too,", keep_dump, name, log_stacks(), now_ms)

    def _renew(self, attempts: list[Attempt], slots: Slots) -> None:
        now, running = time.monotonic(), [attempt for attempt in slots.running if attempt is not None]
        started = {(part.job.id, part.job.token) for attempt in running for part in attempt.parts}
        by_shard: dict[Part, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.acked:
                continue
            if now >= attempt.deadline:
                attempt.should_stop = True  # this process may have lost the lease
            if not attempt.lost and not self._is_live_locked(attempt, now):
                by_shard.setdefault((attempt.queue.name, attempt.job.shard), []).append(attempt)
        for shard, mine in by_shard.items():
            self._parts.attempt(shard, partial(self._touch, mine, started))

    def _touch(self, attempts: list[Attempt], started: set[tuple[str, int]]) -> None:
        """Renew the leases of attempts from one shard."""
        sent_at = time.monotonic()
        answers = attempts[0].queue.touch([attempt.job for attempt in attempts], started)
        for attempt, answer in zip(attempts, answers, strict=True):
            attempt.renewed(answer, sent_at + trusted(self._process.lease))

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
