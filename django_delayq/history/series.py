"""What the charts of the history show: the hours of a period added up by time and by task.

The percentiles of one task in one hour are exact, as the pipeline found them in all its runs. Those of several together
are read off their added histograms (:mod:`.histograms`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, Final

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from ..models.history import HourlyStat
from ..outbox.rows import chunks
from . import histograms
from .moments import from_row
from .periods import Period, Wish

__all__ = ["COLUMNS", "COUNTS", "FAILURES", "Summary", "Tally", "added", "summary"]

COUNTS: Final = (
    "runs",
    "succeeded",
    "failed",
    "timeout",
    "crashed",
    "lost",
    "released",
    "cancelled",
    "expired",
    "buried",
    "retries",
    "sla_missed",
    "timed",
    "lateness_sum_ms",
    "duration_sum_ms",
)
#: outcomes that nobody wants
FAILURES: Final = ("failed", "timeout", "crashed", "lost", "buried")
_KEY: Final = ("hour", "queue", "task")
_HISTOGRAMS: Final = ("lateness_histogram", "duration_histogram")
_LONGEST: Final = ("lateness_max_ms", "duration_max_ms")
_EXACT: Final = (
    "lateness_p50_ms",
    "lateness_p95_ms",
    "lateness_p99_ms",
    "duration_p50_ms",
    "duration_p95_ms",
    "duration_p99_ms",
)
#: what is read of a row, in this order
COLUMNS: Final = (*_KEY, *COUNTS, *_HISTOGRAMS, *_LONGEST, *_EXACT)
_FIRST, _BEHIND = len(_KEY), len(_KEY) + len(COUNTS)
_EXACT_AT: Final = _BEHIND + len(_HISTOGRAMS) + len(_LONGEST)
#: rows that are read at a time
_CHUNK: Final = 2_000


@dataclass(slots=True)
class Tally:
    """Some rows of the history added up."""

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    lateness: list[int] = field(default_factory=histograms.empty)
    duration: list[int] = field(default_factory=histograms.empty)
    #: the longest of each, ms
    lateness_max: int | None = None
    duration_max: int | None = None
    rows: int = 0
    _exact: Sequence[Any] = ()

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows, at least one: each has the values of :data:`COLUMNS`. Many at once take a fraction of the time."""
        columns = list(zip(*rows, strict=True))
        self.counts[:] = map(int.__add__, self.counts, map(sum, columns[_FIRST:_BEHIND]))
        histograms.add_all(self.lateness, columns[_BEHIND])
        histograms.add_all(self.duration, columns[_BEHIND + 1])
        self.lateness_max = _longest(self.lateness_max, *columns[_BEHIND + 2])
        self.duration_max = _longest(self.duration_max, *columns[_BEHIND + 3])
        self.rows += len(rows)
        self._exact = rows[0][_EXACT_AT:] if self.rows == 1 else ()

    def merge(self, other: Tally) -> None:
        """Add what was added up already."""
        if not other.rows:
            return
        self.counts[:] = map(int.__add__, self.counts, other.counts)
        histograms.add(self.lateness, other.lateness)
        histograms.add(self.duration, other.duration)
        self.lateness_max = _longest(self.lateness_max, other.lateness_max)
        self.duration_max = _longest(self.duration_max, other.duration_max)
        self._exact = other._exact if not self.rows else ()
        self.rows += other.rows

    def __getitem__(self, name: str) -> int:
        """A count of :data:`COUNTS`."""
        return self.counts[COUNTS.index(name)]

    @property
    def failures(self) -> int:
        """Runs that did not end as anybody wants (:data:`FAILURES`)."""
        return sum(self[name] for name in FAILURES)

    @property
    def failure_rate(self) -> float | None:
        """The part of all runs, 0 … 1; None where nothing ran."""
        return self.failures / self["runs"] if self["runs"] else None

    def lateness_ms(self, percent: int) -> float | None:
        """A percentile (50, 95, 99) of the lateness, ms; None where nothing began."""
        return self._percentile(f"lateness_p{percent}_ms", percent, self.lateness, self.lateness_max)

    def duration_ms(self, percent: int) -> float | None:
        """A percentile (50, 95, 99) of the length of the runs, ms; None where nothing began."""
        return self._percentile(f"duration_p{percent}_ms", percent, self.duration, self.duration_max)

    @property
    def mean_duration_ms(self) -> float | None:
        """The mean length of the runs, ms."""
        return self["duration_sum_ms"] / self["timed"] if self["timed"] else None

    def _percentile(self, column: str, percent: int, counts: Sequence[int], most: int | None) -> float | None:
        if self._exact:
            found = self._exact[_EXACT.index(column)]
            return None if found is None else float(found)
        return histograms.quantile(counts, percent / 100, most)


