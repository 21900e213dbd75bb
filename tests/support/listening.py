"""Recorder of the calls of signals and hooks at the end of jobs, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_delayq import current_job, signals

#: (event, job id, arguments, error class, text of the error, further details of the end)
Heard = tuple[str, str, Any, str, str, Any]


class Ears:
    """``heard`` has an entry for each call; :meth:`exhausted` is for a task's ``on_exhausted``."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def exhausted(self, job: Any, error: BaseException) -> None:
        same = current_job()
        assert same is not None and same.id == job.id, "current_job() is the job that ended"
        self._note("on_exhausted", job.id, (list(job.args), dict(job.kwargs)), error, job.attempt)

    def failed(self, sender: Any, job: Any, error: Any, outcome: str, retry_in: float | None, **_: Any) -> None:
        self._note("job_failed", job.id, job.args or [one.data for one in job.payloads], error, (outcome, retry_in))

    def buried(self, sender: Any, job: Any, error: Any, reason: str, **_: Any) -> None:
        self._note("job_buried", job.id, job.args or [one.data for one in job.payloads], error, reason)

    def _note(self, event: str, ident: str, arguments: Any, error: BaseException, more: Any) -> None:
        self.heard.append((event, ident, arguments, type(error).__name__, str(error), more))


@contextmanager
def listening() -> Iterator[Ears]:
    """Connect receivers to the signals for the end of jobs."""
    ears = Ears()
    signals.job_failed.connect(ears.failed)
    signals.job_buried.connect(ears.buried)
    try:
        yield ears
    finally:
        signals.job_failed.disconnect(ears.failed)
        signals.job_buried.disconnect(ears.buried)
