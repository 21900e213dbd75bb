"""Test kit for projects that use django_delayq: an in-memory queue, a clock and assertions.

    with fake_queue() as fake:
        client.post("/orders/", …)
        fake.assert_scheduled(cancel_order, args=[1], delay=timedelta(minutes=30))
        fake.run_due(until=timedelta(hours=1))

See ``docs/testing.md``. Submodules are imported on first use, and none of them imports pytest. Only tests import this
package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .jobs import ScheduledJob
    from .kit import DelayQTestCase, Fake, fake_queue
    from .redis import MemoryBroker
    from .running import Ran, RunReport

__all__ = ["DelayQTestCase", "Fake", "MemoryBroker", "Ran", "RunReport", "ScheduledJob", "fake_queue"]

_HOME: Final = {"MemoryBroker": "redis", "ScheduledJob": "jobs", "Ran": "running", "RunReport": "running"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME.get(name, 'kit')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
