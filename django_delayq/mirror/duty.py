"""Dispatcher duty that keeps the index mirrors up to date, their age, and their rebuild from scratch."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from django.db import InterfaceError, InternalError, OperationalError, ProgrammingError
from django.db.models import Count

from .. import connections
from ..core.bulk import Progress
from ..core.counts import count_shards
from ..core.redis.scripts import clear_errors
from ..settings.conf import Conf, conf
from ..worker.loop import Parts
from .index_mirror import DELETE_CHUNK, IndexMirror, table
from .rows import FAILED, MORGUE, PLACES

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..worker.loop import Changes

logger: Final = logging.getLogger(__name__)

#: seconds between two full checks
FULL_CHECK_SECONDS: Final = 600.0
#: seconds between two turns without changes; such a turn queries neither Redis nor the database
_IDLE_SECONDS: Final = 30.0
#: seconds between two turns while jobs fail continuously
_BUSY_SECONDS: Final = 0.25
#: minimum seconds between two records of the age
_AGE_SECONDS: Final = 10.0
#: seconds of work in one turn
_TURN_SECONDS: Final = 0.5

#: age in seconds above which the tables are behind: a dispatcher renews it twice a minute, also if nothing fails
LATE_SECONDS: Final = 90.0

_END: Final = object()

#: queue, shard, place
Name: TypeAlias = tuple[str, int, str]


class Mirror:
    """Duty that copies the failed index and the morgue of every shard of ``queues()`` into the tables.

    Args:
        settings: the project's settings; ``mirror`` defines the retention.
        broker: broker of the queues.
        changes: changes that the worker noticed; an idle system is not checked.
        queues: returns the queues of this process, as currently registered.
    """

    def __init__(self, settings: Conf, broker: Broker, changes: Changes, queues: Callable[[], Sequence[Queue]]) -> None:
        self._settings = settings.mirror
        self._broker = broker
        self._changes = changes
        self._queues = queues
        self._mirrors: dict[Name, IndexMirror] = {}
        #: mirrors with new entries to copy
        self._to_copy: set[Name] = set()
        #: mirrors to review; True = fully
        self._to_review: dict[Name, bool] = {}
        self._work: dict[Name, Iterator[object]] = {}
        self._next_turn = self._next_full = self._next_age = 0.0
        # An error of one row's values concerns its shard, any other error of the database all of them.
        shared = (OperationalError, InterfaceError, ProgrammingError, InternalError)
        self._parts = Parts("mirror", broker, shared=shared)

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring``, which wakes the loop of this duty, to changes that the worker notices."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Do one turn. Return the seconds until the next one."""
        now = time.monotonic()
        if now < self._next_turn:
            return self._next_turn - now
        self._refresh_shards()
        self._collect_changes()
        if now >= self._next_full:
            self._check_all()
            self._next_full = now + FULL_CHECK_SECONDS
        began_at = now
        self._work_until(now + _TURN_SECONDS)
        now = time.monotonic()
        if self._work:
            return 0.0
        if now >= self._next_age and not self._to_copy:
            self._next_age = now + _AGE_SECONDS
            self._parts.attempt("age", lambda: set_age(self._broker, time.monotonic() - began_at))
        self._next_turn = now + _BUSY_SECONDS
        counts_at = [self._mirrors[name].count_at for name in self._to_review]
        return max(_BUSY_SECONDS, min((*counts_at, self._next_full, now + _IDLE_SECONDS)) - now)

    # -- selecting the work ------------------------------------------------------------------------------------------

    def _refresh_shards(self) -> None:
        """Refresh the list of shards. If a shard has disappeared, a full check follows at once."""
        served = {
            (queue.name, number, place.name): (queue, number, place)
            for queue in self._queues()
            for number in queue.numbers
            for place in (FAILED, MORGUE)
        }
        left = self._mirrors.keys() - served.keys()
        for name in left:
            del self._mirrors[name]
            self._to_copy.discard(name)
            self._to_review.pop(name, None)
            self._work.pop(name, None)
        for name in served.keys() - self._mirrors.keys():
            self._mirrors[name] = IndexMirror(self._settings, *served[name])
        if left:
            self._next_full = 0.0

    def _collect_changes(self) -> None:
        """Collect the changes to copy.

        A data loss in Redis needs no handling of its own: its indexes then differ from before, too.
        """
        for queue, number in self._changes.take("failed"):
            self._mark_changed((queue, number, FAILED.name))
        for queue, number in self._changes.take("morgue"):
            self._mark_changed((queue, number, MORGUE.name))

    def _mark_changed(self, name: Name, *, fully: bool = False) -> None:
        if name in self._mirrors:
            self._to_copy.add(name)
            self._to_review[name] = fully or self._to_review.get(name, False)
            if fully:
                self._mirrors[name].count_at = 0.0

    def _check_all(self) -> None:
        """Check every shard for which Redis or the table has entries, and delete rows of removed shards and queues."""
        counted: dict[Name, int] = {}
        for place in (FAILED, MORGUE):
            rows = table(place).order_by().values_list("queue", "shard").annotate(n=Count("pk"))
            counted |= {(queue, shard, place.name): n for queue, shard, n in rows}
        for queue, number in dict.fromkeys(name[:2] for name in self._mirrors):
            self._parts.attempt((queue, number), partial(self._check_shard, queue, number, counted))
        self._delete_orphan_rows(counted)

    def _check_shard(self, queue: str, number: int, counted: dict[Name, int]) -> None:
        counts = count_shards(self._mirrors[queue, number, FAILED.name].queue, [number])
        for place, entries in ((FAILED, counts.failed), (MORGUE, counts.morgue)):
            name = (queue, number, place.name)
            if entries or name in counted:
                self._mark_changed(name, fully=True)

    def _delete_orphan_rows(self, counted: dict[Name, int]) -> None:
        orphans = counted.keys() - self._mirrors.keys()
        for queue in sorted({name[0] for name in orphans}):
            live = self._broker.known_queue(queue)
            numbers = live.numbers if live is not None else ()
            for name in sorted(name for name in orphans if name[0] == queue and name[1] not in numbers):
                logger.info("shard %d of queue %s no longer exists; deleting its rows (%s)", name[1], queue, name[2])
                delete_rows(name)

    # -- the work ----------------------------------------------------------------------------------------------------

    def _work_until(self, until: float) -> None:
        """Do one step of each mirror in turn, so that a shard with a million records does not block the others."""
        now = time.monotonic()
        for name in {*self._to_copy, *self._to_review} - self._work.keys():
            if (name in self._to_copy or self._mirrors[name].count_at <= now) and self._parts.retry_at(name) <= now:
                self._work[name] = self._steps(name)
        while self._work:
            for name in list(self._work):
                if not self._parts.attempt(name, partial(self._step, name)) and self._work.pop(name, None) is not None:
                    self._mark_changed(name, fully=True)  # it rests: its node has failed for another shard
            if time.monotonic() >= until:
                return

    def _step(self, name: Name) -> None:
        steps = self._work.pop(name)  # a step that fails starts again from the beginning
        if next(steps, _END) is not _END:
            self._work[name] = steps

    def _steps(self, name: Name) -> Iterator[object]:
        mirror = self._mirrors[name]
        try:
            if name in self._to_copy:
                self._to_copy.discard(name)  # a change noticed from here on needs another copy
                yield from mirror.copy()
            if time.monotonic() >= mirror.count_at:
                yield from mirror.review(fully=self._to_review.pop(name, False))
        except Exception:
            self._mark_changed(name, fully=True)
            raise


