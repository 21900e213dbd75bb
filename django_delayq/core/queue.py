"""Queue with one method for each verb that names jobs by their ids; the verbs of holders are in :mod:`.shards`.

The delivery guarantee is implemented here and in the scripts: at least once under the durability of the Redis in use;
never before the due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a request id (:mod:`.requests`), so that
the client library may repeat it after a lost reply: the repeated call gets the first reply and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar
from zlib import crc32

from .errors import DelayQError, IdTaken, QueueFull, QueuePaused
from .job import Generation, NewJob
from .operations import actions
from .operations.morgue import Discard, Kick, Pace
from .operations.resharding import Patience
from .records import layout as layouts
from .records.frames import pack_deadline, pack_known, pack_new
from .records.keys import MAX_SHARDS, number_of
from .redis.link import last_sent
from .redis.scripts import clear_errors
from .requests import new_request, request_for
from .sending.chunks import CHUNK, MOVED, ChunkSender
from .shards import Batch, Shards

_OUTCOMES: Final = {
    "c": "created",
    "m": "merged",
    "r": "replaced",
    "i": "ignored",
    "g": "gated",
    "e": "exists",
    "t": "taken",
    "f": "full",
    "p": "paused",
    "v": "moved",
    "d": "fired",
    "k": "known",
    "l": "late",
}
T = TypeVar("T")
MOVED_REPLY: Final = MOVED.encode()


class Queue(Shards):
    """Named queue of jobs. Get one from :meth:`Broker.queue`; all methods may be called from any thread.

    Every method raises :class:`QueueUnavailable` when Redis cannot be reached or temporarily refuses to work.
    """

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, shards={self.shards}>"

    @property
    def shards(self) -> int:
        """Number of shards of the present epoch."""
        return int(self.layout["shards"])

    @property
    def deleted(self) -> bool:
        """True if the queue was deleted, as far as this process has read."""
        return layouts.is_deleted(self.layout)

    def shard_of(self, ident: str) -> int:
        """Return the number of the shard for new jobs of this id."""
        layout = self.layout
        return number_of(layout["epoch"], crc32(ident.encode()) % layout["shards"])

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, new: NewJob, *, not_after_ms: float | None = None) -> str:
        """Schedule one job.

        Args:
            not_after_ms: Unix ms on Redis's clock: a call that arrives later changes nothing. None = no limit.

        Returns:
            created, merged, replaced, ignored or gated; of a durable job also known (this very generation, or payload,
            is live, gated or in the morgue, or has ended and its mark was not acknowledged yet); or late.

        Raises:
            IdTaken: the live job of this id belongs to another task, or ``on_conflict="error"`` met a live job.
            InvalidJob: the id is empty or longer than 255 bytes.
            QueueFull: the queue or the id has no room, or Redis has no memory left.
            QueuePaused: the queue takes no new jobs now.
        """
        outcome = self._schedule_one(new, not_after_ms=not_after_ms)
        if outcome in ("full", "paused", "taken", "exists"):
            raise self.refusal(outcome, new)
        return outcome

    def refusal(self, outcome: str, new: NewJob) -> DelayQError:
        """Return the error for a job whose outcome of :meth:`schedule_many` was taken, exists, full or paused."""
        if outcome == "taken":
            return IdTaken(
                f"id {new.id!r} in queue {self.name!r} belongs to a live job of another task; "
                f"give {new.task!r} ids of its own"
            )
        if outcome == "exists":
            return IdTaken(
                f"a job with id {new.id!r} already lives in queue {self.name!r}; "
                "use on_conflict='replace' or 'ignore', or cancel it first"
            )
        if outcome == "paused":
            return QueuePaused(f"queue {self.name!r} is paused for new jobs; resume it, or try again later")
        if new.payload is not None:
            return QueueFull(
                f"queue {self.name!r} has reached its max_length, or id {new.id!r} its max_payloads "
                f"({new.max_payloads}); let the workers catch up, or raise the limit"
            )
        return QueueFull(f"queue {self.name!r} has reached its max_length; let the workers catch up, or raise it")

    def schedule_tick(self, new: NewJob, tick_ms: int) -> str:
        """Schedule a job once per id and tick: of all processes, only the first call has an effect.

        See :meth:`schedule`.

        Args:
            tick_ms: Unix ms. A tick at or before the last one of this id counts as fired.

        Returns:
            An outcome of :meth:`schedule_many`, or fired: this tick was fired before.
        """
        return self._schedule_one(new, b"%d" % tick_ms)

    def last_tick(self, ident: str) -> int | None:
        """Return the last tick of an id that :meth:`schedule_tick` fired, Unix ms."""
        with clear_errors():
            said = [
                self.broker.client.hget(self.shard(number).names["meta"], f"tick:{ident}")
                for number in self.homes(ident)
            ]
        return max((int(tick) for tick in said if tick is not None), default=None)

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

    def schedule_many(self, news: Iterable[NewJob], *, not_after_ms: float | None = None) -> list[str]:
        """Schedule many jobs, in chunks of at most 250 of one shard.

        Args:
            news: the jobs.
            not_after_ms: see :meth:`schedule`; it applies to each chunk as a whole.

        Returns:
            For each job in the order given: created, merged, replaced, ignored, gated, taken (the id belongs to a live
                job of another task), exists (``on_conflict="error"`` met a live job), full, paused, known or late.
        """
        outcomes: dict[int, str] = {}
        for places, done in ChunkSender(self, not_after_ms, keys=True).send(news):
            outcomes.update(zip(places, done, strict=True))
        return [_OUTCOMES[outcomes[place]] for place in range(len(outcomes))]

    def count_many(self, news: Iterable[NewJob], *, not_after_ms: float | None = None) -> dict[str, int]:
        """Schedule any number of jobs, even an endless iterable, and return the number of jobs per outcome.

        See :meth:`schedule_many`.
        """
        letters: dict[str, int] = {}
        for _, done in ChunkSender(self, not_after_ms).send(news):
            for letter in set(done):
                letters[letter] = letters.get(letter, 0) + done.count(letter)
        return {_OUTCOMES[letter]: n for letter, n in letters.items()}

    def knows(self, pairs: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[bool]:
        """Return, for each durable generation or payload, if Redis has it: live, gated, buried, or ended and marked.

        Args:
            pairs: id and key of each. Where an id may have many payloads, a third element makes it cheaper: the
                payload's digest (:func:`.records.frames.digest`).

        Raises:
            InvalidJob: an id or a key that cannot be one.
        """
        known = [False] * len(pairs)
        words = [pack_known(*pair) for pair in pairs]
        # A job kicked from an old shard's morgue meanwhile is first put into the newer shard, which is queried later.
        for epoch, shards in self.epochs:
            places: dict[int, list[int]] = {}
            for place, pair in enumerate(pairs):
                if not known[place]:
                    places.setdefault(number_of(epoch, crc32(pair[0].encode()) % shards), []).append(place)
            for number, mine in places.items():
                for start in range(0, len(mine), CHUNK):
                    chunk = mine[start : start + CHUNK]
                    frame = b"".join([words[place] for place in chunk])
                    for place, answer in zip(chunk, self.call("known", number, frame, request=b""), strict=True):
                        known[place] = answer == ord("1")
        return known

    def _schedule_one(self, new: NewJob, tick: bytes = b"", not_after_ms: float | None = None) -> str:
        entry = pack_new(new)
        # A durable job may have been sent before, by a process that died before it got the reply.
        fresh = new.fresh and not new.durable
        if fresh and new.payload is None and not tick and not_after_ms is None:
            keys = self.shard(self.shard_of(new.id)).fresh_keys[new.priority]
            if self.broker.scripts.call("schedule_fresh", keys, new_request(), b"", entry):
                return "created"

        request = request_for((new,)) if new.repeatable else None

        def ask(number: int) -> str | None:
            reply: bytes = self.call(
                "schedule", number, entry, b"0", tick, pack_deadline(not_after_ms), b"1", request=request
            )
            new.joined = reply[1:]
            letter = chr(reply[0])
            return None if letter == MOVED else letter

        letter = self.visit(new.id, ask, create=True, fresh=fresh)
        return _OUTCOMES[letter or MOVED]

    # -- shards of an id
    # -------------------------------------------------------------------------------------------------

    def homes(self, ident: str) -> tuple[int, ...]:
        """Return the numbers of the shards in which jobs of this id may lie, those of older epochs first."""
        crc = crc32(ident.encode())
        return tuple(number_of(epoch, crc % shards) for epoch, shards in self.epochs) or (self.shard_of(ident),)

    def reload(self) -> bool:
        """Read the layout again; return True if the set of shards has changed."""
        before = self.epochs
        self.broker.read_layout(self.name)
        return self.epochs != before

    def visit(
        self, ident: str, ask: Callable[[int], T | None], *, create: bool = False, fresh: bool = False
    ) -> T | None:
        """Call the shards in which an id may live, the oldest first, until one has it (:mod:`.operations.resharding`).

        Args:
            ask: called with the number of a shard; None means that the shard is closed and the id not live in it.
            create: re-create a deleted queue.
            fresh: the id was generated just now, so it is live nowhere.

        Returns:
            The result of ``ask``; None if the queue was deleted.
        """
        asked: set[int] = set()
        patience: Patience | None = None
        while True:
            homes = self.homes(ident)
            for number in homes[-1:] if fresh else homes:
                if number not in asked:
                    answer = ask(number)
                    if answer is not None:
                        return answer
                    asked.add(number)
            patience = patience or Patience()
            if not self.broker.epochs.meet(self, homes[-1] // MAX_SHARDS, patience, create=create):
                return None

    def reserve_id(
        self, ident: str, *, worker: str, ttr_ms: int | None = None, started: bool = False, early: bool = False
    ) -> Batch:
        """Reserve one waiting job by its id; return an empty batch if none is due under it.

        Args:
            early: also before its due time.
            worker, ttr_ms, started: see :meth:`reserve`.
        """
        ttr = b"" if ttr_ms is None else b"%d" % ttr_ms

        def ask(number: int) -> Batch | None:
            began = time.monotonic()
            frame = self.call(
                "reserve",
                number,
                worker.encode(),
                1,
                ttr,
                b"1" if started else b"0",
                ident.encode(),
                b"1" if early else b"0",
            )
            return None if frame == MOVED_REPLY else self._batch(frame, number, worker, last_sent(began))

        return self.visit(ident, ask) or Batch()

    # -- verbs of callers and operators
    # ----------------------------------------------------------------------------------

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
            request: the id of the call, if it repeats an earlier one (:mod:`.requests`).

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
        kick = Kick(Pace(delay_ms, relative=True, step=0), replace=replace)
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