def _longest(*lengths: int | None) -> int | None:
    return max((length for length in lengths if length is not None), default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """A period, added up.

    Attributes:
        slots: of each piece of the period (:attr:`Period.slots`).
        tasks: of each (queue, task).
        total: of all.
    """

    period: Period
    slots: list[Tally]
    tasks: dict[tuple[str, str], Tally]
    total: Tally

    def by_failures(self) -> list[tuple[tuple[str, str], Tally]]:
        """The tasks that failed at all, the ones that failed most often first."""
        found = [(name, tally) for name, tally in self.tasks.items() if tally.failures]
        return sorted(found, key=lambda one: (-one[1].failures, one[0]))

    def by_failure_rate(self, least: int = 1) -> list[tuple[tuple[str, str], Tally]]:
        """The tasks that failed at all, the largest part of their runs first.

        Args:
            least: runs that a task must have to be compared with others.
        """
        found = [one for one in self.by_failures() if one[1]["runs"] >= least]
        return sorted(found, key=lambda one: (-(one[1].failure_rate or 0.0), -one[1].failures, one[0]))

    def per_hour(self, place: int) -> float:
        """Runs in an hour of a piece of the period; the last piece may be a short one."""
        begin = self.period.slots[place]
        hours = min(self.period.step, round((self.period.end - begin).total_seconds() / 3600))
        return self.slots[place]["runs"] / hours


def added(rows: Iterable[Sequence[Any]], period: Period) -> Summary:
    """Adds up rows: the values of :data:`COLUMNS`, whose hours lie in the period."""
    slots = [Tally() for _slot in period.slots]
    tasks: dict[tuple[str, str], Tally] = {}
    places: dict[datetime, int] = {}  # there are many rows of each hour
    for some in chunks(rows, _CHUNK):
        by_place: defaultdict[int, list[Sequence[Any]]] = defaultdict(list)
        by_task: defaultdict[tuple[str, str], list[Sequence[Any]]] = defaultdict(list)
        for row in some:
            hour = row[0]
            place = places.get(hour)
            if place is None:
                place = places[hour] = period.slot_of(from_row(hour))
            by_place[place].append(row)
            by_task[row[1], row[2]].append(row)
        for place, those in by_place.items():
            slots[place].add(those)
        for name, those in by_task.items():
            if name not in tasks:
                tasks[name] = Tally()
            tasks[name].add(those)
    total = Tally()
    for tally in tasks.values():
        total.merge(tally)
    return Summary(period, slots, tasks, total)


def summary(wish: Wish, period: Period, table: QuerySet[HourlyStat] | None = None) -> Summary:
    """The hours that a wish means, added up; one query.

    Args:
        period: the one of the wish.
        table: rows to begin with; None = all of them.
    """
    rows = wish.rows(HourlyStat._default_manager.all() if table is None else table)
    # As texts: one call reads the histograms of many rows faster than a call for each.
    texts = {f"{name}_text": Cast(name, TextField()) for name in _HISTOGRAMS}
    columns = [f"{name}_text" if name in _HISTOGRAMS else name for name in COLUMNS]
    read = rows.order_by().annotate(**texts).values_list(*columns).iterator(_CHUNK)
    return added(chain.from_iterable(map(_with_histograms, chunks(read, _CHUNK))), period)


def _with_histograms(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Rows of the database as :data:`COLUMNS` has them."""
    texts = [text or "null" for place in (_BEHIND, _BEHIND + 1) for text in (row[place] for row in rows)]
    read = json.loads(f"[{','.join(texts)}]")
    for row, lateness, duration in zip(rows, read[: len(rows)], read[len(rows) :], strict=True):
        yield (*row[:_BEHIND], lateness, duration, *row[_BEHIND + 2 :])
