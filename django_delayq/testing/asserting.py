"""Assertions assert_scheduled and refute_scheduled, with messages that list scheduled jobs and the nearest match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from ..core.codec import decode, decode_args, encode, encode_args
from ..core.errors import InvalidJob
from ..core.times import datetime_of
from ..scheduling.build import explicit
from .jobs import ScheduledJob, check_state
from .times import ms_of_delta, ms_of_moment

#: default tolerance for a due time
TOLERANCE: Final = timedelta(seconds=1)
#: scheduled jobs that an error message lists
_LISTED: Final = 20
#: attributes by which a job is asserted
_NAMES: Final = ("args", "kwargs", "id", "queue", "delay", "at", "payloads", "context", "priority", "state", "failures")


@dataclass(frozen=True, slots=True)
class _Condition:
    """Condition on one attribute of a job."""

    name: str
    expected: Any
    is_met: Callable[[ScheduledJob], bool]
    value_of: Callable[[ScheduledJob], Any]


class Expectation:
    """Expected attributes of a job. Each keyword that is not None is one condition.

    Args:
        within: tolerance for ``delay`` and ``at``.
    """

    def __init__(self, task: str, *, within: timedelta | float | None = None, **expected: Any) -> None:
        for name in expected:
            if name not in _NAMES:
                raise TypeError(
                    f"a scheduled job is not asserted by {name}=; use one of {', '.join((*_NAMES, 'within'))}"
                )
        self.task = task
        self._within = TOLERANCE if within is None else timedelta(milliseconds=ms_of_delta(within))
        self._conditions = [self._condition(name, value) for name, value in expected.items() if value is not None]

    def _condition(self, name: str, expected: Any) -> _Condition:
        match name:
            case "args":
                return _equals(
                    name, list(explicit(expected, None)[0]), lambda value: decode_args(encode_args(tuple(value), {}))[0]
                )
            case "kwargs":
                return _equals(name, explicit(None, expected)[1], lambda value: decode_args(encode_args((), value))[1])
            case "payloads":
                return _equals(name, expected, lambda value: [decode(encode(payload)) for payload in value])
            case "id":
                return _equals(name, str(expected))
            case "delay":
                return self._near(name, timedelta(milliseconds=ms_of_delta(expected)), lambda job: job.delay)
            case "at":
                return self._near(name, datetime_of(ms_of_moment(expected)), lambda job: job.due)
            case "state":
                check_state(expected)
        return _equals(name, expected)

    def _near(self, name: str, expected: Any, value_of: Callable[[ScheduledJob], Any]) -> _Condition:
        return _Condition(name, expected, lambda job: bool(abs(value_of(job) - expected) <= self._within), value_of)

    def misses(self, job: ScheduledJob) -> list[str]:
        """Return descriptions of the attributes of a job that differ from the expected ones."""
        return [
            f"{condition.name} is {_text(condition.value_of(job))}, not {_text(condition.expected)}"
            for condition in self._conditions
            if not condition.is_met(job)
        ]

    def __str__(self) -> str:
        conditions = ", ".join(f"{condition.name}={_text(condition.expected)}" for condition in self._conditions)
        return f"{self.task} with {conditions}" if conditions else self.task


def _equals(name: str, expected: Any, stored: Callable[[Any], Any] | None = None) -> _Condition:
    value_of = attrgetter(name)
    return _Condition(name, expected, lambda job: _equal(value_of(job), expected, stored), value_of)


def check_scheduled(
    expected: Expectation, of_task: Sequence[ScheduledJob], others: Sequence[ScheduledJob], count: int | None, hint: str
) -> list[ScheduledJob]:
    """Return the jobs that match; ``hint`` is appended to the error message.

    Raises:
        AssertionError: no job matches, or their number differs from ``count``.
    """
    matches = [job for job in of_task if not expected.misses(job)]
    if (matches and count is None) or len(matches) == count:
        return matches
    number = "no job" if not matches else "1 job" if len(matches) == 1 else f"{len(matches)} jobs"
    required = "" if count is None else f", expected {count}"
    lines = [f"{number} of {expected} {'are' if len(matches) > 1 else 'is'} scheduled{required}"]
    if not matches and of_task:
        misses, nearest = min(((expected.misses(job), job) for job in of_task), key=lambda entry: len(entry[0]))
        lines.append(f"nearest: {nearest}\n    {'; '.join(misses)}")
    lines += _listed([*of_task, *(job for job in others if job not in of_task)])
    raise AssertionError("\n".join(filter(None, [*lines, hint])))


def check_not_scheduled(expected: Expectation, of_task: Sequence[ScheduledJob]) -> None:
    """Raise AssertionError if a job matches."""
    matches = [job for job in of_task if not expected.misses(job)]
    if matches:
        number = "1 job is" if len(matches) == 1 else f"{len(matches)} jobs are"
        raise AssertionError("\n".join([f"{number} scheduled of {expected}, expected none", *_listed(matches)]))


def _listed(jobs: Sequence[ScheduledJob]) -> list[str]:
    if not jobs:
        return ["no jobs are scheduled"]
    more = [f"    … and {len(jobs) - _LISTED} more"] if len(jobs) > _LISTED else []
    return ["scheduled jobs:", *(f"    {job}" for job in jobs[:_LISTED]), *more]


def _equal(value: Any, expected: Any, stored: Callable[[Any], Any] | None) -> bool:
    """Return True if the values are equal, directly or after ``expected`` was stored and read (tuples become lists)."""
    if value == expected:
        return True
    if stored is None:
        return False
    try:
        return bool(value == stored(expected))
    except InvalidJob:  # an object like mock.ANY, which was compared above
        return False


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (timedelta, datetime)) else repr(value)
