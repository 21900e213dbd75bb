"""Delayed jobs for Django on Redis.

Names are loaded when they are first used, so that importing this package loads neither Django nor Redis, and a task
module may be imported before settings are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .aio import acancel, aget_job, areschedule, arun_now, aschedule, aschedule_many
    from .core import retry
    from .core.errors import (
        Bury,
        IdTaken,
        InvalidJob,
        LeakedTransaction,
        PartialFailure,
        QueueFull,
        QueuePaused,
        QueueUnavailable,
        Release,
        Retry,
    )
    from .decorators import task
    from .inbox import exactly_once
    from .pull import Queue
    from .scheduling import cancel, get_job, reschedule, run_now, schedule, schedule_many
    from .triggers import cancel_on, schedule_on
    from .worker.current import current_job

__version__: Final = "0.1.0"

__all__ = [
    "Bury",
    "IdTaken",
    "InvalidJob",
    "LeakedTransaction",
    "PartialFailure",
    "Queue",
    "QueueFull",
    "QueuePaused",
    "QueueUnavailable",
    "Release",
    "Retry",
    "__version__",
    "acancel",
    "aget_job",
    "areschedule",
    "arun_now",
    "aschedule",
    "aschedule_many",
    "cancel",
    "cancel_on",
    "current_job",
    "exactly_once",
    "get_job",
    "reschedule",
    "retry",
    "run_now",
    "schedule",
    "schedule_many",
    "schedule_on",
    "task",
]

_HOME: Final = {
    "task": "decorators",
    "schedule": "scheduling",
    "schedule_many": "scheduling",
    "cancel": "scheduling",
    "reschedule": "scheduling",
    "run_now": "scheduling",
    "get_job": "scheduling",
    "aschedule": "aio",
    "aschedule_many": "aio",
    "acancel": "aio",
    "areschedule": "aio",
    "arun_now": "aio",
    "aget_job": "aio",
    "schedule_on": "triggers",
    "cancel_on": "triggers",
    "exactly_once": "inbox",
    "current_job": "worker.current",
    "Queue": "pull",
    "retry": "core",  # the module of back-off presets: retry.steps(10, 60, 300)
    "Retry": "core.errors",
    "Bury": "core.errors",
    "Release": "core.errors",
    "PartialFailure": "core.errors",
    "QueueFull": "core.errors",
    "QueuePaused": "core.errors",
    "QueueUnavailable": "core.errors",
    "IdTaken": "core.errors",
    "InvalidJob": "core.errors",
    "LeakedTransaction": "core.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
