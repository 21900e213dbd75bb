"""Listeners for the ends of held jobs outside of workers: called before the end is stored, as in a worker.

If the process dies in between, the job stays held, and a dispatcher settles it when its lease has expired.
"""

from __future__ import annotations

import os
from functools import lru_cache

from .. import signals
from ..core.outcomes import Settlement
from ..core.queue import Queue
from ..core.task import registry
from ..settings.conf import SETTING, conf, load_function
from ..worker.hooks import Hooks, Notifier


@lru_cache(maxsize=1)
def _notifier_for(report_error: str | None) -> Notifier:
    """Return the notifier for a path in ``HOOKS["report_error"]``."""
    report = None if report_error is None else load_function(f"{SETTING}['HOOKS']['report_error']", report_error)
    return Notifier(Hooks(wants=signals.wants, notify=signals.notify, report_error=report))


def _notifier() -> Notifier:
    return _notifier_for(conf().hooks.report_error)


def has_listeners(settlement: Settlement) -> bool:
    """Return True if any listener is called for this end."""
    return _notifier().has_listeners(settlement, registry.get(settlement.job.task))


def notify(queue: Queue, settlement: Settlement, error: BaseException | None) -> None:
    """Call the listeners for an end that is about to be stored."""
    _notifier().ended_elsewhere(queue, registry.get(settlement.job.task), settlement, error)


# A forked child makes a new one: the inherited one has no thread for coroutines.
os.register_at_fork(after_in_child=_notifier_for.cache_clear)
