"""Jobs that the rows of a model need, and the comparison of a table with a queue in this process, in constant memory.

The rules are those of :mod:`.rows`, without Spark. The rows are read in pages. A page is compared alone: the jobs of
its rows are looked up by their ids, and the rows without a job are read once more behind that. Nothing is kept of a
page but its counts, so missing jobs are found again, page by page, when they are restored.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from django.core.exceptions import FieldError, ValidationError
from django.db import connections as databases
from django.db import models, router
from django.db.models.functions import Now

from .. import connections
from ..core.actions import cancel_selected, live_ids
from ..core.bulk import act_in_shard
from ..core.errors import InvalidJob, Misconfigured
from ..core.queue import Queue
from ..core.records.frames import CHUNK
from ..core.snapshot import Part, read_jobs
from ..core.task import Task
from ..core.times import datetime_of, parse_moment
from ..models import OutboxJob
from ..outbox import durability
from ..outbox.rows import chunks
from ..scheduling.build import plan_of
from ..scheduling.verbs import schedule_many
from .rows import (
    DEAD,
    FIRST,
    GRACE_MS,
    LIVE,
    Kind,
    RowCounts,
    check_names_in,
    day_before,
    due_ms_of,
    id_of,
    names_in,
    pattern_of,
    wrong_due,
)

#: most orphans that one call finds
MOST_ORPHANS: Final = 100_000
_PAGE: Final = 2_000

Progress = Callable[[int, int], None]
_KINDS: Final[Mapping[Kind, type[models.Field[Any, Any]]]] = {
    "integer": models.IntegerField,
    "uuid": models.UUIDField,
    "date": models.DateField,
    "boolean": models.BooleanField,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowJobs:
    """Jobs that the rows of a model need; the names are those of the command's options."""

    model: type[models.Model]
    task: Task
    queue: str
    id: str
    created: str
    filters: Sequence[Mapping[str, Any]] = ()
    using: str | None = None
    due: str | None = None
    args: Sequence[str] = ()
    kwargs: Sequence[str] = ()
    context: Sequence[str] = ()
    payload: str | None = None
    score: str | None = None
    grace_ms: float = GRACE_MS
    include_morgue: bool = False

    def __post_init__(self) -> None:
        check_names_in(self.id)
        rows = self.model._base_manager.all()
        try:
            rows.filter(*[models.Q(**one) for one in self.filters]).values(*self.columns, self.created)
        except (FieldError, ValidationError, ValueError, TypeError) as error:
            raise Misconfigured(f"{self.model._meta.label}: {error}; name fields of the model") from None
        if not isinstance(self.created_field, models.DateField):
            raise Misconfigured(
                f"{self.created} is no date and no time; name a field with the moment, or the day, since which a row "
                f"needs its job"
            )

    @property
    def columns(self) -> list[str]:
        """Fields of the rows that the jobs are made of."""
        due = [self.due] if self.due and self.due.isidentifier() else []
        names = (*names_in(self.id), *self.args, *self.kwargs, *self.context, self.payload, self.score, *due)
        return list(dict.fromkeys(name for name in names if name))

    @property
    def created_field(self) -> Any:
        """Field that tells since when a row needs its job."""
        return self._field(self.created)

    @property
    def id_pattern(self) -> str:
        """Regular expression for the ids that rows of the model can have: a whole number matches digits only."""
        kinds = {name: _kind_of(self._field(name)) for name in names_in(self.id)}
        return pattern_of(self.id, {name: kind for name, kind in kinds.items() if kind is not None})

    def _field(self, name: str) -> Any:
        (column,) = self.model._base_manager.values(name).query.select
        return getattr(column, "target", None)

    def rows(self, before: datetime | None, using: str | None = None) -> Any:
        """Return the rows that need a job; ``before`` None = young rows, too."""
        rows = self.model._base_manager.using(using or self.using or router.db_for_read(self.model))
        rows = rows.filter(*[models.Q(**one) for one in self.filters])
        if before is not None:
            is_moment = isinstance(self.created_field, models.DateTimeField)
            rows = rows.filter(**{f"{self.created}__lt": before if is_moment else day_before(before)})
        return rows.order_by("pk").values(*self.columns)

    def entry(self, ident: str | None, row: Mapping[str, Any], opened_ms: int) -> dict[str, Any]:
        """Return the job of a row as ``schedule_many`` takes it; ``opened_ms`` is the beginning of delays.

        Raises:
            InvalidJob: the row cannot have a valid job.
        """
        if ident is None:
            raise InvalidJob("id is null, because a part of it is")
        entry: dict[str, Any] = {"id": ident}
        if self.due is not None:
            entry["at"] = self._due(self.due, row, opened_ms)
        if self.context:
            entry["context"] = {name: row[name] for name in self.context}
        if self.payload is not None:
            entry["payload"] = row[self.payload]
            if self.score is not None:
                entry["score"] = row[self.score]
            return entry
        args, kwargs = [row[name] for name in self.args], {name: row[name] for name in self.kwargs}
        return {**entry, "args": args, "kwargs": kwargs}

    def _due(self, due: str, row: Mapping[str, Any], opened_ms: int) -> datetime:
        if due not in row:
            return datetime_of(due_ms_of(due, opened_ms, row))
        value = row[due]
        if value is None:
            raise InvalidJob("due is null")
        if isinstance(value, str):
            return parse_moment(value, what="due")
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime_of(value)
        if not isinstance(value, datetime):
            raise wrong_due(due, type(value).__name__)
        return value


