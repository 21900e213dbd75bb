"""Limits of concurrency in one process: how many more jobs of a limited task or queue it may reserve now.

A limit in each process is a matter of counting. For a limit over all workers the process takes permits
(:mod:`..core.permits`) before it reserves, and returns them when no job of that limit waits here. Jobs of a limited
task that may not be reserved are parked by the script; of a limited queue nothing is reserved without room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..core import permits
from ..core.errors import DelayQError, QueueUnavailable
from ..core.options import Concurrency
from ..core.permits import Holding, Permits, Place
from ..core.records.frames import Allowance
from .attempt import NEVER, Attempt
from .shards import CALL_SECONDS, ShardSelector, Source

if TYPE_CHECKING:
    from ..core.deployment import Deployment
    from ..core.job import Job
    from ..core.outcomes import Batch
    from .worker import Worker

logger = logging.getLogger(__name__)
_MANY: Final = 1 << 30
#: seconds after which a shard that waits for a permit is tried again, if no holder of one is known
_RETRY_SECONDS: Final = 5.0
#: seconds between two tokens for jobs that only other processes may run
_REMINDER_SECONDS: Final = 1.0


class Limit:
    """Limit of one task or queue, with what this process holds of it."""

    __slots__ = ("held", "local", "name", "permits", "tasks", "total", "waiting")

    def __init__(self, name: str, concurrency: Concurrency, tasks: tuple[str, ...] = ()) -> None:
        self.name = name
        self.tasks = tasks
        self.total = concurrency.total
        self.local = concurrency.local
        #: jobs that are held here, and permits
        self.held = self.permits = 0
        #: shards with due jobs that wait for this limit, in the order in which they were tried; True: tried with the
        #: permits that this process has now, which it did not use
        self.waiting: dict[Source, bool] = {}

    @property
    def local_room(self) -> int:
        """Number of further jobs that this process may hold, if it has the permits."""
        return _MANY if self.local is None else max(0, self.local - self.held)

    @property
    def room(self) -> int:
        """Number of further jobs that this process may hold now."""
        permitted = _MANY if self.total is None else max(0, self.permits - self.held)
        return min(self.local_room, permitted)


class ConcurrencyLimits:
    """All limits of one process. Belongs to the fetch loop's thread, except :meth:`renew`."""

    def __init__(self, process: Worker, selector: ShardSelector) -> None:
        self._registry = process.registry
        self._holder = process.name
        self._selector = selector
        self._known: Mapping[str, object] = {}
        self._of_tasks: dict[str, Limit] = {}
        self._of_queues = {
            name: Limit(f"queue:{name}", concurrency) for name, concurrency in process.config.concurrency.items()
        }
        #: limits of tasks, each once
        self._tasks: tuple[Limit, ...] = ()
        #: limits of which this process may have more permits than it needs
        self._surplus: dict[Limit, None] = {}
        #: shards of the process when :meth:`trim` was last called
        self._sources = selector.sources
        #: when :meth:`reminders` has something to return next
        self.remind_at = NEVER
        self._deployment: Deployment | None = None
        self._lock = threading.Lock()
        #: moment (monotonic) until which permits are not asked for, because their node was unreachable
        self._unreachable_until = 0.0

    @property
    def exist(self) -> bool:
        """True if a task or a queue has a limit of concurrency."""
        return bool(self._registry.limited or self._of_queues)

    @property
    def full_queues(self) -> frozenset[str]:
        """Queues of which this process may hold no more jobs, whatever other processes hold."""
        return frozenset([name for name, limit in self._of_queues.items() if not limit.local_room])

    # --- before a reserve

    def room(self, source: Source, wanted: int, now: float) -> int:
        """Return how many jobs of a shard may be reserved because of its queue's limit, at most ``wanted``.

        Without any, the shard rests until there are.
        """
        limit = self._of_queues.get(source.queue.name)
        if limit is None or wanted <= 0:
            return wanted
        if not limit.room:
            limit.waiting.setdefault(source, False)
            # Before the call, so that a token that follows it counts.
            self._selector.postpone(source, NEVER, pass_on=not limit.local_room)
            try:
                if limit.local_room:
                    self._take(limit, source, min(wanted, limit.local_room), now)
            except BaseException:
                self._selector.expect(source, now)
                raise
        return min(wanted, limit.room)

    def allowances(self) -> list[Allowance]:
        """Return how many jobs of each limited task may be reserved now."""
        if self._known is not self._registry.limited:
            self._read_registry()
        return [Allowance(limit.tasks, limit.room, limit.local is not None) for limit in self._tasks]

    def _read_registry(self) -> None:
        self._known = limited = self._registry.limited
        by_name: dict[str, Limit] = {}
        for task in {id(task): task for task in limited.values()}.values():
            names = tuple(name for name, other in limited.items() if other is task)
            concurrency = task.options.concurrency
            if not isinstance(concurrency, Concurrency):
                continue
            limit = self._of_tasks.get(task.name) or Limit(f"task:{task.name}", concurrency)
            limit.tasks, limit.total, limit.local = names, concurrency.total, concurrency.local
            by_name.update(dict.fromkeys(names, limit))
        self._of_tasks = by_name
        self._tasks = tuple(dict.fromkeys(by_name.values()))

    # --- after a reserve

    def took(self, queue: str, jobs: Sequence[Job]) -> None:
        """Count reserved jobs as held, for the limits of their tasks and of their queue."""
        for job in jobs if self.exist else ():
            for limit in self._limits_of(queue, job.task):
                limit.held += 1

    def replied(self, source: Source, batch: Batch, free: int, now: float) -> None:
        """Handle the reply of a reserve: what still waits there for a limit.

        Args:
            free: number of idle slots.
        """
        limit = self._of_queues.get(source.queue.name)
        if limit is not None:
            has_more = batch.taken and batch.next_due_ms == 0
            self._note(limit, source, max(free, 1) if has_more else 0, free, now)
        for limit, parked in zip(self._tasks, batch.parked, strict=False):
            self._note(limit, source, parked, free, now)

    def _note(self, limit: Limit, source: Source, waiting: int, free: int, now: float) -> None:
        was_tried = limit.waiting.pop(source, False)
        if waiting:
            limit.waiting[source] = was_tried and limit.room > 0
            if not limit.local_room:
                self.remind_at = min(self.remind_at, now + _REMINDER_SECONDS)
            elif not limit.room:
                self._take(limit, source, min(waiting, limit.local_room, max(free, 1)), now)
        self._offer(limit, now)

    def reminders(self, now: float) -> list[Place]:
        """Return the shards with jobs that other processes may run and this one may not, from time to time.

        A token may reach a process that cannot run these jobs either, so one is not enough. Those of limited queues
        need none: this process does not listen to them.
        """
        if now < self.remind_at:
            return []
        sources = {source for limit in self._tasks if not limit.local_room for source in limit.waiting}
        self.remind_at = now + _REMINDER_SECONDS if sources else NEVER
        return [(source.queue.name, source.shard) for source in sources]

    # --- after the end of attempts

    def ended(self, queue: str, attempts: Iterable[Attempt]) -> None:
        """Count attempts that have ended, or were given back."""
        now = time.monotonic()
        for attempt in attempts if self.exist else ():
            for limit in self._limits_of(queue, attempt.job.task):
                limit.held -= 1
                self._offer(limit, now)

    def _limits_of(self, queue: str, task: str) -> list[Limit]:
        limits = self._of_tasks.get(task), self._of_queues.get(queue)
        return [limit for limit in limits if limit is not None]

    def _offer(self, limit: Limit, now: float) -> None:
        """Try as many waiting shards as there is room, in turn. Without any, the permits are superfluous."""
        for source in list(limit.waiting)[: limit.room]:
            self._try(limit, source, now)
        if limit.permits > limit.held:
            self._surplus[limit] = None

    def _try(self, limit: Limit, source: Source, now: float) -> None:
        """Reserve from a waiting shard next, and from the others before it is its turn again."""
        del limit.waiting[source]
        limit.waiting[source] = True
        self._selector.expect(source, now)

    def trim(self, *, rests: bool = False, has_room: bool = False) -> None:
        """Return permits that no job here needs.

        Args:
            rests: the process reserves nothing at present, not even waiting jobs.
            has_room: it could. Those shards that have permits may be held up by something else, so it tries the others.
        """
        if self._sources is not self._selector.sources:
            self._drop_removed()
        for limit in list(self._surplus) if self._surplus else ():
            untried = [source for source, tried in limit.waiting.items() if not tried] if rests and has_room else []
            if untried and limit.room:
                self._try(limit, untried[0], time.monotonic())
            elif limit.permits > limit.held and (rests or not limit.waiting):
                self._change(limit, limit.held)
                limit.waiting = dict.fromkeys(limit.waiting, False)
            if limit.permits <= limit.held:
                del self._surplus[limit]

    def _drop_removed(self) -> None:
        """Drop shards that the process does not serve any more. Others may have waited behind them."""
        self._sources = self._selector.sources
        served, now = set(self._sources), time.monotonic()
        for limit in self._all:
            limit.waiting = {source: tried for source, tried in limit.waiting.items() if source in served}
            self._offer(limit, now)

    # --- permits

    @property
    def _all(self) -> set[Limit]:
        return {*self._of_tasks.values(), *self._of_queues.values()}

    def _take(self, limit: Limit, source: Source, n: int, now: float) -> None:
        """Take permits for ``n`` more jobs, as far as there are any; without one, the shard waits."""
        self._deployment = source.queue.deployment
        reply = self._change(limit, limit.held + n, (source.queue.name, source.shard))
        if not limit.room:
            retry = _RETRY_SECONDS if reply.retry_ms is None else reply.retry_ms / 1000 + 0.05
            self._selector.expect(source, now + retry)

    def _change(self, limit: Limit, wanted: int | None, place: Place | None = None) -> Permits:
        """Set the permits of a limit; None = renew those that this process has."""
        deployment = self._deployment
        if deployment is None or limit.total is None:
            return Permits((), None, ())
        with self._lock:
            keep, wanted = (limit.permits, limit.permits) if wanted is None else (limit.held, wanted)
            holding = Holding(self._holder, keep, wanted, permits.lasting_ms(deployment))
            reply = self._ask(deployment, limit, holding, place)
            (limit.permits,) = reply.granted
        return reply

    def _ask(self, deployment: Deployment, limit: Limit, holding: Holding, place: Place | None) -> Permits:
        """Change permits in Redis. If their node of a cluster is gone, they stay as they are for a while."""
        assert limit.total is not None  # noqa: S101 - the caller has checked it
        if not deployment.connection.cluster:
            return permits.change(deployment, limit.name, limit.total, [holding], place)
        now = time.monotonic()
        if now >= self._unreachable_until:
            try:
                with deployment.connection.limited(CALL_SECONDS):
                    return permits.change(deployment, limit.name, limit.total, [holding], place)
            except QueueUnavailable as error:
                self._unreachable_until = now + _RETRY_SECONDS
                logger.warning("permits of %s cannot be changed now; jobs without a limit go on: %s", limit.name, error)
        return Permits((limit.permits,), None, ())

    def renew(self) -> None:
        """Renew all permits. Called by the heartbeat, before it renews the leases."""
        for limit in self._all:
            if limit.permits:
                self._change(limit, None)

    def close(self) -> None:
        """Return the permits of jobs that do not run any more; they would run out otherwise."""
        try:
            for limit in self._all:
                if limit.permits > limit.held:
                    self._change(limit, limit.held)
        except DelayQError as error:
            logger.info("permits are not returned, they run out: %s", error)
