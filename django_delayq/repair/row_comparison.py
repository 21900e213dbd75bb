"""Jobs that the rows of a model need, and the comparison of a table with a queue in this process, in constant memory.

The rules are those of :mod:`.rows`, without Spark. The rows are read in pages. A page is compared alone: the jobs of
its rows are looked up by their ids, and the rows without a job are read once more behind that. Nothing is kept of a
page but its counts, so missing jobs are found again, page by page, when they are restored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.exceptions import FieldError, ValidationError
from django.db import models, router

from .. import connections
from ..core.actions import live_ids
from ..core.bulk import Progress
from ..core.errors import InvalidJob, Misconfigured
from ..core.records.frames import CHUNK
from ..core.snapshot import Part, read_jobs
from ..core.task import Task
from ..core.times import datetime_of, parse_moment
from ..models import OutboxJob
from ..outbox import durability
from ..outbox.rows import chunks
from ..scheduling.build import plan_of
from ..scheduling.verbs import schedule_many
from .rows import DEAD, FIRST, GRACE_MS, RowCounts, due_ms_of, id_of, names_in, wrong_due

_PAGE: Final = 2_000


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
        (column,) = self.model._base_manager.values(self.created).query.select
        return getattr(column, "target", None)

    def rows(self, before: datetime) -> Any:
        """Return the rows that need a job: those that were created before a moment."""
        is_moment = isinstance(self.created_field, models.DateTimeField)
        limit = before if is_moment else before.date() - timedelta(days=1)  # a day that is over in every time zone
        created = models.Q(**{f"{self.created}__lt": limit})
        rows = self.model._base_manager.using(self.using or router.db_for_read(self.model))
        return rows.filter(created, *[models.Q(**one) for one in self.filters]).order_by("pk").values(*self.columns)

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


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Page:
    """Rows that were compared together: their number, the jobs to restore, and what else was found."""

    rows: int
    missing: list[dict[str, Any]] = field(default_factory=list)
    buried: int = 0
    #: rows that cannot have a job: id and reason
    bad: list[tuple[str | None, str]] = field(default_factory=list)


class RowComparison:
    """Comparison of a model's rows with a queue. Call :meth:`look` first, then :meth:`put_back`.

    Args:
        jobs: the jobs to compare.
        progress: called with the number of rows read and their total.

    Raises:
        QueueUnavailable: Redis, whose time counts, cannot be reached.
    """

    def __init__(self, jobs: RowJobs, progress: Progress = lambda done, total: None) -> None:
        self._jobs = jobs
        self._progress = progress
        self._builder = plan_of(jobs.task, {"queue": jobs.queue}, many=True).builder
        #: time before the first read, Unix ms on Redis's clock
        self._began_ms = connections.broker().now_ms()
        self._missing = 0

    def look(self) -> RowCounts:
        """Compare the table with the queue.

        Raises:
            Misconfigured: an option does not fit the table.
            QueueUnavailable: Redis cannot be reached.
        """
        found, first, first_bad = Counter(rows=0, missing=0, buried=0, bad=0), list[str](), list[Any]()
        for page in self._pages():
            found.update(rows=page.rows, missing=len(page.missing), buried=page.buried, bad=len(page.bad))
            first = sorted({*first, *(entry["id"] for entry in page.missing)})[:FIRST]
            first_bad = sorted([*first_bad, *page.bad], key=lambda one: (one[0] is not None, one[0]))[:FIRST]
        self._missing = found["missing"]
        return RowCounts(known=self._count_known(), first=tuple(first), first_bad=tuple(first_bad), **found)

    def put_back(self, *, rate: float | None = None, progress: Progress = lambda done, total: None) -> dict[str, int]:
        """Schedule the missing jobs; return their number by outcome, as ``schedule_many`` does.

        Args:
            rate: most jobs a second.
        """
        jobs, outcomes, began = self._jobs, Counter[str](), time.monotonic()
        conflict = "merge" if jobs.task.options.merge else "ignore"
        for page in self._pages():
            for chunk in chunks(page.missing, CHUNK):
                outcomes.update(schedule_many(jobs.task, chunk, queue=jobs.queue, on_conflict=conflict))
                progress(outcomes.total(), max(outcomes.total(), self._missing))
                if rate is not None:
                    time.sleep(max(0.0, outcomes.total() / rate - (time.monotonic() - began)))
        return dict(+outcomes)

    # -- the queue and the outbox ------------------------------------------------------------------------------------

    def _known(self, idents: Set[str]) -> tuple[set[str], set[str]]:
        """Return those ids whose jobs are live or in the outbox, and those in the morgue or given up by the outbox."""
        known, dead = set[str](), set[str]()
        for alias in durability.outboxes("python"):
            for chunk in chunks(idents):
                mine = OutboxJob.objects.using(alias).filter(queue=self._jobs.queue, job_id__in=chunk)
                for ident, state in mine.values_list("job_id", "state"):
                    (dead if state in DEAD else known).add(ident)
        queue = connections.broker().known_queue(self._jobs.queue)
        if queue is not None:
            known |= {ident.decode() for ident in live_ids(queue, [one.encode() for one in idents - known])}
            for number in queue.numbers:
                named = tuple(ident for ident in idents - known if number in queue.shards_of(ident))
                part = Part(queue.name, number, "morgue", idents=named, args=False)
                for some in read_jobs(queue.deployment, part) if named else ():
                    dead.update(some["id"])
        return known, dead

    def _count_known(self) -> int:
        """Return the number of jobs in the queue and of rows in the outbox."""
        counts = connections.broker().inspector.counts(self._jobs.queue)
        outboxes = durability.outboxes("python")
        stored = (OutboxJob.objects.using(alias).filter(queue=self._jobs.queue).count() for alias in outboxes)
        return counts.live + counts.gated + counts.morgue + sum(stored)

    # -- the table ---------------------------------------------------------------------------------------------------

    def _pages(self) -> Iterator[_Page]:
        """Compare the rows page by page.

        Rows that share a plain job count once: they follow each other, because the rows are in the order of what ids
        are made of.
        """
        jobs = self._jobs
        rows = jobs.rows(datetime_of(self._began_ms - jobs.grace_ms))
        names, total, done = names_in(jobs.id), rows.count(), 0
        last: str | None = None
        for read in chunks(rows.order_by(*names, "pk").values(*{"pk", *names}).iterator(_PAGE), _PAGE):
            idents = {row["pk"]: id_of(jobs.id, row) for row in read}
            known, buried = self._known({ident for ident in idents.values() if ident is not None})
            page, taken = _Page(len(read)), {last}
            for pks in chunks(pk for pk, ident in idents.items() if ident not in known):
                for row in rows.filter(pk__in=pks):
                    self._compare(row, buried, taken, page)
            last = None if jobs.task.options.merge else id_of(jobs.id, read[-1])
            yield page
            done += page.rows
            self._progress(done, total)

    def _compare(self, row: Mapping[str, Any], buried: Set[str], taken: set[str | None], page: _Page) -> None:
        """Note a row without a live job in its page; not if its job is ``taken``: found missing already."""
        ident = id_of(self._jobs.id, row)
        if ident is not None and ident in taken:
            return
        try:
            entry = self._jobs.entry(ident, row, round(self._began_ms))
            options = {name: value for name, value in entry.items() if name not in ("args", "kwargs")}
            self._builder.build(tuple(entry.get("args", ())), entry.get("kwargs", {}), options)
        except (InvalidJob, TypeError) as error:
            page.bad.append((ident, str(error)))
            return
        page.buried += ident in buried
        if ident not in buried or self._jobs.include_morgue:
            page.missing.append(entry)
            if not self._jobs.task.options.merge:
                taken.add(ident)