def _kind_of(field: Any) -> Kind | None:
    """Return the kind of a field's values; None = they may have any text."""
    while isinstance(field, models.ForeignKey):
        field = field.target_field
    if hasattr(field, "from_db_value") or isinstance(field, models.DateTimeField):
        return None
    return next((kind for kind, known in _KINDS.items() if isinstance(field, known)), None)


def database_now_ms(model: Any, using: str | None) -> float:
    """Return the time of the rows' database in Unix ms; infinite if the table is empty."""
    alias = using or router.db_for_read(model)
    rows = model._base_manager.using(alias).order_by()
    moment = rows.annotate(delayq_now=Now()).values_list("delayq_now", flat=True).first()
    databases[alias].close_if_unusable_or_obsolete()
    return float("inf") if moment is None else float(moment.timestamp() * 1000)


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Orphan:
    """Live job that no row needs."""

    shard: int
    id: str
    key: str


@dataclass(slots=True)
class _Found:
    """Counts of a comparison so far."""

    rows: int = 0
    buried: int = 0
    bad: int = 0
    first_bad: list[tuple[str | None, str]] = field(default_factory=list)

    def add_bad(self, ident: str | None, reason: str) -> None:
        """Count a row that cannot have a job; the first ones are kept."""
        self.bad += 1
        self.first_bad = sorted([*self.first_bad, (ident, reason)], key=lambda one: (one[0] is not None, one[0]))[
            :FIRST
        ]


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
        self._missing = 0

    @cached_property
    def began_ms(self) -> float:
        """Time before the first read, Unix ms: the earlier one of Redis's clock and the database's."""
        jobs = self._jobs
        return min(connections.broker().now_ms(), database_now_ms(jobs.model, jobs.using))

    def look(self) -> RowCounts:
        """Compare the table with the queue.

        Raises:
            Misconfigured: an option does not fit the table.
            QueueUnavailable: Redis cannot be reached.
        """
        found, first = _Found(), set[str]()
        self._missing = 0
        for entries in self._pages(found):
            self._missing += len(entries)
            first = set(sorted(first.union(str(entry["id"]) for entry in entries))[:FIRST])
        return RowCounts(
            rows=found.rows,
            known=self._count_known(),
            missing=self._missing,
            buried=found.buried,
            bad=found.bad,
            first=tuple(sorted(first)),
            first_bad=tuple(found.first_bad),
        )

    def put_back(self, *, rate: float | None = None, progress: Progress = lambda done, total: None) -> dict[str, int]:
        """Schedule the missing jobs; return their number by outcome, as ``schedule_many`` does.

        Args:
            rate: most jobs a second.
        """
        jobs, outcomes, began = self._jobs, Counter[str](), time.monotonic()
        conflict = "merge" if jobs.task.options.merge else "ignore"
        for entries in self._pages(_Found()):
            for chunk in chunks(entries, CHUNK):
                outcomes.update(schedule_many(jobs.task, chunk, queue=jobs.queue, on_conflict=conflict))
                progress(outcomes.total(), max(outcomes.total(), self._missing))
                if rate is not None:
                    time.sleep(max(0.0, outcomes.total() / rate - (time.monotonic() - began)))
        return {word: count for word, count in outcomes.items() if count}

    def orphans(self) -> list[Orphan]:
        """Return live jobs of the task, with ids that match the template, that no row needs; young rows count, too.

        At most :data:`MOST_ORPHANS`: another call finds the others when these are cancelled.
        """
        orphans: list[Orphan] = []
        for chunk in chunks(self._live_jobs(), MOST_ORPHANS):
            orphans += self._without_row(chunk)
            if len(orphans) >= MOST_ORPHANS:
                break
        return orphans[:MOST_ORPHANS]

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
            key = queue.deployment.shard(queue.name, number).names["morgue"]
            mine = tuple(ident for ident in idents if number in queue.shards_of(ident))
            if mine and queue.deployment.client.exists(key):
                for some in read_jobs(queue.deployment, Part(queue.name, number, place, idents=mine, args=False)):
                    buried.update(some["id"])
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

    def _pages(self, found: _Found) -> Iterator[list[dict[str, Any]]]:
        """Yield the missing jobs of each page of rows, and count what was found.

        Rows that share a plain job count once: they follow each other, because the rows are in the order of what ids
        are made of.
        """
        jobs = self._jobs
        rows = jobs.rows(datetime_of(self.began_ms - jobs.grace_ms))
        names, total = names_in(jobs.id), rows.count()
        last: str | None = None
        for page in chunks(rows.order_by(*names, "pk").values(*{"pk", *names}).iterator(_PAGE), _PAGE):
            found.rows += len(page)
            idents = self._without_live_job({row["pk"]: id_of(jobs.id, row) for row in page})
            buried = self._buried({ident for ident in idents.values() if ident is not None})
            taken: set[str | None] = {last}
            entries: list[dict[str, Any]] = []
            for pks in chunks(idents):
                for row in rows.filter(pk__in=pks):
                    entries += self._compared(row, buried, taken, found)
            last = None if jobs.task.options.merge else id_of(jobs.id, page[-1])
            yield entries
            self._progress(found.rows, total)

    def _compared(
        self, row: Mapping[str, Any], buried: set[str], taken: set[str | None], found: _Found
    ) -> list[dict[str, Any]]:
        """Return the job of a row without a live one; none if it is not to be restored.

        Args:
            taken: ids that are missing already; gets those of plain jobs.
        """
        ident = id_of(self._jobs.id, row)
        if ident is not None and ident in taken:
            return []
        try:
            entry = self._jobs.entry(ident, row, round(self.began_ms))
            options = {name: value for name, value in entry.items() if name not in ("args", "kwargs")}
            self._builder.build(tuple(entry.get("args", ())), entry.get("kwargs", {}), options)
        except (InvalidJob, TypeError) as error:
            found.add_bad(ident, str(error))
            return []
        found.buried += ident in buried
        if ident in buried and not self._jobs.include_morgue:
            return []
        if not self._jobs.task.options.merge:
            taken.add(ident)  # rows that share a plain job count once
        return [entry]

    def _without_row(self, orphans: list[Orphan]) -> list[Orphan]:
        # Read from the database that is written to, because a replica lags behind.
        jobs = self._jobs
        rows = self._jobs.rows(None, jobs.using or router.db_for_write(jobs.model)).values(*names_in(jobs.id))
        idents = {orphan.id for orphan in orphans}
        made = (id_of(jobs.id, row) for row in rows.iterator(_PAGE)) if orphans else ()
        needed = {ident for ident in made if ident in idents}
        return [orphan for orphan in orphans if orphan.id not in needed]
