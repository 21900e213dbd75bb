"""Queue of the in-memory broker: the verbs of :class:`~django_delayq.core.queue.Queue` without Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..core import queue as core
from ..core.errors import InvalidJob
from ..core.job import Job, NewJob, Settlement, expire
from ..core.outcome import Outcome
from ..core.records.frames import pack_new
from ..core.records.layout import PAUSED_OUT
from ..core.sending.chunks import CHUNK
from ..core.settled import MOST_MARKS, Mark
from ..core.shards import Batch, Tick, Which
from . import intake, operators, settling
from .bulk import CALLS
from .shard import Shard

if TYPE_CHECKING:
    from .broker import MemoryBroker

#: outcomes after which the requested job waits
TAKEN_IN = (Outcome.CREATED, Outcome.MERGED, Outcome.REPLACED)


class MemoryQueue(core.Queue):
    """In-memory queue, created by :meth:`MemoryBroker.queue`; all methods may be called from any thread."""

    broker: MemoryBroker

    def store(self, number: int) -> Shard:
        """Return the records of a shard."""
        return self.broker.store(self.name, number)

    # -- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, new: NewJob, *, not_after_ms: float | None = None) -> Outcome:
        """See :meth:`Queue.schedule`; under ``immediate()`` the job is run before this returns."""
        outcome = self.accepted(self._schedule_one(new, not_after_ms=not_after_ms), new)
        self.broker.scheduled(self, [new.id] if outcome in TAKEN_IN else [])
        return outcome

    def schedule_many(self, news: Iterable[NewJob], *, not_after_ms: float | None = None) -> list[Outcome]:
        """See :meth:`Queue.schedule_many`."""
        asked = list(news)
        outcomes = [self._schedule_one(new, not_after_ms=not_after_ms) for new in asked]
        taken = dict.fromkeys(new.id for new, outcome in zip(asked, outcomes, strict=True) if outcome in TAKEN_IN)
        self.broker.scheduled(self, list(taken))
        return outcomes

    def count_many(self, news: Iterable[NewJob], *, not_after_ms: float | None = None) -> dict[str, int]:
        """See :meth:`Queue.count_many`."""
        counts: Counter[str] = Counter()
        taken: dict[str, None] = {}
        for new in news:
            outcome = self._schedule_one(new, not_after_ms=not_after_ms)
            counts[outcome] += 1
            if outcome in TAKEN_IN:
                taken[new.id] = None
        self.broker.scheduled(self, list(taken))
        return dict(counts)

    def _schedule_one(self, new: NewJob, tick: bytes = b"", not_after_ms: float | None = None) -> Outcome:
        pack_new(new)  # raises for jobs that cannot be stored
        with self.broker.reached():
            if new.due_ms is not None:
                self.broker.clock.catch_up()
            outcome = intake.schedule(
                self.store(self.shard_of(new.id)), new, tick_ms=int(tick) if tick else None, not_after_ms=not_after_ms
            )
            self.broker.wake(self.name, self.shard_of(new.id))
            return Outcome(outcome)

    def last_tick(self, ident: str) -> int | None:
        """See :meth:`Queue.last_tick`."""
        with self.broker.reached():
            return self.store(self.shard_of(ident)).ticks.get(ident)

    def first_sight(self, ident: str, schedule: str) -> int:
        """See :meth:`Queue.first_sight`."""
        with self.broker.reached():
            shard = self.store(self.shard_of(ident))
            if shard.sights.get(ident, ("", 0))[0] != schedule:
                shard.sights[ident] = schedule, shard.now_ms
            return max(shard.sights[ident][1], shard.ticks.get(ident, 0))

    def skip_tick(self, ident: str, schedule: str, tick_ms: int) -> bool:
        """See :meth:`Queue.skip_tick`."""
        with self.broker.reached():
            is_first = self.first_sight(ident, schedule) < tick_ms
            if is_first:
                self.store(self.shard_of(ident)).sights[ident] = schedule, tick_ms
            return is_first

    # -- reserve and settle ------------------------------------------------------------------------------------------

    def reserve(
        self,
        number: int,
        limit: int,
        *,
        worker: str,
        request: bytes | None = None,
        ttr_ms: int | None = None,
        started: bool = False,
        which: Which = "all",
    ) -> Batch:
        """See :meth:`Shards.reserve`."""
        with self.broker.reached():
            shard = self.store(number)
            jobs = shard.reserve(min(limit, CHUNK), worker, ttr_ms, started=started, which=which)
            return self._handed(shard, worker, jobs, which)

    def reserve_id(
        self, ident: str, *, worker: str, ttr_ms: int | None = None, started: bool = False, early: bool = False
    ) -> Batch:
        """See :meth:`Queue.reserve_id`."""
        with self.broker.reached():
            shard = self.store(self.shard_of(ident))
            jobs = shard.reserve_one(ident, worker, ttr_ms, started=started, early=early)
            return self._handed(shard, worker, jobs)

    def _handed(self, shard: Shard, worker: str, jobs: list[Job], which: Which = "all") -> Batch:
        now_ms = shard.now_us / 1000
        late = [job for job in jobs if job.options_json and job.has_expired(now_ms)]
        for job in late:
            settling.settle(shard, expire(job))
        paused, others = shard.rules.flags & PAUSED_OUT, which == "others"
        due = None if paused else shard.next_due_ms(which)
        quarantined = shard.next_due_ms("quarantined") if others and not paused else None
        gone = {job.id for job in late}
        return Batch(
            [job for job in jobs if job.id not in gone],
            [],
            None if due is None else max(0.0, due - now_ms),
            now_ms,
            len(late),
            None if quarantined is None else quarantined - now_ms,
        )

    def settle_reserve(
        self,
        number: int,
        settlements: Sequence[Settlement],
        limit: int,
        *,
        worker: str,
        request: bytes | None = None,
        which: Which = "all",
    ) -> tuple[list[bool], Batch]:
        """See :meth:`Shards.settle_reserve`."""
        return self.settle(settlements), self.reserve(number, limit, worker=worker, which=which)

    def settle(self, settlements: Sequence[Settlement], *, seed: bytes | None = None) -> list[bool]:
        """See :meth:`Shards.settle`."""
        with self.broker.reached():
            return [settling.settle(self.store(one.job.shard), one) for one in settlements]

    def touch(
        self, jobs: Sequence[Job], started: Container[tuple[str, int]] = (), *, ttr_ms: int | None = None
    ) -> list[str]:
        """See :meth:`Shards.touch`."""
        with self.broker.reached():
            return [
                settling.touch(self.store(job.shard), job, started=(job.id, job.token) in started, ttr_ms=ttr_ms)
                for job in jobs
            ]

    def leases(self, number: int) -> list[Job]:
        """See :meth:`Shards.leases`."""
        with self.broker.reached():
            return self.store(number).leases()

    def expired(self, number: int, limit: int = CHUNK, *, offset: int = 0) -> list[Job]:
        """See :meth:`Shards.expired`."""
        with self.broker.reached():
            return self.store(number).leases(only_expired=True)[offset : offset + limit]

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """See :meth:`Shards.tick`."""
        with self.broker.reached():
            shard = self.store(number)
            if hold:
                shard.hold_ms = shard.now_ms + shard.lease_ms
            shard.trim_graves(CHUNK)
            deadline = min((job.deadline_ms for job in shard.leases()), default=None)
            failed = [live.failed_at // 1000 for live in shard.lives.values() if live.failures]
            morgue = [grave.buried // 1000 for grave in shard.graves.values()]
            due = None if shard.rules.flags & PAUSED_OUT else shard.next_due_ms("others")
            return Tick(
                shard.now_us / 1000,
                due,
                deadline,
                deadline is not None and deadline <= shard.now_ms,
                shard.hold_ms > shard.now_ms,
                born=shard.born,
                settled=len(shard.settled),
                failed=(len(failed), max(failed, default=0)),
                morgue=(len(morgue), max(morgue, default=0)),
            )

    def rule(
        self,
        number: int,
        *,
        clear: int = 0,
        put: int = 0,
        max_length: int | None = None,
        morgue_max: int | None = None,
        morgue_ttl_ms: int | None = None,
    ) -> int:
        """See :meth:`Shards.rule`."""
        with self.broker.reached():
            shard = self.store(number)
            rules = shard.rules
            rules.flags = rules.flags & ~clear | put
            rules.max_length = rules.max_length if max_length is None else max_length
            rules.morgue_max = rules.morgue_max if morgue_max is None else morgue_max
            rules.morgue_ttl_ms = rules.morgue_ttl_ms if morgue_ttl_ms is None else morgue_ttl_ms
            return shard.token

    # -- durable jobs ------------------------------------------------------------------------------------------------

    def settled(self, number: int, forget: Sequence[Mark] = (), limit: int = MOST_MARKS) -> list[Mark]:
        """See :meth:`Shards.settled`."""
        with self.broker.reached():
            marks = self.store(number).settled
            for mark in forget:
                if marks.get(mark.key) == (mark.end, mark.stamp):
                    del marks[mark.key]
            return [Mark(key, end, stamp) for key, (end, stamp) in marks.items()][:limit]

    def knows(self, pairs: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[bool]:
        """See :meth:`Queue.knows`."""
        with self.broker.reached():
            return [self.store(self.shard_of(pair[0])).knows(pair[0], pair[1]) for pair in pairs]

    # -- operations of callers and operators -------------------------------------------------------------------------

    def _of(self, verb: str, ident: str, *args: Any, request: bytes | None) -> bytes:
        core._check_id(ident)
        keys = frozenset(args[-2][at : at + 16] for at in range(0, len(args[-2]), 16))
        with self.broker.reached():
            shard = self.store(self.shard_of(ident))
            if verb == "locate":
                return operators.locate(shard, ident, keys).encode()
            task = args[1].decode()
            if verb == "cancel":
                if args[2] and shard.now_ms > int(args[2]):
                    return b"late"
                return operators.cancel(shard, ident, task, keys).encode()
            ms, how = args[2:4]
            relative = how in (b"1", b"now")
            due_ms = ms + (shard.now_ms if relative else 0)
            answer = operators.reschedule(shard, ident, task, due_ms, to_now=how == b"now", keys=keys)
            self.broker.wake(self.name, shard.number)
            return answer.encode()

    def kick(
        self,
        ident: str,
        *,
        key: bytes | None = None,
        delay_ms: int = 0,
        replace: bool = False,
        request: bytes | None = None,
    ) -> str:
        """See :meth:`Queue.kick`."""
        core._check_id(ident)
        with self.broker.reached():
            shard = self.store(self.shard_of(ident))
            answer = operators.kick(shard, ident, key or b"", shard.now_ms + delay_ms, replacing=replace)
            self.broker.wake(self.name, shard.number)
            return answer

    def discard(self, ident: str, *, key: bytes | None = None, request: bytes | None = None) -> bool:
        """See :meth:`Queue.discard`."""
        core._check_id(ident)
        with self.broker.reached():
            return operators.discard(self.store(self.shard_of(ident)), ident, key or b"")

    def call(self, script: str, number: int, *args: Any, request: bytes | None = None) -> Any:
        """Call the implementation of a script by name, for operations on many jobs at once."""
        act: Callable[..., Any] | None = CALLS.get(script)
        if act is None:
            raise InvalidJob(
                f"the in-memory broker of django_delayq.testing has no script {script!r}; "
                "test this against a real Redis"
            )
        with self.broker.reached():
            return act(self.store(number), *args)
