"""List filters whose choices cost a few index look-ups, whatever the size of the table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db import connections
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..settings.conf import mask

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.http import HttpRequest

#: maximum number of choices of a filter; other values can be given in the URL
MOST: Final = 50
#: databases in which `distinct_values` may skip from value to value
_JUMPS: Final = ("sqlite", "postgresql", "mysql")


def distinct_values(rows: QuerySet[Any], column: str, most: int = MOST) -> list[str]:
    """Return the first values of an indexed column, sorted: one look-up per value instead of a scan.

    Args:
        rows: any query of the model; its conditions are ignored.
        column: the first column of an index.
        most: maximum number of values.
    """
    using = connections[rows.db]
    if using.vendor not in _JUMPS:
        values = rows.model._default_manager.using(rows.db).order_by(column).values_list(column, flat=True).distinct()
        return list(values[:most])
    name = using.ops.quote_name
    field = name(rows.model._meta.get_field(column).column)
    table = name(rows.model._meta.db_table)
    # Only names of tables and columns are interpolated, never values.
    sql = (
        f"WITH RECURSIVE jump(v, n) AS (SELECT (SELECT MIN({field}) FROM {table}), 1 UNION ALL "  # noqa: S608 (names only)
        f"SELECT (SELECT MIN({field}) FROM {table} WHERE {field} > jump.v), n + 1 FROM jump "
        f"WHERE jump.v IS NOT NULL AND n <= %s) SELECT v FROM jump WHERE v IS NOT NULL"
    )
    with using.cursor() as cursor:
        cursor.execute(sql, [most])
        return [row[0] for row in cursor.fetchall()][:most]


class _Filter(admin.SimpleListFilter):
    """Filter whose choice is a set of lookups that can be stored and applied later by a worker."""

    def chosen(self) -> dict[str, Any]:
        """Return the lookups of the current choice; empty if all rows are shown."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the current choice."""
        return queryset.filter(**self.chosen())


class ValueFilter(_Filter):
    """Filter by one value of an indexed text column."""

    field: ClassVar[str]
    nothing: ClassVar[Any] = _("(none)")

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the first values; the empty one gets a label."""
        values = distinct_values(model_admin.model._default_manager.all(), self.field)
        # A reason is free text: values that would be masked are not offered.
        return [(value, value or self.nothing) for value in values if mask().text(value) == value]

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
        yield from super().choices(changelist)
        value = self.value()
        if value is not None and value not in {str(listed) for listed, _label in self.lookup_choices}:
            yield {
                "selected": True,
                "query_string": changelist.get_query_string({str(self.parameter_name): value}),
                "display": value,
            }


def value_filter(name: str, title: Any) -> type[ValueFilter]:
    """Return a :class:`ValueFilter` for a column."""
    return type(f"{name.title()}Filter", (ValueFilter,), {"field": name, "title": title, "parameter_name": name})


class AgeFilter(_Filter):
    """Filter by age."""

    title = _("age")
    parameter_name = "age"
    field: ClassVar[str]
    spans: ClassVar = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}

    @classmethod
    def of(cls, field: str) -> type[AgeFilter]:
        """Return the filter for a column of moments."""
        return type("AgeFilter", (cls,), {"field": field})

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the spans up to now, and one for older rows."""
        return [
            ("hour", _("last hour")),
            ("day", _("last day")),
            ("week", _("last week")),
            ("older", _("older than a week")),
        ]

    def chosen(self) -> dict[str, Any]:
        """Return a moment as text, so that it stays the same when the lookups are applied later."""
        value, now = self.value(), timezone.now()
        if value == "older":
            return {f"{self.field}__lt": (now - self.spans["week"]).isoformat()}
        span = self.spans.get(value or "")
        return {} if span is None else {f"{self.field}__gte": (now - span).isoformat()}


class AttemptFilter(_Filter):
    """Filter by the number of failed attempts."""

    title = _("failed attempts")
    parameter_name = "attempt"
    bounds: ClassVar = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-10": (6, 10), "11-25": (11, 25), "26": (26, None)}

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the ranges of attempts."""
        return [
            (name, name.replace("-", "–") if high else _("26 or more")) for name, (_low, high) in self.bounds.items()
        ]

    def chosen(self) -> dict[str, Any]:
        """Return a range of failures."""
        low, high = self.bounds.get(self.value() or "", (None, None))
        if low is None:
            return {}
        if low == high:
            return {"failures": low}
        return {"failures__gte": low} if high is None else {"failures__gte": low, "failures__lte": high}


class ChoiceFilter(_Filter):
    """Filter by a field with choices, named ``parameter_name``."""

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the choices of the field."""
        field: Any = model_admin.model._meta.get_field(self.parameter_name)
        return list(field.choices)

    def chosen(self) -> dict[str, Any]:
        """Return the lookup of the choice."""
        value = self.value()
        return {str(self.parameter_name): value} if value in dict(self.lookup_choices) else {}


class StateFilter(ChoiceFilter):
    """Filter by the state of a row."""

    title = _("state")
    parameter_name = "state"


def lookups_of(changelist: ChangeList) -> dict[str, Any]:
    """Return the lookups of a change list's filters, without its search."""
    lookups: dict[str, Any] = {}
    for spec in changelist.filter_specs:
        if isinstance(spec, _Filter):
            lookups |= spec.chosen()
    return lookups
