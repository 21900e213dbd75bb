"""Delayed jobs for Django on Redis.

Public API of the package. Names are loaded lazily on first use, so that importing this package loads neither Django nor
Redis, and a task module can be imported before settings are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .core import retry
    from .core.errors import (
        Bury,
        IdTaken,
        InvalidJob,
        LeakedTransaction,
        NotConfirmed,
        PartialFailure,
        QueueFull,
        QueuePaused,
        QueueUnavailable,
        Release,
        Retry,
    )
    from .core.inputs import priority_of_u32
    from .outbox.inbox import exactly_once
    from .pull import Queue
    from .scheduling.aio import acancel, aget_job, areschedule, arun_now, aschedule, aschedule_many
    from .scheduling.decorators import task
    from .scheduling.triggers import cancel_on, schedule_on
    from .scheduling.verbs import cancel, get_job, reschedule, run_now, schedule, schedule_many
    from .worker.attempt import current_job

__version__: Final = "0.1.0"

__all__ = [
    "Bury",
    "IdTaken",
    "InvalidJob",
    "LeakedTransaction",
    "NotConfirmed",
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
    "priority_of_u32",
    "reschedule",
    "retry",
    "run_now",
    "schedule",
    "schedule_many",
    "schedule_on",
    "task",
]

_HOME: Final = {
    "task": "scheduling.decorators",
    "schedule": "scheduling.verbs",
    "schedule_many": "scheduling.verbs",
    "cancel": "scheduling.verbs",
    "reschedule": "scheduling.verbs",
    "run_now": "scheduling.verbs",
    "get_job": "scheduling.verbs",
    "aschedule": "scheduling.aio",
    "aschedule_many": "scheduling.aio",
    "acancel": "scheduling.aio",
    "areschedule": "scheduling.aio",
    "arun_now": "scheduling.aio",
    "aget_job": "scheduling.aio",
    "schedule_on": "scheduling.triggers",
    "cancel_on": "scheduling.triggers",
    "exactly_once": "outbox.inbox",
    "current_job": "worker.attempt",
    "Queue": "pull",
    "priority_of_u32": "core.inputs",
    "retry": "core",  # module of back-off presets: retry.steps(10, 60, 300)
    "Retry": "core.errors",
    "Bury": "core.errors",
    "Release": "core.errors",
    "PartialFailure": "core.errors",
    "QueueFull": "core.errors",
    "QueuePaused": "core.errors",
    "QueueUnavailable": "core.errors",
    "NotConfirmed": "core.errors",
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
