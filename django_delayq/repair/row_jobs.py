"""Jobs that the rows of a model need, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import FieldError, ValidationError
from django.db import connections as databases
from django.db import models, router
from django.db.models.functions import Now

from ..core.errors import InvalidJob, Misconfigured
from ..core.task import Task
from ..core.times import datetime_of, parse_moment
from ..rows import GRACE_MS, Kind, check_names_in, day_before, due_ms_of, names_in, pattern_of, wrong_due

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
