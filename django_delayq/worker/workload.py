"""Jobs that a worker process holds, from the reply that has them until they are passed to the settler."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from ..core.job import UNCLEAR
from .attempt import Attempt, Batcher, trusted
from .concurrency import ConcurrencyLimits
from .ends import give_back, policy_of
from .process import Process
from .readiness import ReadinessGate
from .settler import Settler
from .shard_selector import Source
from .slots import Slots

if TYPE_CHECKING:
    from ..core.outcomes import Batch

#: maximum number of jobs of one reserve; a quarantine process takes one
BATCH: Final = 250
#: maximum number of jobs that a process holds without a slot, however short they are
MOST_WAITING: Final = 500
#: jobs that wait this many seconds for a slot are given back, so that another worker can take them
GIVE_BACK: Final = 0.5
_WORK_PER_SLOT_SECONDS: Final = 0.002


class Workload:
    """Jobs between the reply and the settler, and how many more may be reserved. For the thread of the fetch loop."""

    def __init__(
        self,
        process: Process,
        slots: Slots,
        settler: Settler,
        limits: ConcurrencyLimits,
        readiness: ReadinessGate,
    ) -> None:
        #: when jobs were last accepted, or attempts collected (monotonic)
        self.busy_at = time.monotonic()
        #: attempts that cannot be ended, and when their handlers had ended; the timeout monitor adds them
        self._stuck: dict[Attempt, float] = {}
        #: those of them that are new, with the jobs whose ends are decided
        self._decided: deque[tuple[Attempt, list[Attempt]]] = deque()
        #: jobs of stuck attempts that were passed to the settler
        self._passed: set[Attempt] = set()
        self._max_jobs = process.config.max_jobs
        self._prefetch = process.config.prefetch_ms / 1000
        self._slots = slots
        self._settler = settler
        self._limits = limits
        self._readiness = readiness
        self._registry = process.registry
        self._batcher = Batcher(process.registry)
        self._trust = trusted(process.lease)
        self._most = 1 if process.which == "quarantined" else BATCH
        self._accepted = 0
        self._held = 0
        self._batches = 0  # number of batches among the held attempts

    @property
    def is_empty(self) -> bool:
        """True if no job is held."""
        return self._held == 0

    @property
    def holds_only_stuck(self) -> bool:
        """True if no job is held but those of attempts that cannot be ended."""
        stuck = 0
        for attempt, ended in tuple(self._stuck.items()):  # the timeout monitor adds to it
            if attempt in self._slots.running and attempt.ended == ended:
                stuck += sum(part not in self._passed for part in attempt.parts)
        return self._held <= stuck

    @property
    def left_to_take(self) -> int | None:
        """Number of jobs that this process may still take; None = any number."""
        return None if self._max_jobs is None else max(0, self._max_jobs - self._accepted)

    def set_batch_size(self, source: Source) -> None:
        """Set the size of batches that is expected of a shard that is new here."""
        source.pace.size = self._batcher.expected(source.queue.name)

    def room(self, source: Source) -> int:
        """Return how many jobs of this shard can be reserved now."""
        waiting, pace = len(self._slots.inbox), source.pace
        room = pace.room(self._slots.free, waiting, self._prefetch)
        if pace.size == 1:
            room = min(room, MOST_WAITING - waiting)
        else:  # an attempt takes several jobs, and running jobs do not count as waiting
            most = MOST_WAITING + self._slots.count * pace.size - self._held
            room = min(room * pace.size, max(most, self._slots.free - waiting))
        if self.left_to_take is not None:
            room = min(room, self.left_to_take)
        if self._readiness.in_doubt:
            room = min(room, self._slots.free - waiting)
        return min(room, self._most)

    def accept(self, source: Source, batch: Batch, sent_at: float, now: float) -> None:
        """Pass reserved jobs to the slots."""
        jobs, self.busy_at = batch.jobs, now
        deadline, offset = sent_at + self._trust, batch.now_ms - now * 1000
        attempts = [Attempt(job, source, now, deadline, offset) for job in jobs]
        self._settler.held.update(attempts)
        self._accepted += len(attempts)
        self._held += len(attempts)
        self._limits.took(source.queue.name, jobs)
        slots, pace = self._slots, source.pace
        if [job for job in jobs if job.merged or job.flags]:
            attempts = self._arrange(source, attempts)
        else:
            pace.size = 1
        slots.spread = not pace.tiny
        # Wake one slot for every two milliseconds of work. Unmeasured work wakes as many slots as there are jobs.
        wake = len(attempts) if pace.seconds is None else 1 + int(len(attempts) * pace.seconds / _WORK_PER_SLOT_SECONDS)
        slots.put(attempts, min(wake, len(attempts)))

    def _arrange(self, source: Source, attempts: list[Attempt]) -> list[Attempt]:
        """Return the attempts for the slots.

        Merged jobs are combined into batches. Starts that might otherwise go unrecorded are recorded first.
        """
        unclear = [attempt for attempt in attempts if attempt.job.flags & UNCLEAR]
        if unclear:
            self._record_starts(unclear)
        # The smallest batch: of slow jobs, no more than find a slot should be held.
        source.pace.size = min([self._batcher.size_of(attempt.job) for attempt in attempts])
        arranged = self._batcher.arrange(attempts)
        self._batches += sum([bool(attempt.members) for attempt in arranged])
        return arranged

    def add_stuck(self, attempt: Attempt) -> None:
        """Add an attempt that cannot be ended: its handler hangs, or a listener to its end. Any thread."""
        self._decided.append((attempt, [part for part in attempt.parts if part.settlement is not None]))
        self._stuck[attempt] = attempt.ended

    def pass_decided(self) -> None:
        """Pass on the ends that are decided of stuck attempts: a hanging listener must not hold them."""
        while self._decided:
            attempt, parts = self._decided.popleft()
            if parts and attempt in self._slots.running:  # else it has ended after all
                self._passed.update(parts)
                self._held -= len(parts)
                self._limits.ended(attempt.source.queue.name, parts)
                self._settler.add(attempt.source, parts)

    def collect(self) -> None:
        """Take over what the slots have finished, and update the measured run times."""
        done, self.busy_at = self._slots.done, time.monotonic()
        fresh: dict[Source, list[Attempt]] = {}
        while done:
            attempt = done.popleft()
            fresh.setdefault(attempt.source, []).append(attempt)
        for source, attempts in fresh.items():
            if not self._readiness.in_doubt:
                source.pace.measured(sum([attempt.ended - attempt.started for attempt in attempts]), len(attempts))
            if self._batches:
                self._batches -= sum([bool(attempt.members) for attempt in attempts])
                attempts = [part for attempt in attempts for part in attempt.parts]
            if self._passed:
                attempts = [attempt for attempt in attempts if attempt not in self._passed]
            self._held -= len(attempts)
            self._limits.ended(source.queue.name, attempts)
            self._settler.add(source, attempts)

    def _record_starts(self, attempts: list[Attempt]) -> None:
        """Record these starts in Redis before they happen, so that they count even if the whole machine dies."""
        jobs = [attempt.job for attempt in attempts]
        started = {(job.id, job.token) for job in jobs}
        answers = self._settler.call_with_retries(
            lambda: attempts[0].queue.touch(jobs, started), [], attempts[0].source
        )
        for attempt, answer in zip(attempts, answers or ["lost"] * len(attempts), strict=True):
            attempt.renewed(answer, attempt.deadline)

    def give_back(self, reason: str) -> None:
        """Give back, uncounted, what no slot has begun."""
        for attempt in self._slots.take_back():
            self._release(attempt, reason)

    def _release(self, attempt: Attempt, reason: str) -> None:
        parts = list(attempt.parts)
        for part in parts:
            policy = policy_of(self._registry.get(part.job.task), part.job)
            part.settlement = give_back(part.job, policy, reason=reason)
        self._batches -= bool(attempt.members)
        self._held -= len(parts)
        self._limits.ended(attempt.source.queue.name, parts)
        self._settler.add(attempt.source, parts)

    def serve_inbox(self, now: float) -> None:
        """Keep held jobs from waiting for busy slots: wake an idle slot, or give the jobs back after a while."""
        slots = self._slots
        if slots.free:
            slots.wake(1)
            return
        try:
            waited = now - slots.inbox[0].received
        except IndexError:
            return
        if waited < GIVE_BACK:
            return
        for attempt in list(slots.running):
            if attempt is not None and attempt.started:
                attempt.source.pace.at_least(now - attempt.started)
        self.give_back("no free slot")
