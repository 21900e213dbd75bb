"""Filters of the job browser: conditions in the address of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..core.errors import InvalidJob
from ..core.job_filter import JobFilter
from ..core.times import ms_of

if TYPE_CHECKING:
    from django.http import QueryDict

_TEXTS: Final = ("text", "task", "prefix", "id_from", "id_to")
_NUMBERS: Final = ("failures", "failures_to")
_MOMENTS: Final = ("due_from", "due_before", "buried_from", "buried_before")
#: parameters of the address
FILTERS: Final = (*_TEXTS, *_NUMBERS, *_MOMENTS, "never_started")
_MOST_CHARS: Final = 255


def given_filters(parameters: QueryDict) -> dict[str, str]:
    """Return the conditions in an address as texts; those that cannot be read are left out."""
    given = {name: parameters.get(name, "")[:_MOST_CHARS] for name in FILTERS}
    filters = {name: value for name, value in given.items() if value and _is_valid(name, value)}
    try:
        filter_of(filters)
    except InvalidJob:
        return {}
    return filters


def filter_of(given: Mapping[str, str]) -> JobFilter:
    """Return the filter of conditions from :func:`given_filters`.

    Raises:
        InvalidJob: a value that no job can have.
    """
    values: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    values |= {name: int(given[name]) for name in _NUMBERS if name in given}
    values |= {f"{name}_ms": _ms_of(given[name]) for name in _MOMENTS if name in given}
    return JobFilter(**values, never_started="never_started" in given)


def _is_valid(name: str, value: str) -> bool:
    if name in _MOMENTS:
        return _ms_of(value) is not None
    if name in _NUMBERS:
        return value.isascii() and value.isdigit() and len(value) < 7
    return name != "never_started" or value == "1"


def _ms_of(text: str) -> int | None:
    """Return the Unix ms of a local moment from a form; None if it is none."""
    try:
        moment = parse_datetime(text)
        if moment is None:
            return None
        return ms_of(timezone.make_aware(moment) if timezone.is_naive(moment) else moment)
    except (ValueError, OverflowError):
        return None
