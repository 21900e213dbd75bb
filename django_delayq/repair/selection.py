"""Which rows are meant, in a form that JSON can keep until a worker reads it."""

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
from ..mirror.rows import Model, place_of
from ..mirror.shadow import database_of

#: what rows may be filtered by, each also with a lookup of :data:`LOOKUPS` behind two underscores
FIELDS: Final = ("queue", "task", "error_class", "job_id", "failures", "crashes", "priority", "merged", "shard")
_OF_MORGUE: Final = ("reason", "outcome")
LOOKUPS: Final = ("exact", "in", "gt", "gte", "lt", "lte", "startswith", "contains", "icontains")
#: in other words: ``search`` = in the id or the message of the error; ``since`` ≤ the failure or burial < ``until``
WORDS: Final = ("search", "since", "until")
FILTERS: Final = (*FIELDS, *_OF_MORGUE, *WORDS)


def matching(model: Model, filters: Mapping[str, Any]) -> QuerySet[Any]:
    """The rows that are meant.

    Args:
        model: FailedJob or MorgueJob.
        filters: names of :data:`FILTERS`, or of a column with a lookup (``failures__gte``), and values that JSON has;
            moments as ISO texts. All of them must be true of a row; none = all rows.

    Raises:
        InvalidJob: an unknown name, or a value that cannot be one: never more rows than were meant.
    """
    place = place_of(model)
    fields = (*FIELDS, *(_OF_MORGUE if place.moment == "buried_at" else ()), place.moment)
    meant = Q()
    for name, value in filters.items():
        meant &= _condition(str(name), value, fields, place.moment)
    rows: QuerySet[Any] = model._default_manager.using(database_of(place)).all()
    try:
        return rows.filter(meant)
    except (FieldError, ValidationError, TypeError, ValueError) as error:
        raise InvalidJob(f"these filters cannot be: {error}") from None


def _condition(name: str, value: Any, fields: tuple[str, ...], moment: str) -> Q:
    if name == "search":
        return Q(job_id__icontains=str(value)) | Q(error_message__icontains=str(value))
    if name in ("since", "until"):
        return Q(**{f"{moment}__{'gte' if name == 'since' else 'lt'}": _moment(name, value)})
    field, _, lookup = name.partition("__")
    if field not in fields or lookup not in ("", *LOOKUPS):
        known = (*fields, *WORDS)
        raise InvalidJob(f"jobs cannot be filtered by {short(name)}.{suggest(field, known)} Known: {', '.join(known)}")
    return Q(**{name: _moment(name, value) if field == moment else value})


def _moment(name: str, value: Any) -> datetime:
    try:
        found = value if isinstance(value, datetime) else parse_datetime(value)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise InvalidJob(f"{name} must be a moment like 2030-01-31T12:00:00+00:00, got {short(value)}")
    if settings.USE_TZ and timezone.is_naive(found):
        return timezone.make_aware(found)
    if not settings.USE_TZ and timezone.is_aware(found):
        return timezone.make_naive(found)
    return found


def storable(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The same filters, with moments as texts."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in filters.items()}
