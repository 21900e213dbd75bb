"""Stage for the ticks of one recurring task."""

from __future__ import annotations

from typing import Any

from django_delayq.core import Broker, Registry, Task, TaskOptions
from django_delayq.worker.recurring import RecurringTicker
from tests.core.stage import Stage

#: T0 is a tick of it
EVERY = 100_000
ID = "recurring:work"


def work() -> None: ...


def recurring(**options: Any) -> Registry:
    """A registry with the one task ``work``, every 100 s."""
    registry = Registry()
    options = options if "cron" in options else {"every": EVERY / 1000, **options}
    registry.add(Task(work, name="work", options=TaskOptions(**options)))
    return registry


class Tower(Stage):
    """A stage whose clock strikes: any number of dispatchers read it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, name="default")

    def dispatcher(self, **options: Any) -> RecurringTicker:
        """One more dispatcher for the task ``work``."""
        return RecurringTicker(self.broker, recurring(**options), clock=lambda: self.us / 1000)

    def started(self, **options: Any) -> RecurringTicker:
        """A dispatcher that was there before the next tick."""
        made = self.dispatcher(**options)
        made.run()
        return made
