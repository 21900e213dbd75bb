"""Comparison of a table with a queue, in this process: the rules of :mod:`..core.comparison`, without Spark."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from django.db import router

from .. import connections
from ..core.bulk import act_in_shard
from ..core.comparison import DEAD, FIRST, LIVE, RowCounts
from ..core.errors import InvalidJob, Misconfigured
from ..core.moments import datetime_of
from ..core.operations.actions import cancel_selected
from ..core.operations.columns import INDEXED, PLACES, Part, read_columns, read_entries
from ..core.queue import Queue
from ..core.records.schedule_frames import CHUNK
from ..core.row_templates import id_of, names_in, pattern_of
from ..models import OutboxJob
from ..scheduling.plans import plan_of
from ..scheduling.verbs import schedule_many
from ..settings.conf import conf
from .row_jobs import RowJobs, database_now_ms

#: most rows that are compared; the pipeline compares any number
MOST_ROWS: Final = 100_000
_PAGE: Final = 2_000

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Orphan:
    """Live job that no row needs."""

    shard: int
    id: str
    key: str


@dataclass(slots=True)
class _Seen:
    """Ids in the queue and in the outbox."""

    live: set[str] = field(default_factory=set)
    buried: set[str] = field(default_factory=set)
    known: int = 0


class RowComparison:
    """Comparison of a model's rows with a queue. Call :meth:`look` first, then any of the other methods.

    Args:
        jobs: the jobs to compare.
        progress: called with the number of rows read and their total.
    """

    def __init__(self, jobs: RowJobs, progress: Progress = lambda done, total: None) -> None:
        self._jobs = jobs
        self._progress = progress
        self._is_ours = re.compile(pattern_of(jobs.id)).fullmatch
        self._builder = plan_of(jobs.task, {"queue": jobs.queue}, many=True).builder
        self._missing: list[dict[str, Any]] = []

    @cached_property
    def began_ms(self) -> float:
        """Time before the first read, Unix ms: the earlier one of Redis's clock and the database's."""
        jobs = self._jobs
        return min(connections.broker().now_ms(), database_now_ms(jobs.model, jobs.using))

    def look(self) -> RowCounts:
        """Read the queue, then the table, and compare them.

        Raises:
            Misconfigured: the table has too many rows, or an option does not fit it.
            QueueUnavailable: Redis cannot be reached.
        """
        seen = self._seen()
        rows = self._jobs.rows(datetime_of(self.began_ms - self._jobs.grace_ms))
        total, counts = rows.count(), Counter[str]()
        if total > MOST_ROWS:
            raise Misconfigured(
                f"{total:,} rows are more than the {MOST_ROWS:,} that are compared in one process; narrow --filter, or "
                "use delayq_pipeline reconcile, which takes the same options"
            )
        bad: list[tuple[str | None, str]] = []
        self._missing.clear()
        for done, row in enumerate(rows.iterator(_PAGE), 1):
            self._compare(row, seen, counts, bad)
            if done % _PAGE == 0 or done == total:
                self._progress(done, total)
        return RowCounts(
            rows=counts["rows"],
            known=seen.known,
            missing=len(self._missing),
            buried=counts["buried"],
            bad=len(bad),
            first=tuple(sorted({str(entry["id"]) for entry in self._missing})[:FIRST]),
            first_bad=tuple(sorted(bad, key=lambda one: (one[0] is not None, one[0]))[:FIRST]),
        )

    def put_back(self, *, rate: float | None = None, progress: Progress = lambda done, total: None) -> dict[str, int]:
        """Schedule the missing jobs; return their number by outcome, as ``schedule_many`` does.

        Args:
            rate: most jobs a second.
        """
        jobs, outcomes, began = self._jobs, Counter[str](), time.monotonic()
        conflict = "merge" if jobs.task.options.merge else "ignore"
        for start in range(0, len(self._missing), CHUNK):
            chunk = self._missing[start : start + CHUNK]
            outcomes.update(schedule_many(jobs.task, chunk, queue=jobs.queue, on_conflict=conflict))
            progress(start + len(chunk), len(self._missing))
            if rate is not None:
                time.sleep(max(0.0, (start + len(chunk)) / rate - (time.monotonic() - began)))
        return {word: count for word, count in outcomes.items() if count}

    def orphans(self) -> list[Orphan]:
        """Return live jobs of the task, with ids that match the template, that no row needs; young rows count, too."""
        orphans = [
            Orphan(number, ident, key)
            for queue, number, place in self._parts(LIVE)
            for columns in read_columns(queue.broker, Part(queue.name, number, place, args=False))
            for ident, task, key in zip(
                columns.column("id"), columns.column("task"), columns.column("key"), strict=True
            )
            if task == self._jobs.task.name and key and self._is_ours(ident)
        ]
        return self._without_row(orphans)

    def cancel_orphans(self, orphans: list[Orphan], progress: Progress = lambda done, total: None) -> dict[str, int]:
        """Cancel orphans, each only if it is unchanged since it was read and still has no row.

        Returns:
            The number of jobs by outcome: cancelled, stopping (it is running and will not be retried), ungated,
                running, gone; needed (there is a row for it now).
        """
        still = self._without_row(orphans)
        outcomes = Counter[str](needed=len(orphans) - len(still))
        queue = connections.broker().known_queue(self._jobs.queue)
        for number in sorted({orphan.shard for orphan in still}):
            names = [(orphan.id, bytes.fromhex(orphan.key)) for orphan in still if orphan.shard == number]
            for start in range(0, len(names), CHUNK):
                chunk = names[start : start + CHUNK]
                outcomes.update(
                    ["gone"] * len(chunk) if queue is None else act_in_shard(queue, number, chunk, cancel_selected())
                )
                progress(outcomes.total(), len(orphans))
        return {word: count for word, count in outcomes.items() if count}

    # -- the queue and the outbox ------------------------------------------------------------------------------------

    def _seen(self) -> _Seen:
        _ = self.began_ms
        seen = _Seen()
        for alias in conf().outbox.databases:
            rows = OutboxJob.objects.using(alias).filter(queue=self._jobs.queue)
            for ident, state in rows.values_list("job_id", "state").iterator(_PAGE):
                seen.known += 1
                (seen.buried if state in DEAD else seen.live).add(ident)
        for queue, number, place in self._parts(PLACES):
            into = seen.buried if place == "morgue" else seen.live
            for idents in _idents(queue, Part(queue.name, number, place, args=False)):
                seen.known += len(idents)
                into.update(ident for ident in idents if self._is_ours(ident))
        return seen

    def _parts(self, places: Sequence[str]) -> Iterator[tuple[Queue, int, str]]:
        queue = connections.broker().known_queue(self._jobs.queue)
        if queue is not None:
            yield from ((queue, number, place) for number in queue.numbers for place in places)

    def _compare(
        self, row: Mapping[str, Any], seen: _Seen, counts: Counter[str], bad: list[tuple[str | None, str]]
    ) -> None:
        counts["rows"] += 1
        ident = id_of(self._jobs.id, row)
        if ident in seen.live:
            return
        try:
            entry = self._jobs.entry(ident, row, round(self.began_ms))
            options = {name: value for name, value in entry.items() if name not in ("args", "kwargs")}
            self._builder.build(tuple(entry.get("args", ())), entry.get("kwargs", {}), options)
        except (InvalidJob, TypeError) as error:
            bad.append((ident, str(error)))
            return
        buried = ident in seen.buried
        counts["buried"] += buried
        if buried and not self._jobs.include_morgue:
            return
        self._missing.append(entry)
        if not self._jobs.task.options.merge:
            seen.live.add(str(ident))  # rows that share a plain job count once

    def _without_row(self, orphans: list[Orphan]) -> list[Orphan]:
        # Read from the database that is written to, because a replica lags behind.
        jobs = self._jobs
        rows = self._jobs.rows(None, jobs.using or router.db_for_write(jobs.model)).values(*names_in(jobs.id))
        needed = {id_of(jobs.id, row) for row in rows.iterator(_PAGE)} if orphans else set()
        return [orphan for orphan in orphans if orphan.id not in needed]


def _idents(queue: Queue, part: Part) -> Iterator[list[str]]:
    """Yield the ids of a part, from its index if it has one."""
    if INDEXED[part.place]:
        yield from (entries.idents() for entries in read_entries(queue.broker, part))
    else:
        yield from (columns.column("id") for columns in read_columns(queue.broker, part))
