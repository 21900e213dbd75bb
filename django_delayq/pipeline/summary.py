"""Result of a pipeline run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a pipeline run."""

    #: events landed; for a backfill, attempts computed
    rows: int = 0
    #: how many of them were quarantined
    bad: int = 0
    batches: int = 0
    #: days whose metrics were computed and published
    days: tuple[date, ...] = ()
    #: positions up to which the streams are read
    offsets: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    #: expectation → number of rows that broke it, whatever its mode
    broken: dict[str, int] = field(default_factory=dict)
    #: the run was stopped early; the next run continues
    stopped: bool = False
