"""Queue with one method for each verb that names jobs by their ids.

New jobs are sent by :mod:`.sending.sender`; the verbs of holders are in :mod:`.shards`.

The delivery guarantee is implemented here and in the scripts: at least once under the durability of the Redis in use;
never before the due time on Redis's clock; at most one live lease per id; a holder that lost its lease changes nothing,
because every settling verb checks the fencing token first. Every call carries a request id (:mod:`.job`), so that
the client library may repeat it after a lost reply: the repeated call gets the first reply and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from zlib import crc32

from . import actions
from .actions import live_ids
from .errors import IdTaken
from .job import Generation
from .morgue import Discard, Kick, KickPace
from .records.keys import number_of
from .records.reserve_frames import start_flag
from .records.schedule_frames import CHUNK, pack_known
from .redis.link import last_sent
from .redis.scripts import clear_errors
from .replies import Batch
from .schedule_outcome import CLOSED_REPLY
from .sending.sender import Sender


class Queue(Sender):
    """Named queue of jobs. Get one from :meth:`Broker.queue`; all methods may be called from any thread.

    Every method raises :class:`QueueUnavailable` when Redis cannot be reached or temporarily refuses to work.
    """

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, shards={self.shards}>"

    # -- ticks of recurring tasks ------------------------------------------------------------------------------------

    def last_tick(self, ident: str) -> int | None:
        """Return the last tick of an id that :meth:`schedule_tick` fired, Unix ms."""
        with clear_errors():
            ticks = [
                self.broker.client.hget(self.shard(number).names["meta"], f"tick:{ident}")
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
            pairs: id and key of each. Where an id may have many payloads, a third element makes it cheaper: the
                payload's digest (:func:`.records.schedule_frames.digest`).

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
            script, now = "reserve_buried" if buried else "reserve", b"1" if early else b"0"
            frame = self.call(script, number, worker.encode(), 1, ttr, flag, ident.encode(), now)
            return None if frame == CLOSED_REPLY else self.batch_of(frame, number, worker, last_sent(began))

        batch = self.visit(ident, partial(ask, buried=buried)) or Batch()
        if buried and not batch.jobs and self._kick_old(ident):
            batch = self.visit(ident, ask) or Batch()
        return batch

    def _kick_old(self, ident: str) -> bool:
        """Return True if a job that is not live was kicked from the morgue of an old epoch."""
        if len(self.epochs) == 1 or any(live_ids(self, number, [ident.encode()]) for number in self.homes(ident)):
            return False
        return self.kick(ident) == "kicked"

    # -- verbs of callers and operators ------------------------------------------------------------------------------

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
