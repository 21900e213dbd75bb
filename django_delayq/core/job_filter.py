"""Conditions by which operators choose jobs: lists, searches and bulk operations take the same ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias

from .errors import InvalidJob
from .inputs import check_int, check_number, short
from .job import MAX_ID_BYTES
from .job_view import JobView

Bound: TypeAlias = float | str | None

#: maximum length of a text to find, and of a task's name, in bytes
MOST_TEXT_BYTES: Final = 1000
#: largest number that is exact as a double, and its negative the smallest one
LARGEST: Final = 2**53 - 1
_MOST_FAILURES: Final = 2**31 - 1
#: sorts behind every continuation of a prefix
_END: Final = "\U0010ffff" * (MAX_ID_BYTES // 4 + 1)
#: order of a place -> the conditions that are ranges of it
_OF_ORDER: Final = {
    "due": ("due_from_ms", "due_before_ms"),
    "updated": ("buried_from_ms", "buried_before_ms"),  # in the morgue
    "failures": ("failures", "failures_to"),
    "id": ("prefix", "id_from", "id_to"),
}


def _condition(kind: str, default: Any, text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "text": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Conditions that a job must meet, all of them. The defaults are met by every job. Moments are Unix ms.

    Raises:
        InvalidJob: a value that no job can have.
    """

    text: str = _condition(
        "text",
        "",
        "with this text in the id, the task's name, the arguments or payloads as they are shown, the context or the "
        "last error, in upper or lower case; masked values are not searched",
    )
    task: str = _condition("text", "", "of this task")
    prefix: str = _condition("id", "", "whose id begins with this")
    id_from: str = _condition("id", "", "with ids from this one on, in the order of their bytes")
    id_to: str = _condition("id", "", "with ids up to this one")
    due_from_ms: float | None = _condition("moment", None, "due at this moment or later")
    due_before_ms: float | None = _condition("moment", None, "due before this moment")
    failures: int = _condition("failures", 0, "that failed at least so often")
    failures_to: int | None = _condition("failures", None, "that failed at most so often")
    never_started: bool = _condition("flag", default=False, text="that were never reserved")
    buried_from_ms: float | None = _condition("moment", None, "buried at this moment or later")
    buried_before_ms: float | None = _condition("moment", None, "buried before this moment")

    def __post_init__(self) -> None:
        for name, most in (("text", MOST_TEXT_BYTES), ("task", MOST_TEXT_BYTES)):
            _check_text(name, getattr(self, name), most)
        for name in ("prefix", "id_from", "id_to"):
            _check_text(name, getattr(self, name), MAX_ID_BYTES)
        for name in (*_OF_ORDER["due"], *_OF_ORDER["updated"]):
            if (moment := getattr(self, name)) is not None:
                check_number(name, moment, -LARGEST, LARGEST, unit="Unix ms")
        if self.id_to and self.id_from > self.id_to:
            raise InvalidJob(
                f"no id lies between {short(self.id_from)} and {short(self.id_to)}; exchange id_from and id_to"
            )
        least = check_int("failures", self.failures, 0, _MOST_FAILURES)
        if self.failures_to is not None and check_int("failures_to", self.failures_to, 0, _MOST_FAILURES) < least:
            given = f"at least {self.failures} and at most {self.failures_to}"
            raise InvalidJob(f"no job has failed {given} times; exchange failures and failures_to")

    @property
    def is_empty(self) -> bool:
        """True if every job meets the conditions."""
        return self == EVERY_JOB

    def is_range_of(self, by: str) -> bool:
        """Return True if the range of an order (:meth:`bounds`) has just the jobs that meet the conditions."""
        return self._without(by).is_empty

    def _without(self, by: str) -> JobFilter:
        """Return the conditions that are no range of an order."""
        return replace(self, **{name: getattr(EVERY_JOB, name) for name in _OF_ORDER.get(by, ())})

    def finds(self, view: JobView) -> bool:
        """Return True if the text is in what is stored of a job."""
        # In JSON, quotes, backslashes and line ends are escaped.
        forms = {self.text.casefold(), json.dumps(self.text, ensure_ascii=False)[1:-1].casefold()}
        return any(form in text.casefold() for text in view.texts() for form in forms)

    def holds(self, view: JobView) -> bool:
        """Return True if a job meets the conditions, except for the text."""
        job = view.job
        return (
            job.task == (self.task or job.task)
            and view.id.startswith(self.prefix)
            and self.id_from <= view.id
            and (not self.id_to or view.id <= self.id_to)
            and is_between(self.due_from_ms, view.due_ms, self.due_before_ms)
            and self.failures <= job.failures
            and (self.failures_to is None or job.failures <= self.failures_to)
            and not (self.never_started and job.reserves)
            and is_between(self.buried_from_ms, view.buried_ms, self.buried_before_ms)
        )

    def best_order(self, place: str, orders: tuple[str, ...]) -> str:
        """Return the order of a place whose index excludes most jobs; the first one if none does."""
        usable = (by for by in orders if by != "updated" or place == "morgue")
        return next((by for by in usable if self._without(by) != self), orders[0])

    def bounds(self, by: str) -> tuple[Bound, Bound]:
        """Return the ends of the range in an order that holds all jobs which meet the conditions."""
        if by == "due":
            return self.due_from_ms, _last_before(self.due_before_ms)
        if by == "updated":
            return self.buried_from_ms, _last_before(self.buried_before_ms)
        if by == "failures":
            return self.failures or None, self.failures_to
        if by == "id":
            lasts = [last for last in (self.prefix and self.prefix + _END, self.id_to) if last]
            return max(self.prefix, self.id_from) or None, min(lasts, default=None)
        return None, None


def is_between(first: float | None, ms: float | None, before: float | None) -> bool:
    """Return True if a moment is in a range; None is only in one without bounds."""
    if ms is None:
        return first is None and before is None
    return (first is None or first <= ms) and (before is None or ms < before)


def _last_before(ms: float | None) -> int | None:
    """Return the last whole millisecond before a moment."""
    return None if ms is None else math.ceil(ms) - 1


def _check_text(name: str, value: object, most: int) -> None:
    try:
        valid = isinstance(value, str) and len(value.encode()) <= most and "\0" not in value
    except UnicodeEncodeError:  # half of a surrogate pair
        valid = False
    if not valid:
        raise InvalidJob(f"{name} is a text of up to {most} bytes without \\0, not {short(value)}; give a shorter part")


#: met by every job
EVERY_JOB: Final = JobFilter()
#: member → kind of its values (text, id, moment, failures, flag) and meaning, behind "jobs"
CONDITIONS: Final[dict[str, tuple[str, str]]] = {
    one.name: (one.metadata["kind"], one.metadata["text"]) for one in fields(JobFilter)
}
