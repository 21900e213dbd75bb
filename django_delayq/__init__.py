"""Delayed jobs for Django on Redis.

Public API of the package. Names are loaded lazily on first use, so that importing this package loads neither Django nor
Redis, and a task module can be imported before settings are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import limits as limits
    from .core import retry as retry
    from .core.errors import (
        IdTaken as IdTaken,
        InvalidJob as InvalidJob,
        LeakedTransaction as LeakedTransaction,
        NotConfirmed as NotConfirmed,
        QueueFull as QueueFull,
        QueuePaused as QueuePaused,
        QueueUnavailable as QueueUnavailable,
    )
    from .core.inputs import priority_of_u32 as priority_of_u32
    from .core.verdicts import (
        Bury as Bury,
        PartialFailure as PartialFailure,
        RateLimited as RateLimited,
        Release as Release,
        Retry as Retry,
    )
    from .outbox.inbox import exactly_once as exactly_once
    from .pull import Queue as Queue
    from .scheduling.tasks import task as task
    from .scheduling.triggers import cancel_on as cancel_on, schedule_on as schedule_on
    from .scheduling.verbs import (
        acancel as acancel,
        aget_job as aget_job,
        areschedule as areschedule,
        arun_now as arun_now,
        aschedule as aschedule,
        aschedule_many as aschedule_many,
        cancel as cancel,
        get_job as get_job,
        reschedule as reschedule,
        run_now as run_now,
        schedule as schedule,
        schedule_many as schedule_many,
    )
    from .worker.attempt import current_job as current_job

__version__: Final = "0.1.0"

#: modules and the public names that they define
_MODULES: Final = {
    "core": ("retry",),  # module of back-off presets: retry.steps(10, 60, 300)
    "core.errors": (
        "IdTaken",
        "InvalidJob",
        "LeakedTransaction",
        "NotConfirmed",
        "QueueFull",
        "QueuePaused",
        "QueueUnavailable",
    ),
    "core.inputs": ("priority_of_u32",),
    "core.verdicts": ("Bury", "PartialFailure", "RateLimited", "Release", "Retry"),
    "outbox.inbox": ("exactly_once",),
    "pull": ("Queue",),
    "scheduling.tasks": ("task",),
    "scheduling.triggers": ("cancel_on", "schedule_on"),
    "scheduling.verbs": (
        "acancel",
        "aget_job",
        "areschedule",
        "arun_now",
        "aschedule",
        "aschedule_many",
        "cancel",
        "get_job",
        "reschedule",
        "run_now",
        "schedule",
        "schedule_many",
    ),
    "worker.attempt": ("current_job",),
}
_HOME: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", "limits", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "limits":
        return import_module(f"{__name__}.limits")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
