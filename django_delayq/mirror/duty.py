"""Dispatcher duty that keeps the index mirrors up to date."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from django.db.models import Count

from ..settings.conf import Conf
from .index_mirror import AT_ONCE, IndexMirror, cursors_of, table
from .review import SURE, review
from .rows import FAILED, MORGUE, PLACES

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..worker.changes import Changes

logger: Final = logging.getLogger(__name__)

#: seconds between two full checks
FULL_LOOK: Final = 600.0
#: seconds between two turns without changes; such a turn queries neither Redis nor the database
_REST: Final = 30.0
#: seconds between two turns while jobs fail continuously
_PACE: Final = 0.25
#: seconds of work in one turn
_TURN: Final = 0.5

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

    #: most turns do not query Redis
    silent = True

    def __init__(self, settings: Conf, broker: Broker, changes: Changes, queues: Callable[[], Sequence[Queue]]) -> None:
        self._settings = settings.mirror
        self._broker = broker
        self._changes = changes
        self._queues = queues
        self._shadows: dict[Name, IndexMirror] = {}
        #: mirrors with new entries to copy
        self._behind: set[Name] = set()
        #: mirrors to review, and how many levels to compare even if the counts agree
        self._doubted: dict[Name, int] = {}
        self._work: dict[Name, Iterator[object]] = {}
        self._next_turn = self._next_full = 0.0

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring``, which wakes the loop of this duty, to changes that the worker notices."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Do one turn. Return the seconds until the next one."""
        now = time.monotonic()
        if now < self._next_turn:
            return self._next_turn - now
        self._meet()
        self._hear()
        if now >= self._next_full:
            self._look_everywhere()
            self._next_full = now + FULL_LOOK
        self._toil(now + _TURN)
        now = time.monotonic()
        if self._work:
            return 0.0
        self._next_turn = now + _PACE
        counts_at = [self._shadows[name].count_at for name in self._doubted]
        return max(_PACE, min((*counts_at, self._next_full, now + _REST)) - now)

    # -- selecting the work ------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Refresh the list of shards. If a shard has disappeared, a full check follows at once."""
        served = {
            (queue.name, number, place.name): (queue, number, place)
            for queue in self._queues()
            for number in queue.numbers
            for place in (FAILED, MORGUE)
        }
        left = self._shadows.keys() - served.keys()
        for name in left:
            del self._shadows[name]
            self._behind.discard(name)
            self._doubted.pop(name, None)
            self._work.pop(name, None)
        for name in served.keys() - self._shadows.keys():
            self._shadows[name] = IndexMirror(self._settings, *served[name])
        if left:
            self._next_full = 0.0

    def _hear(self) -> None:
        """Collect the changes to copy.

        A data loss in Redis needs no handling of its own: its indexes then differ from before, too.
        """
        for queue, number in self._changes.take("failed"):
            self._want((queue, number, FAILED.name))
        for queue, number in self._changes.take("morgue"):
            self._want((queue, number, MORGUE.name))

    def _want(self, name: Name, sure: int = 0) -> None:
        if name in self._shadows:
            self._behind.add(name)
            self._doubted[name] = max(self._doubted.get(name, 0), sure)
            if sure:
                self._shadows[name].count_at = 0.0

    def _look_everywhere(self) -> None:
        """Check every shard for which Redis or the table has entries, and delete rows of removed shards and queues."""
        counted: dict[Name, int] = {}
        for place in (FAILED, MORGUE):
            rows = table(place).order_by().values_list("queue", "shard").annotate(n=Count("pk"))
            counted |= {(queue, shard, place.name): n for queue, shard, n in rows}
        for queue, number in dict.fromkeys(name[:2] for name in self._shadows):
            answer = self._shadows[queue, number, FAILED.name].queue.call("stats", number, request=b"")
            for place, entries in ((FAILED, answer[5]), (MORGUE, answer[6])):
                name = (queue, number, place.name)
                if entries or name in counted:
                    self._want(name, SURE)
        self._bury_the_dead(counted)

    def _bury_the_dead(self, counted: dict[Name, int]) -> None:
        cursors = {
            name for place in (FAILED, MORGUE) for name in cursors_of(place).values_list("queue", "shard", "place")
        }
        strange = {*counted, *cursors} - self._shadows.keys()
        for queue in sorted({name[0] for name in strange}):
            live = self._broker.known_queue(queue)
            numbers = live.numbers if live is not None else ()
            for name in sorted(name for name in strange if name[0] == queue and name[1] not in numbers):
                logger.info("shard %d of queue %s is no more; its rows (%s) are deleted", name[1], queue, name[2])
                delete_rows(name)

    # -- the work ----------------------------------------------------------------------------------------------------

    def _toil(self, until: float) -> None:
        """Do one step of each mirror in turn, so that a shard with a million records does not block the others."""
        now = time.monotonic()
        for name in {*self._behind, *self._doubted} - self._work.keys():
            if name in self._behind or self._shadows[name].count_at <= now:
                self._work[name] = self._steps(name)
        while self._work:
            for name in list(self._work):
                steps = self._work.pop(name)  # a step that fails starts again from the beginning
                if next(steps, _END) is not _END:
                    self._work[name] = steps
            if time.monotonic() >= until:
                return

    def _steps(self, name: Name) -> Iterator[object]:
        shadow = self._shadows[name]
        try:
            if name in self._behind:
                self._behind.discard(name)  # a change noticed from here on needs another copy
                yield from shadow.copy()
            if time.monotonic() >= shadow.count_at:
                yield from review(shadow, sure=self._doubted.pop(name, 0))
        except Exception:
            self._want(name, SURE)
            raise


def delete_rows(name: Name) -> None:
    """Delete the rows of a shard's place, and finally its cursor."""
    queue, number, place = name
    rows = table(PLACES[place]).filter(queue=queue, shard=number)
    while keys := list(rows.values_list("pk", flat=True)[:AT_ONCE]):
        rows.filter(pk__in=keys).delete()
    cursors_of(PLACES[place]).filter(queue=queue, shard=number).delete()
