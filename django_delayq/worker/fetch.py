"""Fetch loop: settles ended attempts, reserves jobs, passes them to the slots, and rests when there is nothing to do.

One thread talks to Redis for all slots. While it waits for a reply, the slots work on the previous batch, and the ends
of that batch are sent in the same call as the next reserve.

A job is *held* from the reply that has it until its end is stored. It is *in hand* until its attempt has ended, in a
slot or in their inbox.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..core.job import DURABLE, UNCLEAR
from ..core.records.frames import waits_for_end
from ..core.redis.faults import Backoff, Fault
from .attempt import NEVER, Attempt, arrange, batch_size_of, trusted
from .child import EXIT_DRY, EXIT_RECYCLE
from .ends import End, policy_of
from .limits import ProcessLimits
from .loop import Parts, join_threads
from .shards import CALL_SECONDS, ShardSelector, Source
from .slots import Slots
from .wake import REPEAT, WakeListener

if TYPE_CHECKING:
    from ..core.outcomes import Batch, Settlement
    from .worker import Worker

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: maximum number of jobs of one reserve, and of ends that are stored at once; a quarantine process takes one job
BATCH: Final = 250
#: maximum number of jobs that a process holds without a slot, however short they are
MOST_WAITING: Final = 500
#: jobs that wait this many seconds for a slot are given back, so that another worker can take them
GIVE_BACK: Final = 0.5
#: seconds for which a busy process may leave tokens unread, and for which any process may keep due work to itself
PATIENCE: Final = 0.05
#: quarantined jobs that are overdue by this many seconds are reported, so that other supervisors take them
QUARANTINE_PATIENCE: Final = 2.0
#: seconds that ends of a shard with no reserve at present wait for more to be sent with
_SETTLE_AFTER_SECONDS: Final = 0.02
#: permits are taken for jobs that start within so many seconds at the measured pace
_SOON: Final = 0.004
_RECHECK_SECONDS: Final = 0.05
_WORK_PER_SLOT_SECONDS: Final = 0.002
#: shortest pause of a process whose jobs cannot begin, in seconds
_FIRST_PAUSE: Final = 0.25


class ReadinessGate:
    """Gate before each reserve, closed while a requirement of the handlers (a database, say) is unavailable.

    Set by the slots and read by the fetch loop. A race between slots costs at most one pause.
    """

    def __init__(self) -> None:
        #: no job is reserved before this moment (monotonic); 0 = the last job could begin
        self.until = 0.0
        self._pause = Backoff(_FIRST_PAUSE)

    @property
    def in_doubt(self) -> bool:
        """True if the last job could not begin; the run times of held jobs are then meaningless."""
        return self.until > 0.0

    def unfit(self) -> None:
        """Record that a job could not begin."""
        now = time.monotonic()
        if now >= self.until:  # the other held jobs fail for the same reason, and count once
            self.until = now + self._pause.next()

    def fit(self) -> None:
        """Record that a job could begin here, which ends the pause after failed preparations."""
        self._pause.reset()
        self.until = 0.0


class Stage(IntEnum):
    """Stage of a fetch loop on its way to the end. It only advances."""

    #: reserve and run
    WORK = 0
    #: reserve no more, run what is held; calls that settle nothing are not retried
    DRAIN = 1
    #: give back at once what no slot has begun
    GIVE_BACK = 2
    #: settle once what has ended, and leave the rest
    HALT = 3


@dataclass(eq=False, repr=False)
class Consumer:
    """Fetch loop of one process. Public methods may be called in any thread, all others in its own."""

    _process: Worker
    _selector: ShardSelector
    #: threads that run the jobs
    slots: Slots
    #: None in a quarantine process, which looks at one shard after the other
    waker: WakeListener | None
    _readiness: ReadinessGate
    stage: Stage = field(default=Stage.WORK, init=False)
    #: number of settled attempts
    settled: int = field(default=0, init=False)
    #: when the oldest of the ended attempts that are not settled arrived
    _ends_since: float = field(default=NEVER, init=False)
    #: number of jobs that were ever reserved
    _accepted: int = field(default=0, init=False)
    _listened_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        process = self._process
        #: all attempts that this process has not settled yet; the heartbeat reads it too
        self.held: set[Attempt] = set()
        #: limits of how many jobs of a task or a queue run at the same time
        self.limits = ProcessLimits(process, self._selector)
        self._health = process.health
        self._quarantined = process.config.which == "quarantined"
        #: nodes that cannot be reached: their shards rest, and the ends of their attempts are kept
        self._nodes = Parts("fetch loop", process.broker)
        #: ended attempts that are not settled
        self._ends: dict[Source, list[Attempt]] = {}
        #: when jobs were last accepted or attempts collected (monotonic)
        self._busy_at = time.monotonic()
        self._thread = threading.Thread(target=self._run_thread, name="delayq-fetch", daemon=True)

    @property
    def idle_seconds(self) -> float:
        """Time for which slots have been free and no job began or ended; 0 if no slot is free."""
        return time.monotonic() - self._busy_at if self.slots.free else 0.0

    def unreachable_for(self) -> float:
        """Return the seconds for which a part of a cluster has been unreachable; 0 while all shards can be reached."""
        return max((self._nodes.outage(source.place) for source in self._selector.sources), default=0.0)

    def start(self) -> None:
        """Start the threads of the slots, and that of the loop."""
        self.slots.start()
        self._thread.start()

    def advance(self, stage: Stage) -> None:
        """Go on to a stage, unless the loop has passed it."""
        with self._selector.condition:
            self.stage = max(self.stage, stage)
            self._selector.nudge()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the loop. Return False if it still runs after ``timeout`` seconds."""
        return join_threads([self._thread], timeout)

    # --- the loop

    def _run_thread(self) -> None:
        pause = Backoff()
        while not self._is_over():
            try:
                self._turn()
                pause.reset()
            except Exception as error:
                # Calls to Redis are retried: an error that arrives here is a bug, and the loop continues.
                time.sleep(pause.next(self._health.failed("fetch loop", error)))
        self._stop_listening()
        if self.waker is not None:
            self.waker.close()  # else it might take, and lose, a token for jobs that the returned permits let start
        self.limits.close()
        self._process.finish()

    @property
    def _in_hand(self) -> int:
        """Number of held jobs whose attempts have not ended."""
        return len(self.held) - sum(map(len, self._ends.values()))

    def _is_over(self) -> bool:
        if self.stage >= Stage.GIVE_BACK:
            self._give_back("the worker stops")
        if self.stage == Stage.HALT:
            self._collect()
        # An answer that no shard has yet may say that it may ask again, and nobody else says so to it.
        elif self.stage == Stage.WORK or self.slots.done or self.limits.answered or not self._has_only_stuck:
            return False
        for attempt in self._stuck_now():  # its handler has ended, and a listener hangs: the end is decided
            ended = [part for part in attempt.parts if part.settlement is not None and part in self.held]
            if ended:
                self._add_ends(attempt.source, ended)
        self._settle_all()
        return self.stage == Stage.HALT or not self._ends

    @property
    def _has_only_stuck(self) -> bool:
        """True if no job is held but those of attempts that cannot be ended."""
        return not self._ends and self.held <= {part for attempt in self._stuck_now() for part in attempt.parts}

    def _stuck_now(self) -> list[Attempt]:
        """Return the attempts that cannot be ended now: their handler hangs, or a listener to their end."""
        return [attempt for attempt in list(self.slots.running) if attempt in self._process.stuck]

    def _turn(self) -> None:
        if self.slots.done:
            self._collect()
        if self._quarantined and self._can_settle:
            self._settle_all()  # settled first, so that a crash of the next job does not affect it
        now = time.monotonic()
        answered = self.limits.answered
        room, source = 0, answered or self._selector.due(now, self._room)
        if source is not None and self._nodes and (retry_at := self._nodes.retry_at(source.place)) > now:
            self._selector.postpone(source, retry_at)
            self.limits.notes(source, 0, 0)  # its permits are returned
            return
        if source is not None and self.stage == Stage.WORK and self._readiness.until <= now:
            wanted = self._room(source)
            room = self.limits.room(source, wanted)
            if wanted > 0 >= room and not answered:
                return  # this shard waits for its limit; the process rests only when no other one is due
        if source is not None and (room > 0 or answered):
            if room > 0 and now >= self._listened_at:
                self._refresh_wake_ups(now, has_room=True)  # from time to time, although the process reserves always
            self._fetch(source, room)
            if now - self._ends_since > _SETTLE_AFTER_SECONDS:
                self._settle_all()
        elif self._can_settle:
            self._settle_all()
        else:
            self._rest()
        self.limits.exchange(now, works=self.stage == Stage.WORK, ready=self._ready(source))

    # --- room

    def _room(self, source: Source) -> int:
        """Return how many jobs of this shard can be reserved now."""
        waiting, pace, max_jobs = len(self.slots.inbox), source.pace, self._process.config.max_jobs
        room = pace.room(self.slots.free, waiting, self._process.config.prefetch_ms / 1000)
        most = MOST_WAITING + self.slots.count * pace.size - self._in_hand  # running jobs do not count as waiting
        room = min(room * pace.size, max(most, self.slots.free - waiting))
        if max_jobs is not None:
            room = min(room, max_jobs - self._accepted)
        if self._readiness.in_doubt:
            room = min(room, self.slots.free - waiting)
        return max(0, min(room, 1) if self._quarantined else room)

    def _ready(self, source: Source | None) -> int:
        """Return how many jobs can start here now, or so soon that their permits need not wait for a slot."""
        free, waiting = self.slots.free, len(self.slots.inbox)
        return source.pace.room(free, waiting, _SOON) if source is not None else free - waiting

    # --- reserve

    def _fetch(self, source: Source, room: int) -> None:
        # A reserve that was given up is repeated first, without further ends, so that Redis repeats its reply.
        ends = self._take_ends(source) if source.unanswered is None else []
        settlements, also = _settlements_of(ends)
        queue, shard, now = source.queue, source.shard, time.monotonic()
        request, settles, sent_at = source.unanswered or (os.urandom(16), bool(ends), now)
        notes = self.limits.notes(source, room, self._ready(source))
        limit = max(0, room - notes.granted)
        # The request is the same in every retry.
        options: Any = {"worker": self._process.name, "request": request, "which": self._process.config.which}
        options["lanes"] = notes.pack()
        self._selector.begin_reserve(source, now)

        def call() -> tuple[list[bool], Batch]:
            if settles:
                return queue.settle_reserve(shard, settlements + also, limit, **options)
            return [], queue.reserve(shard, limit, **options)

        answer = self._call(call, ends, source)
        now = time.monotonic()
        source.unanswered = (request, settles, sent_at) if answer is None and self._nodes else None
        if answer is None:
            self._selector.apply_reply(source, now, 0.0, 0)
            return
        counted, batch = answer
        self._account(ends, settlements, counted)
        self._selector.apply_reply(source, now, batch.next_due_ms, batch.taken)
        board = self._process.board
        if board is not None and self._leaves_some_overdue(batch):
            board.overdue = True
        if batch.jobs:
            self._accept(source, batch, sent_at, now)
        self.limits.replied(source, notes, batch)

    def _leaves_some_overdue(self, batch: Batch) -> bool:
        if self._quarantined:
            return bool(batch.jobs) and batch.next_due_ms == 0
        return batch.quarantine_due_ms is not None and batch.quarantine_due_ms < -1000 * QUARANTINE_PATIENCE

    def _accept(self, source: Source, batch: Batch, sent_at: float, now: float) -> None:
        """Pass reserved jobs to the slots."""
        jobs, self._busy_at = batch.jobs, now
        deadline, offset = sent_at + trusted(self._process.lease), batch.now_ms - now * 1000
        attempts = [Attempt(job, source, now, deadline, offset) for job in jobs]
        self.held.update(attempts)
        self._accepted += len(attempts)
        self.limits.took(source.queue.name, jobs)
        slots, pace = self.slots, source.pace
        if [job for job in jobs if job.merged or job.flags]:
            attempts = self._arrange(source, attempts)
        else:
            pace.size = 1
        slots.spread = not pace.tiny
        # Wake one slot for every two milliseconds of work. Unmeasured work wakes as many slots as there are jobs.
        wake = len(attempts) if pace.seconds is None else 1 + int(len(attempts) * pace.seconds / _WORK_PER_SLOT_SECONDS)
        slots.put(attempts, min(wake, len(attempts)))
        if self._accepted == self._process.config.max_jobs:
            self._process.end(Stage.DRAIN, code=EXIT_RECYCLE)

    def _arrange(self, source: Source, attempts: list[Attempt]) -> list[Attempt]:
        """Return the attempts for the slots.

        Merged jobs are combined into batches. Starts that might otherwise go unrecorded are recorded first.
        """
        unclear = [attempt for attempt in attempts if attempt.job.flags & UNCLEAR]
        if unclear:
            self._record_starts(unclear)
        # The smallest batch: of slow jobs, no more than find a slot should be held.
        source.pace.size = min([batch_size_of(self._process.registry, attempt.job) for attempt in attempts])
        return arrange(self._process.registry, attempts)

    def _record_starts(self, attempts: list[Attempt]) -> None:
        """Record these starts in Redis before they happen, so that they count even if the whole machine dies."""
        jobs = [attempt.job for attempt in attempts]
        started = {(job.id, job.token) for job in jobs}
        answers = self._call(lambda: attempts[0].queue.touch(jobs, started), [], attempts[0].source)
        for attempt, answer in zip(attempts, answers or ["lost"] * len(attempts), strict=True):
            attempt.renewed(answer, attempt.deadline)

    # --- ends of attempts

    def _collect(self) -> None:
        """Take over what the slots have finished, and update the measured run times."""
        done, self._busy_at = self.slots.done, time.monotonic()
        fresh: dict[Source, list[Attempt]] = {}
        while done:
            attempt = done.popleft()
            fresh.setdefault(attempt.source, []).append(attempt)
        for source, attempts in fresh.items():
            if not self._readiness.in_doubt:
                source.pace.measured(sum([attempt.ended - attempt.started for attempt in attempts]), len(attempts))
            self._add_ends(source, [part for attempt in attempts for part in attempt.members or (attempt,)])

    def _give_back(self, reason: str) -> None:
        """Give back, uncounted, what no slot has begun."""
        for attempt in self.slots.take_back():
            for part in attempt.parts:
                policy = policy_of(self._process.registry.get(part.job.task), part.job)
                part.settlement = End(part.job, policy).give_back(reason)
            self._add_ends(attempt.source, list(attempt.parts))

    def _add_ends(self, source: Source, attempts: list[Attempt]) -> None:
        """Move attempts out of the hand, to be settled."""
        self.limits.ended(source.queue.name, attempts)
        if self._ends_since == NEVER:
            self._ends_since = time.monotonic()
        self._ends.setdefault(source, []).extend(attempts)

    @property
    def _can_settle(self) -> bool:
        """True if an attempt has ended whose shard can be reached."""
        return self._settle_at <= time.monotonic()

    @property
    def _settle_at(self) -> float:
        """Moment at which the node of an ended attempt works or is tried again; 0 = now."""
        return min((self._nodes.retry_at(source.place) for source in self._ends), default=NEVER)

    def _take_ends(self, source: Source) -> list[Attempt]:
        """Remove and return the ends of this shard that the next reserve can store; store the others now."""
        attempts = self._ends.pop(source, [])
        if not self._ends:
            self._ends_since = NEVER
        for start in range(BATCH, len(attempts), BATCH):
            self._settle(attempts[start : start + BATCH])
        return attempts[:BATCH]

    def _settle_all(self) -> None:
        """Store all ends but those of shards that cannot be reached; they are kept, unless the loop halts."""
        ends, self._ends = self._ends, {}
        self._ends_since = NEVER
        for source, attempts in ends.items():
            if self._nodes.retry_at(source.place) <= time.monotonic():
                for start in range(0, len(attempts), BATCH):
                    self._settle(attempts[start : start + BATCH])
            elif self.stage == Stage.HALT:
                self._give_up(attempts, one_by_one=False)
            else:
                self._ends.setdefault(source, []).extend(attempts)

    def _settle(self, attempts: list[Attempt]) -> None:
        """Settle these attempts, which belong to one shard."""
        queue, (settlements, also) = attempts[0].source.queue, _settlements_of(attempts)
        counted = self._call(
            lambda: queue.settle(settlements + also), attempts, attempts[0].source, alone=len(attempts) == 1
        )
        if counted is None:
            return
        self._account(attempts, settlements, counted)
        now = time.monotonic()
        for attempt, settlement in zip(attempts, settlements, strict=True):
            if settlement.verb not in ("ack", "record"):
                self._selector.expect(attempt.source, now + (settlement.delay_ms or 0) / 1000)

    def _account(self, attempts: list[Attempt], settlements: list[Settlement], counted: list[bool]) -> None:
        """Record that Redis replied to the settlements of these attempts, which are not held any more."""
        if not attempts:
            return
        self.held.difference_update(attempts)
        self.limits.settled(attempt.job for attempt in attempts)
        self.settled += len(attempts)
        self._process.broker.tally.ended(attempts[0].job.queue, settlements)
        note = self._process.changes.note
        for one in settlements:
            job, verb = one.job, one.verb
            if verb == "ack" and not (job.failures or job.key >= DURABLE or job.merged):
                continue
            # What has to be updated outside Redis. A record belongs to a job that was acked when its attempt began.
            if verb != "release" and waits_for_end(job):
                note(job.queue, job.shard, "marks")
            if verb == "fail" or job.failures:
                note(job.queue, job.shard, "failed")
            if verb == "bury":
                note(job.queue, job.shard, "morgue")
        if not all(counted):
            text = "%s: the end of the attempt (%s) came too late: its lease or the reply was lost"
            for attempt, good in zip(attempts, counted, strict=False):
                if not good and not attempt.lost:
                    logger.warning(text, attempt.job.id, _outcome(attempt))

    def _call(self, call: Callable[[], T], attempts: list[Attempt], source: Source, *, alone: bool = False) -> T | None:
        """Return the reply to a call to Redis.

        Args:
            call: the call to Redis.
            attempts: the attempts that it settles.
            source: the shard.
            alone: the call only settles one attempt, so nothing else can be the cause of an error.

        Returns:
            None if the node of the shard cannot be reached: it rests, and the attempts are settled when it works again.
                None, too, if the call was given up: on a bug, or when the worker halts.
        """
        began = time.monotonic()
        try:
            with source.queue.deployment.connection.limited(CALL_SECONDS):
                answer = call()
        except Exception as error:
            fault = self._health.failed("fetch loop", error)
            if fault is Fault.BUG or self.stage == Stage.HALT:
                self._give_up(attempts, one_by_one=fault is Fault.BUG and not alone)
                return None
            self._nodes.failed(source.place, fault, error, began)
            if attempts:
                self._ends[source] = [*attempts, *self._ends.get(source, ())]
            return None
        self._health.recovered()
        self._nodes.worked(source.place)
        return answer

    def _give_up(self, attempts: list[Attempt], *, one_by_one: bool) -> None:
        """Drop attempts that could not be settled. If anything else may be the cause, first retry each alone."""
        if one_by_one:
            for attempt in attempts:
                self._settle([attempt])
            return
        for attempt in attempts:
            what = "it was acked before" if attempt.acked else "its lease will run out"
            text = "%s: the end of the attempt (%s) could not be stored; %s"
            logger.error(text, attempt.job.id, _outcome(attempt), what)
        self.held.difference_update(attempts)

    # --- rest

    def _rest(self) -> None:
        """Wait for a due time, an ended attempt or a wake token."""
        selector, slots = self._selector, self.slots
        if self._process.config.burst and not self._in_hand and not slots.done:
            self._end_burst(time.monotonic())
        selector.resting = True  # from here on an ended attempt ends the rest; the checks below cover earlier ones
        now = time.monotonic()
        until = self.limits.retry_at
        if slots.inbox:
            self._serve_inbox(now)
            until = min(until, now + _RECHECK_SECONDS)
        if self._quarantined and not self._in_hand:
            until = min(until, self._end_idle(now))
        if self._readiness.until > now:
            until = min(until, self._readiness.until)
        if self._ends:
            until = min(until, self._settle_at)
        has_room = self.stage == Stage.WORK and slots.free > len(slots.inbox) and self._readiness.until <= now
        if slots.done or self._can_settle or (self.stage > Stage.WORK and self._has_only_stuck):
            selector.resting = False
            return
        if self.stage > Stage.WORK:
            self._stop_listening()
        else:
            until = min(until, self._refresh_wake_ups(now, has_room=has_room))
        selector.rest(min(until, selector.next_due_at()) if has_room else until)

    def _serve_inbox(self, now: float) -> None:
        """Keep held jobs from waiting for busy slots: wake an idle slot, or give the jobs back after a while."""
        slots = self.slots
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
        self._give_back("no free slot")

    def _end_idle(self, now: float) -> float:
        """End a quarantine process that has been idle for too long, or return when that is."""
        idle_until = self._busy_at + self._process.config.quarantine_idle
        if now >= idle_until:
            self._process.end(Stage.DRAIN, code=EXIT_DRY)
        return idle_until

    def _end_burst(self, now: float) -> None:
        """End if no shard has ready jobs. The last attempt may have left some, so each shard is asked once more."""
        if self.unreachable_for():
            return
        asked = [source.sent_at > self._busy_at for source in self._selector.sources]
        if not all(asked):
            self._selector.check_all()
        elif all(source.due_at > now for source in self._selector.sources):
            self.advance(Stage.DRAIN)

    # --- wake-ups
    # A process listens whenever it can take a job, also while it is busy: else the jobs of one queue would hide those
    # of the others. What it knows of due work and cannot use, it passes on: a token in a list reaches only one process,
    # and due times are known only to who has asked for them.

    def _refresh_wake_ups(self, now: float, *, has_room: bool) -> float:
        """Listen if there is room for jobs, and pass on what this process leaves. Return when to call this again."""
        selector, waker = self._selector, self.waker
        config, until = self._process.config, NEVER
        if has_room and not config.dispatcher:  # else the dispatcher of this process checks the shards
            until = selector.next_safety_check(now, config.safety_check)
        if waker is None:
            return until
        if has_room:
            until = min(until, self._listen(waker, now))
        else:
            selector.waiting = frozenset()
        waker.put_back(selector.take_unshared(now - PATIENCE))
        return min(until, selector.next_unshared_at() + PATIENCE)

    def _listen(self, waker: WakeListener, now: float) -> float:
        selector = self._selector
        if now < self._listened_at and selector.next_due_at() <= now:
            return self._listened_at
        self._listened_at = now + PATIENCE
        names = selector.uncertain_queues(now) - self.limits.full_queues
        selector.waiting = names  # set before the check, so that a read that begins now is for these queues
        if not names or waker.listens_to(names):
            return NEVER
        waker.call(names)
        return now + REPEAT

    def _stop_listening(self) -> None:
        """Pass on all that this process knows of work to come."""
        places = self._selector.stop_waiting()
        if self.waker is not None:
            self.waker.put_back(places)


def _settlements_of(attempts: list[Attempt]) -> tuple[list[Settlement], list[Settlement]]:
    """Return the settlements of these attempts, and the further ones that are stored with them."""
    settlements = [attempt.settlement for attempt in attempts if attempt.settlement is not None]
    return settlements, [one.also for one in settlements if one.also is not None]


def _outcome(attempt: Attempt) -> str:
    return attempt.settlement.outcome if attempt.settlement is not None else "?"
