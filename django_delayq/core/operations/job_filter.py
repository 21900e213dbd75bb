"""Conditions by which operators choose jobs: lists, searches, bulk operations and reserves take the same ones."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import InvalidJob
from ..inputs import short
from ..job import MAX_ID_BYTES

if TYPE_CHECKING:
    from .paging import Bound
    from .views import JobView

#: maximum length of a text to find, and of a task's name, in bytes
MOST_TEXT_BYTES: Final = 1000
#: sorts behind every continuation of a prefix
_END: Final = "\U0010ffff" * (MAX_ID_BYTES // 4 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Conditions that a job must meet, all of them. The defaults are met by every job.

    Attributes:
        text: part of the id, the task's name, the arguments or payloads as stored (canonical JSON), the context or the
            last error, in upper or lower case.
        task: name of its task.
        prefix: beginning of its id.
        due_from_ms: first due time, Unix ms.
        due_before_ms: due time behind the last one, Unix ms.
        failures: least number of its failures.
        never_started: True = only jobs that nobody has reserved yet.

    Raises:
        InvalidJob: a value that no job can have.
    """

    text: str = ""
    task: str = ""
    prefix: str = ""
    due_from_ms: float | None = None
    due_before_ms: float | None = None
    failures: int = 0
    never_started: bool = False

    def __post_init__(self) -> None:
        for name, most in (("text", MOST_TEXT_BYTES), ("task", MOST_TEXT_BYTES), ("prefix", MAX_ID_BYTES)):
            _check_text(name, getattr(self, name), most)
        for name in ("due_from_ms", "due_before_ms"):
            _check_moment(name, getattr(self, name))
        if not isinstance(self.failures, int) or isinstance(self.failures, bool) or not 0 <= self.failures < 2**31:
            raise InvalidJob(f"failures is a number of failed attempts, 0 or more, not {short(self.failures)}")

    @property
    def is_empty(self) -> bool:
        """True if every job meets the conditions."""
        return self == JobFilter()

    @property
    def needles(self) -> tuple[str, ...]:
        """Return the forms in which the text may be stored: in JSON, quotes, backslashes and line ends are escaped."""
        return tuple(dict.fromkeys((self.text, json.dumps(self.text, ensure_ascii=False)[1:-1])))

    def holds(self, view: JobView) -> bool:
        """Return True if a job meets the conditions, except for the text."""
        job = view.job
        return (
            job.task == (self.task or job.task)
            and view.id.startswith(self.prefix)
            and (self.due_from_ms is None or self.due_from_ms <= view.due_ms)
            and (self.due_before_ms is None or view.due_ms < self.due_before_ms)
            and job.failures >= self.failures
            and not (self.never_started and job.reserves)
        )

    def best_order(self, place: str, orders: tuple[str, ...]) -> str:
        """Return the order of a place whose index excludes most jobs; the first one if none does."""
        restricted = {"due": self._has_due, "failures": self.failures > 0, "id": bool(self.prefix)}
        return next((by for by in orders if restricted.get(by)), orders[0])

    def bounds(self, by: str) -> tuple[Bound, Bound]:
        """Return the ends of the range in an order that holds all jobs which meet the conditions."""
        if by == "due":
            return self.due_from_ms, None if self.due_before_ms is None else math.ceil(self.due_before_ms) - 1
        if by == "failures" and self.failures:
            return self.failures, None
        if by == "id" and self.prefix:
            return self.prefix, self.prefix + _END
        return None, None

    @property
    def _has_due(self) -> bool:
        return self.due_from_ms is not None or self.due_before_ms is not None


def _check_text(name: str, value: object, most: int) -> None:
    try:
        valid = isinstance(value, str) and len(value.encode()) <= most and "\0" not in value
    except UnicodeEncodeError:  # half of a surrogate pair
        valid = False
    if not valid:
        raise InvalidJob(f"{name} is a text of up to {most} bytes without \\0, not {short(value)}; give a shorter part")


def _check_moment(name: str, value: object) -> None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53):
        return
    raise InvalidJob(f"{name} is a moment in Unix milliseconds, not {short(value)}")
