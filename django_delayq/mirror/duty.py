"""The dispatcher's duty of keeping the mirrors: what to look at, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from django.db.models import Count

from ..settings.conf import Conf
from .review import SURE, review
from .rows import FAILED, MORGUE, PLACES
from .shadow import AT_ONCE, Shadow, cursors_of, table

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue
    from ..worker.changes import Changes

logger: Final = logging.getLogger(__name__)

#: seconds between two full looks
FULL_LOOK: Final = 600.0
#: seconds between two turns without anything new; nothing is asked then, neither of Redis nor of the database
_REST: Final = 30.0
#: seconds between two turns while jobs fail all the time
_PACE: Final = 0.25
#: seconds of work in one turn
_TURN: Final = 0.5

_END: Final = object()

#: queue, shard, place
Name: TypeAlias = tuple[str, int, str]


class Mirror:
    """Copies the failed index and the morgue of every shard of ``queues()`` into the tables.

    Args:
        settings: the project's settings; ``mirror`` says what is kept.
        broker: whose queues they are.
        changes: what the worker notices; an idle system is not looked at.
        queues: the queues of this process, as the registry has them now.
    """

    #: most turns do not ask Redis
    silent = True

    def __init__(self, settings: Conf, broker: Broker, changes: Changes, queues: Callable[[], Sequence[Queue]]) -> None:
        self._settings = settings.mirror
        self._broker = broker
        self._changes = changes
        self._queues = queues
        self._shadows: dict[Name, Shadow] = {}
        #: what has something new to be copied
        self._behind: set[Name] = set()
        #: what has to be reviewed, and how many levels of it whatever the counts say
        self._doubted: dict[Name, int] = {}
        self._work: dict[Name, Iterator[object]] = {}
        self._next_turn = self._next_full = 0.0

    def attach(self, ring: Callable[[], None]) -> None:
        """Have the loop of this duty rung by what the worker notices."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """One turn. Returns the seconds until the next one."""
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

    # -- what to look at ---------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Know the shards that there are now; what became of the others is looked at in a full look, which is now."""
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
            self._shadows[name] = Shadow(self._settings, *served[name])
        if left:
            self._next_full = 0.0

    def _hear(self) -> None:
        """What is lost with Redis needs no word of its own: then its indexes are others than before, too."""
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
        """Every shard in which Redis or the table has anything; and rows of shards and queues that are no more."""
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
        """A step of each in turn, so that a shard with a million graves keeps nobody waiting."""
        now = time.monotonic()
        for name in {*self._behind, *self._doubted} - self._work.keys():
            if name in self._behind or self._shadows[name].count_at <= now:
                self._work[name] = self._steps(name)
        while self._work:
            for name in list(self._work):
                steps = self._work.pop(name)  # what breaks off is begun anew
                if next(steps, _END) is not _END:
                    self._work[name] = steps
            if time.monotonic() >= until:
                return

    def _steps(self, name: Name) -> Iterator[object]:
        shadow = self._shadows[name]
        try:
            if name in self._behind:
                self._behind.discard(name)  # what is heard from here on is a new reason
                yield from shadow.copy()
            if time.monotonic() >= shadow.count_at:
                yield from review(shadow, sure=self._doubted.pop(name, 0))
        except Exception:
            self._want(name, SURE)
            raise


def delete_rows(name: Name) -> None:
    """Deletes the rows of a shard's place, and at last its cursor."""
    queue, number, place = name
    rows = table(PLACES[place]).filter(queue=queue, shard=number)
    while keys := list(rows.values_list("pk", flat=True)[:AT_ONCE]):
        rows.filter(pk__in=keys).delete()
    cursors_of(PLACES[place]).filter(queue=queue, shard=number).delete()
