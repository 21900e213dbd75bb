"""Fetch loop: settles ended attempts, reserves jobs, passes them to the slots, and rests when there is nothing to do.

One thread talks to Redis for all slots. While it waits for a reply, the slots work on the previous batch, and the acks
of that batch are sent in the same call as the next reserve.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ..core.redis.faults import Backoff
from .attempt import NEVER, Attempt
from .child import EXIT_DRY, EXIT_OK, EXIT_RECYCLE
from .concurrency import ConcurrencyLimits
from .orphaned_leases import OrphanedLeases
from .process import Process
from .readiness import ReadinessGate
from .rest import WakeUps
from .settler import Settler, settlements_of
from .shard_selector import ShardSelector, Source
from .slots import Slots
from .wake_listener import WakeListener
from .workload import Workload

if TYPE_CHECKING:
    from ..core.outcomes import Batch

logger = logging.getLogger(__name__)

#: quarantined jobs that are overdue by this many seconds are reported, so that other supervisors take them
QUARANTINE_PATIENCE: Final = 2.0
#: seconds that settlements of a shard with no reserve at present wait for more to be sent with
_SETTLE_AFTER_SECONDS: Final = 0.02
_RECHECK_SECONDS: Final = 0.05


class Consumer:
    """Fetch loop of one process. All methods but ``stop``, ``halt`` and ``overran`` must be called in its thread.

    Args:
        waker: None in a quarantine process, which its supervisor calls by the scoreboard.
    """

    def __init__(
        self,
        process: Process,
        selector: ShardSelector,
        slots: Slots,
        waker: WakeListener | None,
        readiness: ReadinessGate,
    ) -> None:
        #: the loop is over
        self.finished = threading.Event()
        #: exit code of the process, which says why the loop ended by itself
        self.exit_code = EXIT_OK
        self._process = process
        self._selector = selector
        self._slots = slots
        self._readiness = readiness
        tally = process.broker.tally
        self._settler = Settler(selector, process.health, process.lease, process.changes, tally.ended)
        #: limits of how many jobs of a task or a queue run at the same time
        self.limits = ConcurrencyLimits(process, selector)
        self._orphaned = OrphanedLeases(process.name, self._settler, selector, process.registry)
        self._workload = Workload(process, slots, self._settler, self.limits, readiness)
        selector.on_new_source(self._workload.set_batch_size)
        self._wake_ups = WakeUps(selector, waker, self.limits, process.config.safety_check)
        self._stopping = False
        self._giving_back = False
        self._halted = False
        self._thread = threading.Thread(target=self._run_thread, name="delayq-fetch", daemon=True)

    # --- for other threads

    @property
    def held(self) -> set[Attempt]:
        """Attempts that this process holds and has not settled yet."""
        return self._settler.held

    @property
    def settled(self) -> int:
        """Number of attempts that were settled."""
        return self._settler.settled

    @property
    def idle_seconds(self) -> float:
        """Time for which slots have been free and no job began or ended; 0 if no slot is free."""
        return time.monotonic() - self._workload.busy_at if self._slots.free else 0.0

    def unreachable_for(self) -> float:
        """Return the seconds for which a part of a cluster has been unreachable; 0 while all shards can be reached."""
        return self._settler.unreachable.lasting()

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks that this process can run; other workers leave jobs of unknown tasks to it."""
        return self._process.registry.names

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, give_back: bool = True) -> None:
        """Stop reserving, and end when everything held has ended.

        Args:
            give_back: give back at once what no slot has begun, instead of running it.
        """
        self._giving_back = self._giving_back or give_back
        self._stopping = self._settler.stopping = True
        self._selector.nudge()

    def halt(self) -> None:
        """End now: settle what has ended, once, and leave the rest."""
        self._halted = self._stopping = self._settler.halted = True
        self._selector.nudge()

    def overran(self, attempt: Attempt) -> None:
        """Record that this attempt cannot be ended, so that the loop does not wait for it."""
        self._workload.add_stuck(attempt)
        self.stop(give_back=False)

    def join(self, timeout: float) -> bool:
        """Wait for the end of the loop. Return False after ``timeout`` seconds, or if an error ended its thread."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self.finished.is_set()

    # --- the loop

    def _run_thread(self) -> None:
        pause = Backoff()
        while not self._is_over():
            try:
                self._turn()
                pause.reset()
            except Exception as error:
                # The settler retries calls to Redis: an error that arrives here is a bug, and the loop continues.
                time.sleep(pause.next(self._process.health.failed("fetch loop", error)))
        self._orphaned.give_back()
        self.limits.close()
        self._wake_ups.close()
        self.finished.set()

    def _is_over(self) -> bool:
        self._workload.pass_decided()
        if self._giving_back:
            self._workload.give_back("the worker stops")
        if self._halted:
            self._workload.collect()
            self._settler.settle_all()
            return True
        if not self._stopping or self._slots.done or self._slots.inbox or self._settler.keeps_ends:
            return False
        return self._workload.holds_only_stuck

    def _turn(self) -> None:
        if self._slots.done:
            self._workload.collect()
        if self._orphaned:
            self._orphaned.give_back()
        if self._process.which == "quarantined" and self._settler:
            self._settler.settle_all()  # settled first, so that a crash of the next job does not affect it
        now = time.monotonic()
        room, source = 0, self._selector.due(now, self._has_room)
        if source is not None and self._settler.unreachable.rest(source):
            return
        if source is not None and not self._stopping and self._readiness.until <= now:
            free = self._workload.room(source)
            room = self.limits.room(source, free, now)
            if free > 0 >= room:
                return  # this shard waits for its limit; the process rests only when no other one is due
        if source is not None and room > 0:
            self._wake_ups.refresh_busy(now)
            self._fetch(source, room)
            if now - self._settler.since > _SETTLE_AFTER_SECONDS:
                self._settler.settle_all()
        elif self._settler:
            self._settler.settle_all()
        else:
            self._rest()
        self.limits.trim()

    def _has_room(self, source: Source) -> bool:
        return self._workload.room(source) > 0

    # --- reserve

    def _fetch(self, source: Source, limit: int) -> None:
        acks = self._settler.take_acks(source)
        queue, shard, sent_at = source.queue, source.shard, time.monotonic()
        options: dict[str, Any] = {
            "worker": self._process.name,
            "request": os.urandom(16),  # the same in every retry, so that Redis repeats a reply that was lost
            "which": self._process.which,
            "allowances": self.limits.allowances(),
        }
        self._selector.begin_reserve(source, sent_at)

        def call() -> tuple[list[bool], Batch]:
            if acks:
                return queue.settle_reserve(shard, settlements_of(acks), limit, **options)
            return [], queue.reserve(shard, limit, **options)

        answer = self._settler.call_with_retries(call, acks, source)
        now = time.monotonic()
        if answer is None or now - sent_at > self._process.lease:
            # Given up, or retried so late that an earlier reply may have been a different one.
            self._orphaned.doubt(source)
        if answer is None:
            self._selector.apply_reply(source, now, 0.0, 0)
            return
        counted, batch = answer
        self._settler.account(acks, counted)
        self._selector.apply_reply(source, now, batch.next_due_ms, batch.taken)
        board = self._process.board
        if board is not None and self._leaves_some_overdue(batch):
            board.overdue_at = now
        if batch.jobs:
            self._workload.accept(source, batch, sent_at, now)
            if self._workload.left_to_take == 0:
                self._stopping, self.exit_code = True, EXIT_RECYCLE
        if self.limits.exist:
            self.limits.replied(source, batch, self._slots.free - len(self._slots.inbox), now)

    def _leaves_some_overdue(self, batch: Batch) -> bool:
        if self._process.which == "quarantined":
            return bool(batch.jobs) and batch.next_due_ms == 0
        return batch.quarantine_due_ms is not None and batch.quarantine_due_ms < -1000 * QUARANTINE_PATIENCE

    def _end_burst(self, now: float) -> None:
        """End if no shard has ready jobs. The last attempt may have left some, so each shard is asked once more."""
        if self._settler.unreachable:
            return
        asked = [source.sent_at > self._settler.settled_at for source in self._selector.sources]
        if not all(asked):
            self._selector.check_all()
        elif all(source.due_at > now for source in self._selector.sources):
            self._stopping = True

    # --- rest

    def _rest(self) -> None:
        """Wait for a due time, an ended attempt or a wake token."""
        selector, slots = self._selector, self._slots
        self.limits.trim(rests=True, has_room=not self._stopping and slots.free > len(slots.inbox))
        if self._process.config.burst and self._workload.is_empty and not slots.done:
            self._end_burst(time.monotonic())
        selector.resting = True  # from here on an ended attempt ends the rest; the checks below cover earlier ones
        now = time.monotonic()
        until = NEVER
        if slots.inbox:
            self._workload.serve_inbox(now)
            until = now + _RECHECK_SECONDS
        if self._process.which == "quarantined" and self._workload.is_empty:
            until = min(until, self._check_call(now))
        if self._readiness.until > now:
            until = min(until, self._readiness.until)
        has_room = not self._stopping and slots.free > len(slots.inbox)
        has_room = has_room and self._readiness.until <= now
        is_over = self._stopping and self._workload.holds_only_stuck and not self._settler.keeps_ends
        if slots.done or self._settler or is_over:
            selector.resting = False
            return
        if self._stopping:
            self._wake_ups.close()
        else:
            until = min(until, self._wake_ups.refresh(now, has_room=has_room))
        selector.rest(min(until, selector.next_due_at()) if has_room else until)

    def _check_call(self, now: float) -> float:
        """Take the supervisor's call, and return when an idle quarantine process checks for one again.

        A quarantine process has no wake listener, and ends when it stays idle for too long.
        """
        if self._process.board is not None and self._process.board.take_call():
            self._selector.check_all()
        elif now >= self._workload.busy_at + self._process.config.quarantine_idle:
            self._stopping, self.exit_code = True, EXIT_DRY
        return now + _RECHECK_SECONDS
