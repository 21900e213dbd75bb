"""Test kit for projects that use django_delayq: an in-memory queue, a clock and assertions.

    with fake_queue():
        client.post("/orders/", …)
        assert_scheduled(cancel_order, args=[1], delay=timedelta(minutes=30))
        run_due(until=timedelta(hours=1))

See ``docs/testing.md``. Submodules are imported on first use, and none of them imports pytest. Only tests import this
package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .blocks import DelayQTestCase, fake_queue, immediate
    from .broker import MemoryBroker
    from .fake import Fake
    from .functions import (
        arun_due,
        assert_scheduled,
        clock,
        fail_next,
        freeze,
        redis_down,
        refute_scheduled,
        run_due,
        scheduled_jobs,
        travel,
    )
    from .jobs import ScheduledJob
    from .report import Ran, RunReport

__all__ = [
    "DelayQTestCase",
    "Fake",
    "MemoryBroker",
    "Ran",
    "RunReport",
    "ScheduledJob",
    "arun_due",
    "assert_scheduled",
    "clock",
    "fail_next",
    "fake_queue",
    "freeze",
    "immediate",
    "redis_down",
    "refute_scheduled",
    "run_due",
    "scheduled_jobs",
    "travel",
]

_HOME: Final = {
    "DelayQTestCase": "blocks",
    "fake_queue": "blocks",
    "immediate": "blocks",
    "Fake": "fake",
    "MemoryBroker": "broker",
    "ScheduledJob": "jobs",
    "Ran": "report",
    "RunReport": "report",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME.get(name, 'functions')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
