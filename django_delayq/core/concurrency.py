"""Limits of how many jobs of a task or a queue run at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .errors import InvalidJob
from .inputs import check_int, check_known, short

MAX_CONCURRENCY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limit of jobs that run at the same time: in all workers together (``total``), in each process (``local``)."""

    total: int | None = None
    local: int | None = None


def check_concurrency(name: str, value: Any) -> Concurrency | None:
    """Return a limit given as an int (over all workers) or as ``{"total": n, "local": n}``; None = no limit.

    Raises:
        InvalidJob: it is neither; the message begins with ``name``.
    """
    if value is None or isinstance(value, Concurrency):
        return value
    if not isinstance(value, Mapping):
        return Concurrency(check_int(name, value, 1, MAX_CONCURRENCY))
    check_known(tuple(value), ("total", "local"), "limit")
    if not value:
        raise InvalidJob(f'{name} is empty; give {{"total": n}}, {{"local": n}} or both, got {short(value)}')
    return Concurrency(**{part: check_int(f"{name}: {part}", n, 1, MAX_CONCURRENCY) for part, n in value.items()})
