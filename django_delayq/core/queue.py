"""Queue with its verbs: schedule one job or many, and one method for each verb that names a job by its id.

Many jobs are sent by :mod:`.sending.many`; the verbs of holders stand in :mod:`.holding`.

The delivery guarantee is implemented here and in the scripts: at least once under the durability of the Redis in use;
never before the due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a request id (:mod:`.job`), so that
the client library may repeat it after a lost reply: the repeated call gets the first reply and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

from . import actions, holding
from .actions import live_ids
from .errors import DelayQError, IdTaken, NotConfirmed, QueueFull, QueuePaused
from .figures import Tally
from .job import Generation, NewJob, new_key, request_for
from .morgue import Discard, Kick, KickPace
from .outcomes import (
    CLOSED_LETTER,
    CLOSED_REPLY,
    FULL_LETTER,
    MOST_MARKS,
    OF_LETTER,
    UNCHANGED_LETTERS,
    Batch,
    CompletionMark,
    ScheduleOutcome,
    Tick,
    count_outcomes,
)
from .records.frames import (
    CHUNK,
    content_of,
    pack_deadline,
    pack_known,
    pack_marks,
    pack_new,
    start_flag,
    unpack_marks,
    unpack_tick,
)
from .records.keys import number_of
from .records.layout import Layout
from .redis.faults import Fault, classify
from .redis.pool import last_sent, within
from .redis.scripts import clear_errors
from .registry import QueueRegistry, ShardSet
from .resharding import visit
from .sending.many import JobSender, check_together, until_room
from .sending.quotas import RoomSearch


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

    # -- verbs of holders, on one shard by its number (:mod:`.holding`) ------------------------------------------------

    reserve = holding.reserve
    settle_reserve = holding.settle_reserve
    settle = holding.settle
    touch = holding.touch
    expired = holding.expired
    take_over = holding.take_over
    begun = holding.begun
    held_by = holding.held_by
    leases = holding.leases
    batch_of = holding.batch_of

    # -- verbs of dispatchers ------------------------------------------------------------------------------------------

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """Return the state of a shard to a dispatcher; wake a consumer if due work waits, and restore lost rules.

        Args:
            hold: arm the reaper hold: for one lease no job is taken from its holder, because holders may have been
                unable to extend their leases (an outage, a clock that jumped).
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
            limit: maximum number of other marks returned.

        Returns:
            Marks in no order, a random choice if there are more.
        """
        some, rest = forget[:MOST_MARKS], forget[MOST_MARKS:]
        while rest:
            self.call("marks", number, pack_marks(some), 0, request=b"")
            some, rest = rest[:MOST_MARKS], rest[MOST_MARKS:]
        return unpack_marks(self.call("marks", number, pack_marks(some), limit, request=b""))

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
        is_short = request is None and not_after_ms is None and self._is_plain(new)
        if is_short and self.deployment.scripts.call(*self._fresh_call(new)):
            return ScheduleOutcome.CREATED
        send = partial(self._schedule_one, new, not_after_ms=not_after_ms, request=request)
        outcome = send()
        if new.room_ms and outcome is ScheduleOutcome.FULL:
            outcome = until_room(new.room_ms, send)
        return self.accepted(outcome, new)

    async def schedule_on_loop(self, new: NewJob) -> ScheduleOutcome:
        """Schedule one job from the running event loop, see :meth:`schedule`.

        It needs no thread if Redis accepts the job at once. Otherwise the same call, with the same request id, is made
        in a thread: it waits, looks elsewhere, tries again or raises the error. Both share one time limit.
        """
        scripts, connection, request = self.deployment.scripts, self.deployment.connection, None
        until = time.monotonic() + connection.patience
        if connection.loops.can_call and not (new.room_ms or self.is_confirmed(new)):
            try:
                if self._is_plain(new) and await scripts.call_on_loop(*self._fresh_call(new), until=until):
                    return ScheduleOutcome.CREATED
                request = request_for((new,))
                epoch, shards = self.first_epoch(fresh=_is_nowhere(new))
                shard = self.shard(number_of(epoch, crc32(new.id.encode()) % shards))
                args = (request, shard.constants, pack_new(new), b"0", b"", b"", b"1")
                reply: bytes = await scripts.call_on_loop("schedule", shard.keys, *args, until=until)
                outcome, new.joined = OF_LETTER[chr(reply[0])], reply[1:]
                if outcome is ScheduleOutcome.IGNORED or outcome.is_stored:
                    return outcome
            except DelayQError as error:
                if classify(error) is Fault.SATURATION:
                    raise

        def send_again() -> ScheduleOutcome:
            with within(until):
                return self.schedule(new, request=request)

        return await connection.loops.in_thread(send_again)

    def schedule_tick(self, new: NewJob, tick_ms: int) -> ScheduleOutcome:
        """Schedule a job once per id and tick: of all processes, only the first call has an effect.

        See :meth:`schedule`.

        Args:
            tick_ms: Unix ms. A tick at or before the last one of this id counts as fired.

        Returns:
            An outcome of :meth:`schedule_many`, or fired: this tick was fired before.
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
            For each job in the order given: created, merged, replaced, ignored, gated, taken (the id belongs to a live
                job of another task), exists (``on_conflict="error"`` met a live job), full, paused, known or late; with
                ``all_or_none`` also withheld (another job of the shard was refused).

        Raises:
            NotConfirmed: all jobs were sent, and some are not confirmed; the error names them and all outcomes.
        """
        letter_of: dict[int, str] = {}
        news = check_together(news) if all_or_none else news
        sender = JobSender(self, not_after_ms, keys=True, together=all_or_none)
        for places, letters in sender.send(news):
            letter_of.update(zip(places, letters, strict=True))
        outcomes = [OF_LETTER[letter_of[place]] for place in range(len(letter_of))]
        sender.unconfirmed.check(count_outcomes(letter_of.values()), outcomes)
        return outcomes

    def count_many(
        self, news: Iterable[NewJob], *, not_after_ms: float | None = None, all_or_none: bool = False
    ) -> dict[str, int]:
        """Schedule any number of jobs, even an endless iterable, and return the number of jobs per outcome.

        See :meth:`schedule_many`.
        """
        news = check_together(news) if all_or_none else news
        sender = JobSender(self, not_after_ms, together=all_or_none)
        counts = count_outcomes(letters for _, letters in sender.send(news))
        sender.unconfirmed.check(counts)
        return counts

    def accepted(self, outcome: ScheduleOutcome, new: NewJob) -> ScheduleOutcome:
        """Return the outcome of a job; raise :meth:`refusal` if Redis did not accept the job."""
        if outcome.is_refusal:
            raise self.refusal(outcome, new)
        return outcome

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
        if new.payload is not None:
            return QueueFull(
                f"queue {self.name!r} has reached its max_length, or id {new.id!r} its max_payloads "
                f"({new.max_payloads}); let the workers catch up, or raise the limit"
            )
        return QueueFull(f"queue {self.name!r} has reached its max_length; let the workers catch up, or raise it")

    def paused_error(self) -> QueuePaused:
        """Return the error for a new job that was refused because of a pause: of this queue, or of all producers."""
        if self.registry.producers_paused_since() is not None:
            return QueuePaused(
                f"no queue of this deployment takes new jobs now, not even {self.name!r}: all producers are paused; "
                "end it by manage.py delayq_queue resume-producers, or try again later"
            )
        return QueuePaused(f"queue {self.name!r} is paused for new jobs; resume it, or try again later")

    def _is_plain(self, new: NewJob) -> bool:
        """Return True for a job under an id that was just generated, and with nothing else to look at."""
        return new.fresh and new.payload is None and not (new.durable or self.is_confirmed(new))

    def _fresh_call(self, new: NewJob) -> tuple[Any, ...]:
        """Return script, keys and arguments of the shortest call for such a job; it replies whether it stored it."""
        # The key of a fresh job belongs to this call alone, so it serves as the request id, too.
        new.key = new.key or new_key()
        keys = self.home(new.id).fresh_keys[new.priority]
        ident, task, body, is_delay, ms = content_of(new)
        return (
            "schedule_fresh",
            keys,
            new.key,
            self.deployment.repeats,
            ident,
            task,
            body,
            b"1" if is_delay else b"0",
            ms,
        )

    def _schedule_one(
        self,
        new: NewJob,
        tick: bytes = b"",
        not_after_ms: float | None = None,
        request: bytes | None = None,
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
                    "schedule", number, entry, b"0", tick, deadline, b"1", request=request, confirmed=confirmed
                )
            except NotConfirmed as error:
                missing, reply = error, error.reply
            new.joined = reply[1:]
            letter = chr(reply[0])
            return None if letter == CLOSED_LETTER else letter

        letter = visit(self, new.id, ask, create=True, fresh=_is_nowhere(new)) or CLOSED_LETTER
        if missing is not None and letter not in UNCHANGED_LETTERS:
            missing.id, missing.outcomes, missing.unconfirmed = new.id, [OF_LETTER[letter]], {0}
            raise missing
        return letter

    # -- ticks of recurring tasks --------------------------------------------------------------------------------------

    def last_tick(self, ident: str) -> int | None:
        """Return the last tick of an id that :meth:`schedule_tick` fired, Unix ms."""
        with clear_errors():
            ticks = [
                self.deployment.client.hget(self.shard(number).names["meta"], f"tick:{ident}")
                for number in self.homes(ident)
            ]
        return max((int(tick) for tick in ticks if tick is not None), default=None)

    def first_sight(self, ident: str, schedule: str) -> int:
        """Return the moment after which ticks of this id are to be fired.

        The first call with a schedule sets it to the present moment, for all processes.

        Args:
            schedule: the task's schedule as text. A changed text is a new schedule, whatever was fired earlier.

        Returns:
            Unix ms. Ticks up to it were fired or skipped, or precede the first call with this schedule.
        """
        since = int(self.call("sight", self.shard_of(ident), ident.encode(), schedule.encode(), b""))
        return max(since, self.last_tick(ident) or 0) if len(self.epochs) > 1 else since

    def skip_tick(self, ident: str, schedule: str, tick_ms: int) -> bool:
        """Count a tick, and all before it, as fired without scheduling a job; :meth:`first_sight` returns it then.

        Returns:
            True for the first of all processes that skips it.
        """
        tick = b"%d" % tick_ms
        return int(self.call("sight", self.shard_of(ident), ident.encode(), schedule.encode(), tick)) < tick_ms

    def knows(self, pairs: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[bool]:
        """Return, for each durable generation or payload, if Redis has it: live, gated, buried, or ended and marked.

        Args:
            pairs: id and key of each, and of a payload its digest (:func:`.records.frames.digest`).

        Raises:
            InvalidJob: an id or a key that cannot be one.
        """
        present = [False] * len(pairs)
        records = [pack_known(*pair) for pair in pairs]
        # A job kicked from an old shard's morgue meanwhile is first put into the newer shard, which is queried later.
        for epoch, shards in self.epochs:
            places: dict[int, list[int]] = {}
            for place, pair in enumerate(pairs):
                if not present[place]:
                    places.setdefault(number_of(epoch, crc32(pair[0].encode()) % shards), []).append(place)
            for number, mine in places.items():
                for start in range(0, len(mine), CHUNK):
                    chunk = mine[start : start + CHUNK]
                    frame = b"".join([records[place] for place in chunk])
                    for place, answer in zip(chunk, self.call("known", number, frame, request=b""), strict=True):
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
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms
        flag = start_flag(started=started, prefer_own_ttr=prefer_own_ttr)

        def ask(number: int, *, buried: bool = False) -> Batch | None:
            began = time.monotonic()
            which = b"e" * early + b"b" * buried
            frame = self.call("reserve", number, worker.encode(), 1, ttr, flag, ident.encode(), which)
            return None if frame == CLOSED_REPLY else self.batch_of(frame, number, worker, last_sent(began))

        batch = visit(self, ident, partial(ask, buried=buried)) or Batch()
        if buried and not batch.jobs and self._kick_old(ident):
            batch = visit(self, ident, ask) or Batch()
        return batch

    def _kick_old(self, ident: str) -> bool:
        """Return True if a job that is not live was kicked from the morgue of an old epoch."""
        if len(self.epochs) == 1 or any(live_ids(self, number, [ident.encode()]) for number in self.homes(ident)):
            return False
        return self.kick(ident) == "kicked"

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
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        return self._act(actions.cancel(task, not_after_ms), ident, task, generation, request)

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
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        action = actions.reschedule(task, due_ms=due_ms, delay_ms=delay_ms)
        return self._act(action, ident, task, generation, request) == "moved"

    def run_now(
        self, ident: str, *, task: str = "", generation: Generation | None = None, request: bytes | None = None
    ) -> bool:
        """Make a waiting job due now; an overdue one keeps its place.

        Args:
            task, generation, request: see :meth:`cancel`.

        Raises:
            IdTaken: the live job of this id belongs to a task other than ``task``.
        """
        return self._act(actions.run_now(task), ident, task, generation, request) == "moved"

    def locate(self, ident: str, generation: Generation) -> str:
        """Return the state of a job: live (it waits or runs), gated (behind an attempt of another one), or ""."""
        return actions.LOCATE.anywhere(self, ident, generation)

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
        kick = Kick(KickPace.of(delay_ms), replace=replace)
        outcome = kick.anywhere(self, ident, Generation((key,)) if key else None, request=request)
        return "" if outcome == "gone" else outcome

    def discard(self, ident: str, *, key: bytes | None = None, request: bytes | None = None) -> bool:
        """Delete a job from the morgue; return False if it is not there. For the arguments see :meth:`kick`."""
        generation = Generation((key,)) if key else None
        return Discard().anywhere(self, ident, generation, request=request) == "discarded"

    def _act(
        self, action: actions.Action, ident: str, task: str, generation: Generation | None, request: bytes | None
    ) -> str:
        outcome = action.anywhere(self, ident, generation, request=request)
        if outcome == "taken":
            raise IdTaken(f"id {ident!r} in queue {self.name!r} belongs to a live job of another task, not to {task!r}")
        return outcome


def _is_nowhere(new: NewJob) -> bool:
    """Return True if the id of a job is live nowhere: it was generated just now, and not for an earlier process."""
    return new.fresh and not new.durable