def delete_rows(name: Name) -> None:
    """Delete the rows of a shard's place."""
    queue, number, place = name
    rows = table(PLACES[place]).filter(queue=queue, shard=number)
    while keys := list(rows.values_list("pk", flat=True)[:DELETE_CHUNK]):
        rows.filter(pk__in=keys).delete()


# -- age ---------------------------------------------------------------------------------------------------------------


def set_age(broker: Broker, seconds: float) -> None:
    """Record that the tables have everything that was noticed until so many seconds ago."""
    with clear_errors():
        broker.client.set(broker.key("mirror"), int(broker.now_ms() - seconds * 1000))


def age(broker: Broker) -> float | None:
    """Return the age of the mirror in seconds; None if nothing was copied yet.

    Raises:
        QueueUnavailable: Redis cannot be reached.
    """
    with clear_errors():
        copied_ms = broker.client.get(broker.key("mirror"))
    return None if copied_ms is None else max(0.0, (broker.now_ms() - float(copied_ms)) / 1000)


# -- rebuild -----------------------------------------------------------------------------------------------------------


def rebuild(queues: Iterable[str] | None = None, progress: Progress | None = None) -> dict[str, int]:
    """Delete the rows, and copy everything that Redis has, unless mirrors are switched off (``MIRROR``).

    Dispatchers may keep running.

    Args:
        queues: names of queues; None = all, including removed ones.
        progress: called after each shard with the number of rows copied and the number that Redis had at the start.

    Returns:
        Number of rows after the rebuild, by place (``failed``, ``morgue``).

    Raises:
        QueueUnavailable: Redis cannot be reached. Rows copied before that are kept.
    """
    broker = connections.broker()
    live = {queue.name: queue for queue in broker.queues()}
    selected = None if queues is None else set(queues)
    counts: Counter[str] = Counter({FAILED.name: 0, MORGUE.name: 0})
    stored = [one for one in broker.inspector.all_counts() if selected is None or one.queue in selected]
    total = sum(one.failed + one.morgue for one in stored)
    for place in (FAILED, MORGUE):
        names = set(table(place).order_by().values_list("queue", "shard"))
        for name, number in sorted(names):
            if selected is None or name in selected:
                delete_rows((name, number, place.name))
        for name in _copied(live, selected):
            for number in live[name].numbers:
                mirror = IndexMirror(conf().mirror, live[name], number, place)
                for _ in mirror.review(fully=True):
                    pass
                counts[place.name] += mirror.rows.count()
                if progress:
                    progress(counts.total(), max(total, counts.total()))
    return dict(counts)


def _copied(live: Iterable[str], selected: set[str] | None) -> Iterable[str]:
    if not conf().is_mirrored:
        return ()
    return live if selected is None else selected & set(live)
