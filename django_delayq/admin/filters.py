"""List filters whose choice is a set of lookups, so that a worker can apply it later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db import connections
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.db.models import Model, QuerySet
    from django.http import HttpRequest

#: maximum number of choices of a filter; other values can be given in the URL
MOST: Final = 50
_SPANS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
_ATTEMPTS: Final = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-10": (6, 10), "11-25": (11, 25), "26": (26, 2**31 - 1)}


def first_values(rows: QuerySet[Any], field: str) -> list[str]:
    """Return the first values of a column, sorted, by one look-up in its index for each.

    ``DISTINCT`` reads the whole index instead, which is most of the time of a list of 100,000 rows.

    Args:
        rows: all rows of a model.
        field: text field with which an index begins.
    """
    database, meta = connections[rows.db], rows.model._meta
    table, column = map(database.ops.quote_name, (meta.db_table, meta.get_field(field).column))
    # Only names of the model are part of the text.
    sql = (
        f"WITH RECURSIVE step(v, n) AS (SELECT (SELECT MIN({column}) FROM {table}), 1 UNION ALL "  # noqa: S608
        f"SELECT (SELECT MIN({column}) FROM {table} WHERE {column} > step.v), n + 1 FROM step "
        f"WHERE v IS NOT NULL AND n < {MOST}) SELECT v FROM step WHERE v IS NOT NULL"
    )
    with database.cursor() as cursor:
        cursor.execute(sql)
        return [value for (value,) in cursor.fetchall()]


class LookupFilter(admin.SimpleListFilter):
    """Filter whose choice is a set of lookups."""

    field: ClassVar[str]

    @classmethod
    def of(cls, field: str) -> type[LookupFilter]:
        """Return the filter for a field of the model."""
        given = {"field": field, "parameter_name": cls.parameter_name or field}
        return type(f"{field.title()}{cls.__name__}", (cls,), given)

    def chosen(self) -> dict[str, Any]:
        """Return the lookups of the current choice; empty if all rows are shown."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the current choice."""
        return queryset.filter(**self.chosen())


class ValueFilter(LookupFilter):
    """Filter by one value of an indexed text column, whose name is its title."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], *args: Any) -> None:
        column: Any = model._meta.get_field(self.field)
        self.title = column.verbose_name
        super().__init__(request, params, model, *args)

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the first values; the empty one gets a label."""
        values = self.values(model_admin.model._default_manager.all())
        return [(value, value or _("(none)")) for value in values]

    def values(self, rows: QuerySet[Any]) -> Iterable[str]:
        """Return the first values of the whole table."""
        return first_values(rows, self.field)

    def has_output(self) -> bool:
        """Return True even for a single value, which is informative, or a current value not among the first."""
        return bool(self.lookup_choices) or self.value() is not None

    def chosen(self) -> dict[str, Any]:
        """Return the lookup of the value.

        Raises:
            IncorrectLookupParameters: the value contains NUL, which no database stores.
        """
        value = self.value()
        if value is not None and "\0" in value:
            raise IncorrectLookupParameters(value)
        return {} if value is None else {self.field: value}

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the choices, and the current value if it is not among the first."""
        value = self.value()
        if value is not None and value not in {str(listed) for listed, _label in self.lookup_choices}:
            self.lookup_choices = [*self.lookup_choices, (value, value)]
        return super().choices(changelist)


class AgeFilter(LookupFilter):
    """Filter by age."""

    title = _("age")
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the spans up to now, and one for older rows."""
        spans = [("hour", _("last hour")), ("day", _("last day")), ("week", _("last week"))]
        return [*spans, ("older", _("older than a week"))]

    def chosen(self) -> dict[str, Any]:
        """Return a moment as text, so that it stays the same when the lookups are applied later."""
        value, now = self.value(), timezone.now()
        if value == "older":
            return {f"{self.field}__lt": (now - _SPANS["week"]).isoformat()}
        span = _SPANS.get(value or "")
        return {} if span is None else {f"{self.field}__gte": (now - span).isoformat()}


class AttemptFilter(LookupFilter):
    """Filter by the number of failed attempts."""

    title = _("failed attempts")
    parameter_name = "attempt"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the ranges of attempts."""
        return [(name, _("26 or more") if name == "26" else name.replace("-", "–")) for name in _ATTEMPTS]

    def chosen(self) -> dict[str, Any]:
        """Return a range of failures."""
        low, high = _ATTEMPTS.get(self.value() or "", (0, 0))
        if low == high:
            return {"failures": low} if low else {}
        return {"failures__gte": low, "failures__lte": high}


def lookups_of(changelist: ChangeList) -> dict[str, Any]:
    """Return the lookups of a change list's filters, without its search."""
    lookups: dict[str, Any] = {}
    for spec in changelist.filter_specs:
        if isinstance(spec, LookupFilter):
            lookups |= spec.chosen()
    return lookups
