"""Filters of the job browser: conditions in the address of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..core.errors import InvalidJob
from ..core.moments import ms_of
from ..core.operations.job_filter import JobFilter

if TYPE_CHECKING:
    from django.http import QueryDict

#: parameters of the address
FILTERS: Final = (
    *("text", "task", "prefix", "id_from", "id_to", "failures", "failures_to", "never_started"),
    *("due_from", "due_before", "buried_from", "buried_before"),
)
_MOMENTS: Final = ("due_from", "due_before", "buried_from", "buried_before")
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
    return JobFilter(
        text=given.get("text", ""),
        task=given.get("task", ""),
        prefix=given.get("prefix", ""),
        id_from=given.get("id_from", ""),
        id_to=given.get("id_to", ""),
        due_from_ms=_ms_of(given.get("due_from", "")),
        due_before_ms=_ms_of(given.get("due_before", "")),
        failures=int(given.get("failures", 0)),
        failures_to=int(given["failures_to"]) if "failures_to" in given else None,
        never_started="never_started" in given,
        buried_from_ms=_ms_of(given.get("buried_from", "")),
        buried_before_ms=_ms_of(given.get("buried_before", "")),
    )


def _is_valid(name: str, value: str) -> bool:
    if name in _MOMENTS:
        return _ms_of(value) is not None
    if name in ("failures", "failures_to"):
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
