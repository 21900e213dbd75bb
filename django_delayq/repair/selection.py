"""Selection of rows by filters that can be stored as JSON until a worker reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import FieldError, ValidationError
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..core.errors import InvalidJob
from ..core.inputs import short, suggest
from ..mirror.index_mirror import database_of
from ..mirror.rows import Model, place_of

#: fields for filters, each also with a lookup of :data:`LOOKUPS` after two underscores
FIELDS: Final = ("queue", "task", "error_class", "job_id", "failures", "crashes", "priority", "merged", "shard")
_MORGUE_FIELDS: Final = ("reason", "outcome")
LOOKUPS: Final = ("exact", "in", "gt", "gte", "lt", "lte", "startswith", "contains", "icontains")
#: further filters: ``search`` = in the id or the error message; ``since`` ≤ time of the failure or burial < ``until``
NAMED_FILTERS: Final = ("search", "since", "until")
FILTERS: Final = (*FIELDS, *_MORGUE_FIELDS, *NAMED_FILTERS)


def matching(model: Model, filters: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the selected rows.

    Args:
        model: FailedJob or MorgueJob.
        filters: names of :data:`FILTERS`, or of a column with a lookup (``failures__gte``), and JSON values; times as
            ISO strings. A row has to match all of them; no filters = all rows.

    Raises:
        InvalidJob: an unknown name or an invalid value, so that the selection is never larger than intended.
    """
    place = place_of(model)
    fields = (*FIELDS, *(_MORGUE_FIELDS if place.moment == "buried_at" else ()), place.moment)
    condition = Q()
    for name, value in filters.items():
        condition &= _condition(str(name), value, fields, place.moment)
    rows: QuerySet[Any] = model._default_manager.using(database_of(place)).all()
    try:
        return rows.filter(condition)
    except (FieldError, ValidationError, TypeError, ValueError) as error:
        raise InvalidJob(f"invalid filters: {error}") from None


def _condition(name: str, value: Any, fields: tuple[str, ...], moment: str) -> Q:
    if name == "search":
        return Q(job_id__icontains=str(value)) | Q(error_message__icontains=str(value))
    if name in ("since", "until"):
        return Q(**{f"{moment}__{'gte' if name == 'since' else 'lt'}": _moment(name, value)})
    field, _, lookup = name.partition("__")
    if field not in fields or lookup not in ("", *LOOKUPS):
        names = (*fields, *NAMED_FILTERS)
        raise InvalidJob(f"jobs cannot be filtered by {short(name)}.{suggest(field, names)} Known: {', '.join(names)}")
    return Q(**{name: _moment(name, value) if field == moment else value})


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else parse_datetime(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None:
        raise InvalidJob(f"{name} must be a moment like 2030-01-31T12:00:00+00:00, got {short(value)}")
    if settings.USE_TZ and timezone.is_naive(moment):
        return timezone.make_aware(moment)
    if not settings.USE_TZ and timezone.is_aware(moment):
        return timezone.make_naive(moment)
    return moment


def storable(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same filters, with times as strings."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in filters.items()}
