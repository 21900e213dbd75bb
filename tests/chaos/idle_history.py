"""Check of a campaign's history: did a due job wait although a free slot could have run it, and did the limits hold?

It uses nothing of the package, only what the campaign ordered and what the tasks recorded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

#: s; a due job may wait this long beside a free slot
BOUND = 2.0
#: s; from the grant of a start to the start itself
LATENCY = 0.5


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of jobs that run at the same time, and of starts in a time; None = none.

    Attributes:
        interval: s from one start to the next.
        burst: starts at once.
    """

    total: int | None = None
    local: int | None = None
    interval: float | None = None
    burst: int = 0


@dataclass(slots=True)
class Crew:
    """Process that runs jobs: what it serves, and from when to when it can take a job."""

    pid: int
    queues: frozenset[str]
    threads: int
    since: float
    until: float = float("inf")


@dataclass(slots=True)
class Life:
    """Life of one job: when it could have run, and when and where it ran."""

    id: str
    queue: str
    task: str
    due: float
    start: float = float("inf")
    end: float = float("inf")
    pid: int = 0
    #: with the name of its queue; "" = none
    group: str = ""

    @property
    def names(self) -> tuple[str, str, str]:
        """Names under which it may have limits and pauses."""
        return self.queue, self.task, self.group


@dataclass(slots=True)
class World:
    """All that a campaign knows when it is over. Times are those of the wall clock, in seconds."""

    crews: list[Crew]
    lives: list[Life]
    #: by queue, by task and by group
    limits: Mapping[str, Limit]
    #: by queue; those of refusals also by task and by group
    pauses: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)
    #: by the name of a limit: when its rate allowed no start
    _full: dict[str, list[tuple[float, float]]] = field(default_factory=dict, init=False)

    def violations(self) -> list[str]:
        """Return a sentence for each broken limit, and each job that waited beside a free slot for too long."""
        broken = [sentence for name, limit in self.limits.items() for sentence in self._exceeded(name, limit)]
        return [*broken, *self._waited()]

    def _exceeded(self, name: str, limit: Limit) -> Iterator[str]:
        """Count the jobs of a limit by their starts and ends; note when its rate is exhausted."""
        lives = sorted((life for life in self.lives if name in life.names), key=lambda life: life.start)
        lives = [life for life in lives if life.start < float("inf")]
        for life in lives if limit.total else ():
            running = sum(other.start <= life.start < other.end for other in lives)
            if running > (limit.total or 0):
                yield f"{running} jobs of {name} ran at {life.start:.2f}; its limit is {limit.total}"
        over = float("-inf")  # when all starts so far would be over, if each took the interval
        for life in lives if limit.interval else ():
            interval = limit.interval or 0.0
            over = max(over, life.start) + interval
            if over - life.start > limit.burst * interval + LATENCY:
                yield f"{name} had more starts until {life.start:.2f} than {1 / interval:g}/s and {limit.burst} at once"
            if (free := over - (limit.burst - 1) * interval) > life.start:
                self._full.setdefault(name, []).append((life.start, free))

    def _waited(self) -> Iterator[str]:
        times = sorted(set(self._moments()))
        for life in self.lives:
            if life.start - life.due <= BOUND:
                continue
            inside = times[bisect_left(times, life.due) : bisect_left(times, life.start)]
            waited, crew = self._longest(life, [life.due, *inside, min(life.start, times[-1])])
            if crew is not None and waited > BOUND:
                yield (
                    f"{life.id} ({life.task} of {life.queue}) waited {waited:.1f} s beside a free slot of process "
                    f"{crew.pid}; it was due at {life.due:.2f} and started at {life.start:.2f}"
                )

    def _moments(self) -> Iterator[float]:
        for life in self.lives:
            yield from (moment for moment in (life.due, life.start, life.end) if moment < float("inf"))
        for crew in self.crews:
            yield from (moment for moment in (crew.since, crew.until) if moment < float("inf"))
        for pauses in (*self.pauses.values(), *self._full.values()):
            for pause in pauses:
                yield from pause

    def _longest(self, life: Life, times: list[float]) -> tuple[float, Crew | None]:
        """Return the longest uninterrupted time for which some process could have run a job, and the last such."""
        longest, last, since = 0.0, None, None
        for begin, end in pairwise(times):
            crew = self._able(life, (begin + end) / 2)
            if crew is None:
                since = None
                continue
            since = begin if since is None else since
            if end - since > longest:
                longest, last = end - since, crew
        return longest, last

    def _able(self, life: Life, moment: float) -> Crew | None:
        """Return a process that could have begun the job at a moment."""
        for name in life.names:
            held_back = (*self.pauses.get(name, ()), *self._full.get(name, ()))
            if any(begin <= moment < end for begin, end in held_back):
                return None
        running = [other for other in self.lives if other.start <= moment < other.end]
        alike = [
            (self.limits[name], [other for other in running if name in other.names])
            for name in life.names
            if name in self.limits
        ]
        if any(limit.total is not None and len(others) >= limit.total for limit, others in alike):
            return None
        return next((crew for crew in self.crews if self._has_room(crew, life, moment, running, alike)), None)

    def _has_room(
        self,
        crew: Crew,
        life: Life,
        moment: float,
        running: Iterable[Life],
        alike: Iterable[tuple[Limit, list[Life]]],
    ) -> bool:
        def here(lives: Iterable[Life]) -> int:
            return sum(other.pid == crew.pid for other in lives)

        return (
            life.queue in crew.queues
            and crew.since <= moment < crew.until
            and here(running) < crew.threads
            and all(limit.local is None or here(others) < limit.local for limit, others in alike)
        )
