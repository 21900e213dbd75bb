"""Queue with its verbs: of callers, of the holders of jobs, and of operators.

The delivery guarantee is implemented here and in the scripts: at least once under the durability of the Redis in use;
never before the due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a request id (:mod:`.job`), so that
the client library may repeat it after a lost reply: the repeated call gets the first reply and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from zlib import crc32

from . import actions, reading
from .actions import GONE, Action, live_ids
from .errors import DelayQError, IdTaken, NotConfirmed, QueueFull, QueuePaused
from .figures import Tally
from .job import Generation, Job, NewJob, digest_of, new_key, request_for
from .job_view import Reply
from .layouts import Layout
from .many import JobSender, RoomWait
from .outcomes import (
    CLOSED_LETTER,
    FULL_LETTER,
    MOST_MARKS,
    OF_LETTER,
    UNCHANGED_LETTERS,
    AttemptOutcome,
    Batch,
    CompletionMark,
    ScheduleOutcome,
    Settlement,
    Tick,
    Which,
    bury,
    count_outcomes,
    expire,
)
from .quotas import RoomSearch
from .records.frames import (
    CHUNK,
    content_of,
    pack,
    pack_deadline,
    pack_known,
    pack_marks,
    pack_new,
    pack_settlements,
    unpack_batch,
    unpack_begun,
    unpack_marks,
    unpack_tick,
)
from .records.keys import SHARD_KEYS, number_of
from .redis.pool import last_sent
from .registry import QueueRegistry, ShardSet
from .resharding import visit

K = TypeVar("K")

_TOUCHED: Final = {"h": "held", "s": "stopping", "l": "lost"}
#: the first and the last class that a reserve serves
_SERVED: Final[dict[Which, tuple[bytes, bytes]]] = {
    "all": (b"1", b"9"),
    "others": (b"1", b"8"),
    "quarantined": (b"9", b"9"),
}


class Queue(ShardSet):
    """Named queue of jobs. Get one from :meth:`Broker.queue`; all methods may be called from any thread.

    Every method raises :class:`QueueUnavailable` when Redis cannot be reached or temporarily refuses to work.
    """

    def __init__(self, registry: QueueRegistry[ShardSet], name: str, layout: Layout, tally: Tally) -> None:
        super().__init__(registry, name, layout)
        #: counters of finished attempts in this process that are not in Redis yet
        self.tally = tally

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, shards={self.shards}>"

    # -- verbs of holders, on one shard by its number ------------------------------------------------------------------

    def reserve(
        self,
        number: int,
        limit: int,
        *,
        worker: str,
        request: bytes | None = None,
        ttr_ms: int | None = None,
        started: bool = False,
        prefer_own_ttr: bool = False,
        which: Which = "all",
        lanes: bytes = b"",
    ) -> Batch:
        """Reserve up to ``limit`` (1 … 250) due jobs of a shard under one lease.

        Args:
            worker: name of the holder.
            request: the request id of an earlier call whose reply was lost: the same jobs are returned again.
            ttr_ms: duration of the lease; None = that of the broker's leases.
            started: the holder has no heartbeat to report later starts: the attempts count as begun now.
            prefer_own_ttr: a job with a ``ttr`` of its own is held for that time; includes ``started``.
            which: also the jobs that wait for quarantine (all), only the others, or only those.
            lanes: what the caller says of limits (:class:`.limits.LaneNotes`); b"" = it knows none.
        """
        began, rest = time.monotonic(), (b"", b"", *_SERVED[which], lanes)
        lease = _lease(ttr_ms, started=started, prefer_own_ttr=prefer_own_ttr)
        frame = self.call("reserve", number, worker.encode(), min(limit, CHUNK), *lease, *rest, request=request)
        return self.batch_of(frame, number, worker, last_sent(began))

    def settle_reserve(
        self,
        number: int,
        acks: Sequence[Settlement],
        limit: int,
        *,
        worker: str,
        request: bytes | None = None,
        which: Which = "all",
        lanes: bytes = b"",
    ) -> tuple[list[bool], Batch]:
        """Settle up to 250 jobs of a shard and reserve its next ones, in one script call.

        Returns:
            True for each settlement that was applied (see :meth:`settle`), and the batch.
        """
        began, rest = time.monotonic(), (min(limit, CHUNK), *_SERVED[which], lanes)
        frame = pack_settlements(acks)
        answers, batch = self.call("settle", number, worker.encode(), frame, *rest, request=request)
        return _applied(answers), self.batch_of(batch, number, worker, last_sent(began))

    def settle(self, settlements: Sequence[Settlement], *, seed: bytes | None = None) -> list[bool]:
        """Apply settlements, each by its own verb (:class:`Settlement`).

        Args:
            settlements: how each job ends.
            seed: a later call with the same seed and the same jobs, whatever their verbs, gets the replies of the first
                call.

        Returns:
            For each, True if it was applied. False: the lease was lost and nothing was changed. A record is always
                applied, unless it is to be stored ``once`` and an end is stored already.
        """
        applied = [False] * len(settlements)
        for (number, worker), places in _chunks((one.job.shard, one.job.worker) for one in settlements):
            chunk = [settlements[place] for place in places]
            request = None if seed is None else _request_of(seed, [one.job for one in chunk])
            answers, _ = self.call("settle", number, worker.encode(), pack_settlements(chunk), b"", request=request)
            for place, is_applied in zip(places, _applied(answers), strict=True):
                applied[place] = is_applied
        return applied

    def touch(
        self,
        jobs: Sequence[Job],
        started: Container[tuple[str, int]] = (),
        *,
        ttr_ms: int | None = None,
        permitted: set[int] | None = None,
    ) -> list[str]:
        """Extend the leases of held jobs to one full lease from now.

        Args:
            ttr_ms: duration of the lease from now; None = that of the broker's leases.
            started: (id, token) of those whose handler has begun: from now on a crash counts against them.
            permitted: gets the places of those that have permits (:attr:`.Job.permit`), which have to be renewed.

        Returns:
            For each: held, stopping (held, but cancelled) or lost.
        """
        answers = ["lost"] * len(jobs)
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms
        for number, places in _chunks(job.shard for job in jobs):
            held = [jobs[place] for place in places]
            frame = pack([(job.id, job.token, (job.id, job.token) in started) for job in held])
            for place, letter in zip(places, self.call("touch", number, frame, ttr).decode(), strict=True):
                answers[place] = _TOUCHED[letter.lower()]
                if permitted is not None and letter.isupper():
                    permitted.add(place)
        return answers

    def batch_of(self, frame: bytes, number: int, worker: str, sent_at: float) -> Batch:
        """Return the batch in a reply of a shard; jobs that cannot be read are buried, late ones are ended."""
        batch = unpack_batch(frame, self.name, number, worker)
        batch.sent_at = sent_at
        if batch.broken:
            self.deployment.on_unreadable(batch.broken)
            undecodable = partial(
                bury, reason="undecodable", outcome=AttemptOutcome.UNDECODABLE, error_class="Undecodable"
            )
            self.settle([undecodable(job, error=job.broken.encode()) for job in batch.broken])
        late = {job.id: job for job in batch.jobs if job.options_json and job.has_expired(batch.now_ms)}
        if late:
            self.settle([expire(job) for job in late.values()])
            batch.jobs, batch.expired = [job for job in batch.jobs if job.id not in late], len(late)
        return batch

    def expired(self, number: int, *, offset: int = 0) -> list[Job]:
        """Return jobs of a shard whose lease ran out, the oldest first, up to 250; none during a reaper hold.

        :meth:`take_over` gives them to one holder, who settles them.
        """
        return self._leases(number, offset, only_expired=True)

    def take_over(self, jobs: Sequence[Job], worker: str) -> list[Job]:
        """Take jobs of one shard whose leases ran out over, under a new token, for one lease from now.

        Args:
            jobs: up to 250, as their holders have them.
            worker: the new holder. The returned jobs still name the old ones, to which the attempts belong.

        Returns:
            The jobs under the new token. Those that are settled, held under another token or not over are left out.
        """
        number, old = jobs[0].shard, {job.id: job.worker for job in jobs}
        held = pack([(job.id, job.token) for job in jobs])
        batch = unpack_batch(self.call("take_over", number, held, worker.encode()), self.name, number, worker)
        return [replace(job, worker=old[job.id]) for job in batch.jobs + batch.broken]

    def begun(
        self, number: int, worker: str = "", *, before_ms: float | None = None, except_workers: Iterable[str] = ()
    ) -> list[Job]:
        """Return jobs of a shard that were acked before their attempts began, and whose end is not stored yet.

        Args:
            worker: only its jobs; "" = those of all.
            before_ms: only attempts that began before this moment, Unix ms; None = whenever.
            except_workers: names of workers whose jobs are left out.

        Returns:
            At most 250; ``deadline_ms`` is the moment at which the attempt began.
        """
        before = b"" if before_ms is None else b"%d" % before_ms
        left_out = [name.encode() for name in except_workers]
        return unpack_begun(self.call("begun", number, worker.encode(), before, *left_out), self.name, number)

    def leases(self, number: int) -> list[Job]:
        """Return all reserved jobs of a shard, by the end of their lease; read in chunks, so not an atomic snapshot."""
        jobs: dict[str, Job] = {}
        offset = 0
        while chunk := self._leases(number, offset, only_expired=False):
            jobs.update((job.id, job) for job in chunk)
            # Leases that end meanwhile move the others forward. Stepping back by one chunk's tail would not help, so
            # the walk continues and a skipped lease is found by the next call.
            offset += len(chunk)
        return list(jobs.values())

    def _leases(self, number: int, offset: int, *, only_expired: bool) -> list[Job]:
        frame = reading.read(
            self.deployment,
            self.name,
            number,
            index=SHARD_KEYS.index("lease") + 1,
            skip=offset,
            limit=CHUNK,
            expired=only_expired,
        )
        return [view.job for view in Reply(self.name, number, frame).views()]

    # -- verbs of dispatchers ------------------------------------------------------------------------------------------

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """Return the state of a shard to a dispatcher; wake a consumer if due work waits, and restore lost rules.

        With ``hold`` no job is taken from its holder for one lease, because holders may have been unable to extend
        their leases (an outage, a clock that jumped).
        """
        tick, stored_rules = unpack_tick(self.call("tick", number, b"1" if hold else b"0"))
        self.registry.check_rules(self, number, stored_rules, tick.now_ms)
        return tick

    def marks(
        self, number: int, forget: Sequence[CompletionMark] = (), limit: int = MOST_MARKS
    ) -> list[CompletionMark]:
        """Return completion marks of a shard, and forget processed ones.

        Args:
            forget: marks that were processed; one that has changed since stays.
            limit: maximum number of other marks returned, in no order: a random choice if there are more.
        """
        while len(forget) > MOST_MARKS:
            self.call("marks", number, pack_marks(forget[:MOST_MARKS]), 0, request=b"")
            forget = forget[MOST_MARKS:]
        return unpack_marks(self.call("marks", number, pack_marks(forget), limit, request=b""))

    # -- new jobs ------------------------------------------------------------------------------------------------------

    def schedule(
        self, new: NewJob, *, not_after_ms: float | None = None, request: bytes | None = None
    ) -> ScheduleOutcome:
        """Schedule one job.

        Args:
            not_after_ms: Unix ms on Redis's clock: a call that arrives later changes nothing. None = no limit.
            request: the request id of an earlier call whose reply was lost, or was not final; None = a new one.

        Returns:
            created, merged, replaced, ignored or gated; of a durable job also known (this very generation, or payload,
            is live, gated or in the morgue, or has ended and its mark was not acknowledged yet); or late.

        Raises:
            IdTaken: the live job of this id belongs to another task, or ``on_conflict="error"`` met a live job.
            InvalidJob: the id is empty or longer than 255 bytes.
            QueueFull: the queue or the id has no room, or Redis has no memory left.
            QueuePaused: the queue takes no new jobs now.
            NotConfirmed: Redis has the job, and no confirmation came in time. ``error.outcomes`` is its outcome.
        """
        # A durable job may have been sent before, by a process that died before it got the reply. Only schedule.lua
        # recognises the request of an earlier call.
        is_first = request is None and not (new.durable or self.is_confirmed(new))
        if is_first and new.fresh and new.payload is None and not_after_ms is None and not new.group:
            # The key of a fresh job belongs to this call alone, so it serves as the request id, too.
            new.key = new.key or new_key()
            deployment, keys = self.deployment, self.home(new.id).fresh_keys[new.priority]
            ident, task, body, is_delay, ms = content_of(new)
            due = (b"+%d" if is_delay else b"=%d") % ms
            if deployment.scripts.call("schedule_fresh", keys, new.key, deployment.repeats, ident, task, body, due):
                return ScheduleOutcome.CREATED
        send = partial(self._schedule_one, new, not_after_ms=not_after_ms, request=request)
        outcome, wait = send(), RoomWait()
        while new.room_ms and outcome is ScheduleOutcome.FULL and wait.rest(new.room_ms):
            outcome = send()
        if outcome.is_refusal:
            raise self.refusal(outcome, new)
        return outcome

    def schedule_tick(self, new: NewJob, tick_ms: int) -> ScheduleOutcome:
        """Schedule a job once per id and tick (Unix ms): of all processes, only the first call has an effect.

        Returns:
            An outcome of :meth:`schedule_many`, or fired: this tick of the id, or a later one, was fired before.
        """
        return self._schedule_one(new, b"%d" % tick_ms)

    def schedule_many(
        self, news: Iterable[NewJob], *, not_after_ms: float | None = None, all_or_none: bool = False
    ) -> list[ScheduleOutcome]:
        """Schedule many jobs, in chunks of at most 250 of one shard.

        Args:
            news: the jobs.
            not_after_ms: see :meth:`schedule`; it applies to each chunk as a whole.
            all_or_none: if a job is refused, store none of its shard; for up to 250 jobs, none of them durable. While
                the number of shards is being changed this holds for the jobs of an old shard that already live
                there, and for the others by their new shards.

        Returns:
            The outcome of each job in the order given, refusals too.

        Raises:
            NotConfirmed: all jobs were sent, and some are not confirmed; the error names them and all outcomes.
        """
        letter_of: dict[int, str] = {}
        sender = JobSender(self, not_after_ms, together=all_or_none)
        for places, letters in sender.send(news):
            letter_of.update(zip(places, letters, strict=True))
        outcomes = [OF_LETTER[letter_of[place]] for place in range(len(letter_of))]
        sender.unconfirmed.check(count_outcomes(letter_of.values()), outcomes)
        return outcomes

    def count_many(
        self, news: Iterable[NewJob], *, not_after_ms: float | None = None, all_or_none: bool = False
    ) -> dict[str, int]:
        """Schedule jobs, even an endless iterable, and return their number per outcome; see :meth:`schedule_many`."""
        sender = JobSender(self, not_after_ms, together=all_or_none)
        counts = count_outcomes(letters for _, letters in sender.send(news))
        sender.unconfirmed.check(counts)
        return counts

    def refusal(self, outcome: ScheduleOutcome, new: NewJob) -> DelayQError:
        """Return the error for a job whose outcome of :meth:`schedule_many` is a refusal."""
        if outcome is ScheduleOutcome.TAKEN:
            return IdTaken(
                f"id {new.id!r} in queue {self.name!r} belongs to a live job of another task; "
                f"give {new.task!r} ids of its own"
            )
        if outcome is ScheduleOutcome.EXISTS:
            return IdTaken(
                f"a job with id {new.id!r} already lives in queue {self.name!r}; "
                "use on_conflict='replace' or 'ignore', or cancel it first"
            )
        if outcome is ScheduleOutcome.PAUSED:
            return self.paused_error()
        if outcome is ScheduleOutcome.WITHHELD:
            return DelayQError(f"job {new.id!r} was not stored because another job of its shard was refused")
        limit = f", or id {new.id!r} its max_payloads ({new.max_payloads})" if new.payload is not None else ""
        return QueueFull(
            f"queue {self.name!r} has reached its max_length{limit}; let the workers catch up, or raise the limit"
        )

    def paused_error(self) -> QueuePaused:
        """Return the error for a new job that was refused because of a pause: of this queue, or of all producers."""
        if self.registry.producers_paused_since() is not None:
            return QueuePaused(
                f"no queue of this deployment takes new jobs now, not even {self.name!r}: all producers are paused; "
                "end it by manage.py delayq_queue resume-producers, or try again later"
            )
        return QueuePaused(f"queue {self.name!r} is paused for new jobs; resume it, or try again later")

    def _schedule_one(
        self, new: NewJob, tick: bytes = b"", not_after_ms: float | None = None, request: bytes | None = None
    ) -> ScheduleOutcome:
        send = partial(self._send_one, new, tick, not_after_ms, request)
        letter = send()
        if letter == FULL_LETTER:
            search = RoomSearch(self)
            while letter == FULL_LETTER and search.find(self.shard_of(new.id)):
                letter = send()
        return OF_LETTER[letter]

    def _send_one(self, new: NewJob, tick: bytes, not_after_ms: float | None, request: bytes | None) -> str:
        entry, deadline = pack_new(new), pack_deadline(not_after_ms)
        if request is None and new.repeatable:
            request = request_for((new,))
        confirmed = not tick and self.is_confirmed(new)
        missing: NotConfirmed | None = None

        def ask(number: int) -> str | None:
            nonlocal missing
            missing = None  # that of an older shard, which refused the job, is of no use
            try:
                reply: bytes = self.call(
                    "schedule", number, entry, b"0", tick, deadline, request=request, confirmed=confirmed
                )
            except NotConfirmed as error:
                missing, reply = error, error.reply
            new.joined = reply[1:]
            letter = chr(reply[0])
            return None if letter == CLOSED_LETTER else letter

        letter = visit(self, new.id, ask, create=True, fresh=new.fresh and not new.durable) or CLOSED_LETTER
        if missing is not None and letter not in UNCHANGED_LETTERS:
            missing.id, missing.outcomes, missing.unconfirmed = new.id, [OF_LETTER[letter]], {0}
            raise missing
        return letter

    # -- ticks of recurring tasks --------------------------------------------------------------------------------------

    def first_sight(self, ident: str, schedule: str) -> int:
        """Return the moment (Unix ms) after which ticks of this id are to be fired.

        Ticks up to it were fired or skipped, or precede the first call of any process with this schedule, a text: a
        changed one is a new schedule, whatever was fired earlier.
        """
        since = int(self.call("sight", self.shard_of(ident), ident.encode(), schedule.encode(), b""))
        if len(self.epochs) == 1:
            return since
        (fired,) = reading.Inspector(self.registry).last_ticks([(self, ident)])
        return max(since, fired or 0)

    def skip_tick(self, ident: str, schedule: str, tick_ms: int) -> bool:
        """Count a tick, and all before it, as fired without scheduling a job; True for the first process that does."""
        tick = b"%d" % tick_ms
        return int(self.call("sight", self.shard_of(ident), ident.encode(), schedule.encode(), tick)) < tick_ms

    def knows(self, pairs: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[bool]:
        """Return, for each durable generation or payload, if Redis has it: live, gated, buried, or ended and marked.

        Args:
            pairs: id and key of each, and of a payload its digest (:func:`.records.frames.digest`).
        """
        present = [False] * len(pairs)
        records = [pack_known(*pair) for pair in pairs]
        # A job kicked from an old shard's morgue meanwhile is first put into the newer shard, which is queried later.
        for epoch, shards in self.epochs:
            unknown = [place for place, is_known in enumerate(present) if not is_known]
            for number, chosen in _chunks(
                number_of(epoch, crc32(pairs[place][0].encode()) % shards) for place in unknown
            ):
                places = [unknown[one] for one in chosen]
                frame = b"".join([records[place] for place in places])
                for place, answer in zip(places, self.call("known", number, frame, request=b""), strict=True):
                    present[place] = answer == ord("1")
        return present

    def reserve_id(
        self,
        ident: str,
        *,
        worker: str,
        ttr_ms: int | None = None,
        started: bool = False,
        prefer_own_ttr: bool = False,
        early: bool = False,
        buried: bool = False,
    ) -> Batch:
        """Reserve one waiting job by its id; return an empty batch if none is due under it.

        Args:
            early: also before its due time.
            buried: if no job of the id is live, kick the one that was buried last and reserve it, in one atomic step.
                There are several if its record lies in the morgue of an old epoch, and another holder may come between.
            worker, ttr_ms, started, prefer_own_ttr: see :meth:`reserve`.
        """
        lease = _lease(ttr_ms, started=started, prefer_own_ttr=prefer_own_ttr)

        def ask(number: int, *, buried: bool = False) -> Batch | None:
            began = time.monotonic()
            rest = b"e" * early + b"b" * buried, *_SERVED["all"]
            frame = self.call("reserve", number, worker.encode(), 1, *lease, ident.encode(), *rest)
            return None if frame == CLOSED_LETTER.encode() else self.batch_of(frame, number, worker, last_sent(began))

        batch = visit(self, ident, partial(ask, buried=buried)) or Batch()
        # One that is not live may lie in the morgue of an old epoch.
        may_be_old = buried and not batch.jobs and len(self.epochs) > 1
        if may_be_old and not live_ids(self, [ident.encode()]) and self.kick(ident) == "kicked":
            batch = visit(self, ident, ask) or Batch()
        return batch

    # -- verbs of callers and operators --------------------------------------------------------------------------------

    def cancel(
        self,
        ident: str,
        *,
        task: str = "",
        not_after_ms: float | None = None,
        generation: Generation | None = None,
        request: bytes | None = None,
    ) -> str:
        """Cancel a job: remove a waiting one; mark a running one so that it is not put back.

        Args:
            task: the task that it must have; "" = any.
            not_after_ms: see :meth:`schedule`.
            generation: which job of the id; None = any live one, with the content gated behind it.
            request: the id of the call, if it repeats an earlier one (:mod:`.job`).

        Returns:
            cancelled, stopping (it is running), "" (there is no such live job) or late.

        Raises:
            IdTaken: the live job of this id belongs to a task other than ``task``; the next two raise it, too.
        """
        return self._act(actions.cancel(task, not_after_ms), ident, task, generation=generation, request=request)

    def reschedule(
        self,
        ident: str,
        *,
        due_ms: int | None = None,
        delay_ms: int | None = None,
        task: str = "",
        generation: Generation | None = None,
        request: bytes | None = None,
    ) -> bool:
        """Change the due time of the waiting job of an id (of the gated content, during an attempt).

        Args:
            due_ms: Unix ms; or
            delay_ms: ms from now, on Redis's clock.
            task, generation, request: see :meth:`cancel`.

        Raises:
            InvalidJob: neither or both are given.
        """
        action = actions.reschedule(task, due_ms=due_ms, delay_ms=delay_ms)
        return self._act(action, ident, task, generation=generation, request=request) == "moved"

    def run_now(
        self, ident: str, *, task: str = "", generation: Generation | None = None, request: bytes | None = None
    ) -> bool:
        """Make a waiting job due now; an overdue one keeps its place. For the arguments see :meth:`cancel`."""
        return self._act(actions.run_now(task), ident, task, generation=generation, request=request) == "moved"

    def kick(
        self,
        ident: str,
        *,
        key: bytes | None = None,
        delay_ms: int = 0,
        replace: bool = False,
        request: bytes | None = None,
    ) -> str:
        """Move a job from the morgue back into the queue, with its failures reset.

        Args:
            key: which generation; None = the one that was buried last.
            replace: replace a live plain job of the same id.
            request: see :meth:`cancel`; of no effect while the queue has old epochs.

        Returns:
            kicked, live (a live job prevents it) or "" (no such record).
        """
        generation = Generation((key,)) if key else None
        return self._act(actions.Kick(delay_ms, replace=replace), ident, generation=generation, request=request)

    def discard(self, ident: str, *, key: bytes | None = None, request: bytes | None = None) -> bool:
        """Delete a job from the morgue; return False if it is not there. For the arguments see :meth:`kick`."""
        generation = Generation((key,)) if key else None
        return self._act(actions.Discard(), ident, generation=generation, request=request) == "discarded"

    def _act(
        self, action: Action, ident: str, task: str = "", *, generation: Generation | None, request: bytes | None
    ) -> str:
        outcome = action.anywhere(self, ident, generation, request=request)
        if outcome == "taken":
            raise IdTaken(f"id {ident!r} in queue {self.name!r} belongs to a live job of another task, not to {task!r}")
        return "" if outcome == GONE else outcome


def _lease(ttr_ms: int | None, *, started: bool, prefer_own_ttr: bool) -> tuple[bytes, bytes]:
    """Return the arguments of ``reserve.lua`` for the leases."""
    return b"" if ttr_ms is None else b"%d" % ttr_ms, b"2" if prefer_own_ttr else b"1" if started else b"0"


def _chunks(keys: Iterable[K]) -> Iterator[tuple[K, list[int]]]:
    """Yield each key with the places where it stands, up to 250 of them at a time."""
    places: dict[K, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    for key, mine in places.items():
        for start in range(0, len(mine), CHUNK):
            yield key, mine[start : start + CHUNK]


def _applied(answers: bytes) -> list[bool]:
    return [answer == ord("1") for answer in answers]


def _request_of(seed: bytes, jobs: Sequence[Job]) -> bytes:
    return digest_of(seed, *[b"%d %b" % (job.token, job.id.encode()) for job in jobs])
