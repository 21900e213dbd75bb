"""What stands in ``result.errors`` where no exception of the project's own can. The docstring says what happened."""

from __future__ import annotations

from ..core.errors import Crashed, DelayQError

__all__ = ["Crashed", "Gone", "ResultTooLarge", "UnknownTask"]


class UnknownTask(DelayQError):
    """For a day no worker knew a task of this name."""


class Gone(DelayQError):
    """The job was cancelled, discarded or deleted, or it expired, before a run of it could end."""


class ResultTooLarge(DelayQError):
    """The task returned more than ``OPTIONS["max_result_bytes"]``. What it did before stands."""
