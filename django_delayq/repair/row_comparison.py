"""Comparison of a table with a queue, in this process: the rules of :mod:`..rows`, without Spark."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from django.db import router

from .. import connections
from ..core.actions import cancel_selected, live_ids
from ..core.bulk import act_in_shard
from ..core.errors import InvalidJob, Misconfigured
from ..core.queue import Queue
from ..core.records.frames import CHUNK
from ..core.snapshot import Part, read_entries, read_jobs
from ..core.times import datetime_of
from ..models import OutboxJob
from ..outbox import durability
from ..outbox.rows import chunks
from ..rows import DEAD, FIRST, LIVE, RowCounts, id_of, names_in
from ..scheduling.build import plan_of
from ..scheduling.verbs import schedule_many
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


class RowComparison:
    """Comparison of a model's rows with a queue. Call :meth:`look` first, then any of the other methods.

    Args:
        jobs: the jobs to compare.
        progress: called with the number of rows read and their total.
    """

    def __init__(self, jobs: RowJobs, progress: Progress = lambda done, total: None) -> None:
        self._jobs = jobs
        self._progress = progress
        self._is_ours = re.compile(jobs.id_pattern).fullmatch
        self._builder = plan_of(jobs.task, {"queue": jobs.queue}, many=True).builder
        self._missing: list[dict[str, Any]] = []

    @cached_property
    def began_ms(self) -> float:
        """Time before the first read, Unix ms: the earlier one of Redis's clock and the database's."""
        jobs = self._jobs
        return min(connections.broker().now_ms(), database_now_ms(jobs.model, jobs.using))

    def look(self) -> RowCounts:
        """Compare the table with the queue. Only the rows without a live job are kept in memory.

        They are read once more after the look for their jobs: a job that ended meanwhile has changed its row.

        Raises:
            Misconfigured: the table has too many rows, or an option does not fit it.
            QueueUnavailable: Redis cannot be reached.
        """
        rows = self._jobs.rows(datetime_of(self.began_ms - self._jobs.grace_ms))
        total, counts = rows.count(), Counter[str]()
        if total > MOST_ROWS:
            raise Misconfigured(
                f"{total:,} rows are more than the {MOST_ROWS:,} that are compared in one process; narrow --filter, or "
                "use delayq_pipeline reconcile, which takes the same options"
            )
        idents: dict[Any, str | None] = {}
        for page in chunks(rows.values(*{"pk", *names_in(self._jobs.id)}).iterator(_PAGE), _PAGE):
            counts["rows"] += len(page)
            idents |= self._without_live_job({row["pk"]: id_of(self._jobs.id, row) for row in page})
            self._progress(counts["rows"], total)
        buried = self._buried({ident for ident in idents.values() if ident is not None})
        bad: list[tuple[str | None, str]] = []
        self._missing.clear()
        taken: set[str | None] = set()
        for pks in chunks(idents):
            for row in rows.filter(pk__in=pks):
                self._compare(row, buried, taken, counts, bad)
        return RowCounts(
            rows=counts["rows"],
            known=self._count_known(),
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
        """Return live jobs of the task, with ids that match the template, that no row needs; young rows count, too.

        At most :data:`MOST_ROWS`: another call finds the others when these are cancelled.
        """
        orphans: list[Orphan] = []
        for chunk in chunks(self._live_jobs(), MOST_ROWS):
            orphans += self._without_row(chunk)
            if len(orphans) >= MOST_ROWS:
                break
        return orphans[:MOST_ROWS]

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

    def _without_live_job(self, idents: Mapping[Any, str | None]) -> dict[Any, str | None]:
        """Return those keys of rows, with their ids, whose jobs are neither live nor in the outbox."""
        wanted = [ident for ident in idents.values() if ident is not None]
        known = {ident for ident, state in self._outbox_states(wanted) if state not in DEAD}
        queue = connections.broker().known_queue(self._jobs.queue)
        if queue is not None:
            known |= {ident.decode() for ident in live_ids(queue, [one.encode() for one in set(wanted) - known])}
        return {pk: ident for pk, ident in idents.items() if ident not in known}

    def _buried(self, idents: set[str]) -> set[str]:
        """Return those ids whose jobs are in the morgue, or are refused or buried in the outbox."""
        buried = {ident for ident, state in self._outbox_states(idents) if state in DEAD}
        for queue, number, place in self._parts(("morgue",) if idents else ()):
            for entries in read_entries(queue.deployment, Part(queue.name, number, place)):
                buried |= idents.intersection(entries.idents())
        return buried

    def _outbox_states(self, idents: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield id and state of the rows of the outbox for some ids."""
        for alias in durability.outboxes("python"):
            for chunk in chunks(idents):
                mine = OutboxJob.objects.using(alias).filter(queue=self._jobs.queue, job_id__in=chunk)
                yield from mine.values_list("job_id", "state")

    def _count_known(self) -> int:
        """Return the number of jobs in the queue and of rows in the outbox."""
        counts = connections.broker().inspector.counts(self._jobs.queue)
        outboxes = durability.outboxes("python")
        stored = (OutboxJob.objects.using(alias).filter(queue=self._jobs.queue).count() for alias in outboxes)
        return counts.delayed + counts.ready + counts.reserved + counts.gated + counts.morgue + sum(stored)

    def _live_jobs(self) -> Iterator[Orphan]:
        """Yield the live jobs of the task whose ids match the template."""
        for queue, number, place in self._parts(LIVE):
            for some in read_jobs(queue.deployment, Part(queue.name, number, place, args=False)):
                for task, ident, key in zip(some["task"], some["id"], some["key"], strict=True):
                    if task == self._jobs.task.name and self._is_ours(ident):
                        yield Orphan(number, ident, key)

    def _parts(self, places: Sequence[str]) -> Iterator[tuple[Queue, int, str]]:
        queue = connections.broker().known_queue(self._jobs.queue)
        if queue is not None:
            yield from ((queue, number, place) for number in queue.numbers for place in places)

    def _compare(
        self,
        row: Mapping[str, Any],
        buried: set[str],
        taken: set[str | None],
        counts: Counter[str],
        bad: list[tuple[str | None, str]],
    ) -> None:
        """Add a row without a live job to the missing or to the bad ones; ``taken`` holds ids that are missing."""
        ident = id_of(self._jobs.id, row)
        if ident in taken:
            return
        try:
            entry = self._jobs.entry(ident, row, round(self.began_ms))
            options = {name: value for name, value in entry.items() if name not in ("args", "kwargs")}
            self._builder.build(tuple(entry.get("args", ())), entry.get("kwargs", {}), options)
        except (InvalidJob, TypeError) as error:
            bad.append((ident, str(error)))
            return
        counts["buried"] += ident in buried
        if ident in buried and not self._jobs.include_morgue:
            return
        self._missing.append(entry)
        if not self._jobs.task.options.merge:
            taken.add(ident)  # rows that share a plain job count once

    def _without_row(self, orphans: list[Orphan]) -> list[Orphan]:
        # Read from the database that is written to, because a replica lags behind.
        jobs = self._jobs
        rows = self._jobs.rows(None, jobs.using or router.db_for_write(jobs.model)).values(*names_in(jobs.id))
        idents = {orphan.id for orphan in orphans}
        made = (id_of(jobs.id, row) for row in rows.iterator(_PAGE)) if orphans else ()
        needed = {ident for ident in made if ident in idents}
        return [orphan for orphan in orphans if orphan.id not in needed]
