"""Delayed jobs for Django on Redis.

Names are loaded when they are first used, so that importing this package loads neither Django nor Redis, and a task
module may be imported before settings are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .core.errors import (
        Bury,
        IdTaken,
        InvalidJob,
        LeakedTransaction,
        QueueFull,
        QueueUnavailable,
        Release,
        Retry,
    )
    from .core.queue import Queue
    from .decorators import task
    from .scheduling import cancel, get_job, reschedule, run_now, schedule, schedule_many
    from .worker.current import current_job

__version__: Final = "0.1.0"

__all__ = [
    "Bury",
    "IdTaken",
    "InvalidJob",
    "LeakedTransaction",
    "Queue",
    "QueueFull",
    "QueueUnavailable",
    "Release",
    "Retry",
    "__version__",
    "cancel",
    "current_job",
    "get_job",
    "reschedule",
    "run_now",
    "schedule",
    "schedule_many",
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
    "current_job": "worker.current",
    "Queue": "core.queue",
    "Retry": "core.errors",
    "Bury": "core.errors",
    "Release": "core.errors",
    "QueueFull": "core.errors",
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
