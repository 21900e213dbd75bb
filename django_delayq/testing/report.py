"""Report of a call of ``run_due()``."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..core.outcomes import IN_MORGUE, AttemptOutcome


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt at a job.

    ``outcome`` is the text of an :class:`~django_delayq.core.outcomes.AttemptOutcome`; lost also if the attempt
    ended after its lease had run out, so that its end changed nothing.
    """

    task: str
    id: str
    queue: str
    attempt: int
    outcome: str
    due: datetime
    #: time of the in-memory clock
    at: datetime
    error: BaseException | None = None
    #: delay until the next attempt
    retry_in: timedelta | None = None

    def __str__(self) -> str:
        reason = f": {type(self.error).__name__}: {self.error}" if self.error is not None else ""
        retry = f", retry in {self.retry_in}" if self.retry_in is not None else ""
        return f"{self.task} id={self.id} {self.outcome} (attempt {self.attempt}{retry}){reason}"


@dataclass(slots=True)
class RunReport:
    """Result of ``run_due()``. Its length is the number of attempts."""

    runs: list[Ran] = field(default_factory=list)
    #: number of jobs that had expired and were removed
    expired: int = 0

    def __len__(self) -> int:
        return len(self.runs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.runs)) or "no jobs were run"

    def of(self, *outcomes: str) -> list[Ran]:
        """Return the attempts with one of these outcomes."""
        return [ran for ran in self.runs if ran.outcome in outcomes]

    @property
    def succeeded(self) -> list[Ran]:
        """Attempts whose handler returned."""
        return self.of(AttemptOutcome.SUCCEEDED)

    @property
    def failed(self) -> list[Ran]:
        """Attempts that failed and counted, including the last ones of jobs that were buried."""
        return self.of(AttemptOutcome.FAILED, AttemptOutcome.TIMEOUT, AttemptOutcome.EXHAUSTED)

    @property
    def buried(self) -> list[Ran]:
        """Attempts that ended in the morgue."""
        return self.of(*IN_MORGUE)
