"""Filters whose choices cost a handful of index look-ups, however many rows there are."""

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

from . import shown

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.http import HttpRequest

__all__ = ["AgeFilter", "AttemptFilter", "StateFilter", "ValueFilter", "distinct_values", "lookups_of", "value_filter"]

#: most choices that a filter offers; any other value can be asked for in the address
MOST: Final = 50
#: databases in which `distinct_values` may jump from value to value
_JUMPS: Final = ("sqlite", "postgresql", "mysql")


def distinct_values(rows: QuerySet[Any], column: str, most: int = MOST) -> list[str]:
    """The first values of an indexed column in their order: one look-up for each value instead of a scan.

    Args:
        rows: any query of the model; its conditions do not count.
        column: the first column of an index.
        most: how many at most.
    """
    using = connections[rows.db]
    if using.vendor not in _JUMPS:
        found = rows.model._default_manager.using(rows.db).order_by(column).values_list(column, flat=True).distinct()
        return list(found[:most])
    name = using.ops.quote_name
    field = name(rows.model._meta.get_field(column).column)
    table = name(rows.model._meta.db_table)
    # Only names of tables and columns are put in, never values.
    sql = (
        f"WITH RECURSIVE jump(v, n) AS (SELECT (SELECT MIN({field}) FROM {table}), 1 UNION ALL "  # noqa: S608 (names only)
        f"SELECT (SELECT MIN({field}) FROM {table} WHERE {field} > jump.v), n + 1 FROM jump "
        f"WHERE jump.v IS NOT NULL AND n <= %s) SELECT v FROM jump WHERE v IS NOT NULL"
    )
    with using.cursor() as cursor:
        cursor.execute(sql, [most])
        return [row[0] for row in cursor.fetchall()][:most]


class _Filter(admin.SimpleListFilter):
    """A filter that can say what it stands for: lookups that can be stored and carried out later, by a worker."""

    def chosen(self) -> dict[str, Any]:
        """The lookups of the present choice; none when everything is shown."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the present choice."""
        return queryset.filter(**self.chosen())


class ValueFilter(_Filter):
    """One value of an indexed text column."""

    field: ClassVar[str]
    nothing: ClassVar[Any] = _("(none)")

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """The first values, the empty one by a name."""
        values = distinct_values(model_admin.model._default_manager.all(), self.field)
        # A reason is free text: what would have to be hidden is not offered.
        return [(value, value or self.nothing) for value in values if shown.mask().text(value) == value]

    def has_output(self) -> bool:
        """Also with a single value (it tells what there is), or with one that is not among the first."""
        return bool(self.lookup_choices) or self.value() is not None

    def chosen(self) -> dict[str, Any]:
        """The value.

        Raises:
            IncorrectLookupParameters: no database has such a text.
        """
        value = self.value()
        if value is not None and "\0" in value:
            raise IncorrectLookupParameters(value)
        return {} if value is None else {self.field: value}

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """As usual, and a value that was asked for but is not among the first."""
        yield from super().choices(changelist)
        value = self.value()
        if value is not None and value not in {str(known) for known, _label in self.lookup_choices}:
            yield {
                "selected": True,
                "query_string": changelist.get_query_string({str(self.parameter_name): value}),
                "display": value,
            }


def value_filter(name: str, title: Any) -> type[ValueFilter]:
    """A :class:`ValueFilter` of a column."""
    return type(f"{name.title()}Filter", (ValueFilter,), {"field": name, "title": title, "parameter_name": name})


class AgeFilter(_Filter):
    """How long ago it happened."""

    title = _("age")
    parameter_name = "age"
    field: ClassVar[str]
    spans: ClassVar = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}

    @classmethod
    def of(cls, field: str) -> type[AgeFilter]:
        """The filter over a column of moments."""
        return type("AgeFilter", (cls,), {"field": field})

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Spans until now, and what is older than all of them."""
        return [
            ("hour", _("last hour")),
            ("day", _("last day")),
            ("week", _("last week")),
            ("older", _("older than a week")),
        ]

    def chosen(self) -> dict[str, Any]:
        """A moment, as text: it stays the same when the lookups are carried out later."""
        value, now = self.value(), timezone.now()
        if value == "older":
            return {f"{self.field}__lt": (now - self.spans["week"]).isoformat()}
        span = self.spans.get(value or "")
        return {} if span is None else {f"{self.field}__gte": (now - span).isoformat()}


class AttemptFilter(_Filter):
    """How many attempts failed."""

    title = _("failed attempts")
    parameter_name = "attempt"
    bounds: ClassVar = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-10": (6, 10), "11-25": (11, 25), "26": (26, None)}

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Numbers of attempts."""
        return [
            (name, name.replace("-", "–") if high else _("26 or more")) for name, (_low, high) in self.bounds.items()
        ]

    def chosen(self) -> dict[str, Any]:
        """A range of failures."""
        low, high = self.bounds.get(self.value() or "", (None, None))
        if low is None:
            return {}
        if low == high:
            return {"failures": low}
        return {"failures__gte": low} if high is None else {"failures__gte": low, "failures__lte": high}


class StateFilter(_Filter):
    """The state of a row, of a model with a ``State``."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """The model's states."""
        model: Any = model_admin.model
        return list(model.State.choices)

    def chosen(self) -> dict[str, Any]:
        """The state."""
        value = self.value()
        return {"state": value} if value in {known for known, _label in self.lookup_choices} else {}


def lookups_of(changelist: ChangeList) -> dict[str, Any]:
    """What a change list is filtered by, its search apart."""
    found: dict[str, Any] = {}
    for spec in changelist.filter_specs:
        if isinstance(spec, _Filter):
            found |= spec.chosen()
    return found
