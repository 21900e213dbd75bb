"""Error classes for entries of ``result.errors`` that do not come from an exception in the project's code.

Their docstrings describe the cause.
"""

from __future__ import annotations

from ..core.errors import Crashed, DelayQError, JobTimeout

__all__ = ["Crashed", "Gone", "JobTimeout", "ResultTooLarge", "UnknownTask"]


class UnknownTask(DelayQError):
    """Error of a job whose task name no worker knew for a day."""


class Gone(DelayQError):
    """Error of a job that was cancelled, discarded or deleted, or that expired, before an attempt could end."""


class ResultTooLarge(DelayQError):
    """Error of a task that returned more than ``OPTIONS["max_result_bytes"]``. Its side effects remain."""
