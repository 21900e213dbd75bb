"""Ends of held jobs outside of workers: those who listen are called before the end is stored, as in a worker.

A process that dies in between leaves the job held, and a dispatcher settles it when its lease is over.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import signals
from ..core.task import registry
from ..worker.hooks import Hooks
from ..worker.notifier import Notifier

if TYPE_CHECKING:
    from ..core.job import Settlement
    from ..core.queue import Queue


def _new_notifier() -> Notifier:
    return Notifier(Hooks(wants=signals.wants, notify=signals.notify))


_notifier = _new_notifier()


def is_heard(settlement: Settlement) -> bool:
    """Return True if anything is called for this end."""
    return _notifier.is_heard(settlement, registry.get(settlement.job.task))


def notify(queue: Queue, settlement: Settlement, error: BaseException | None) -> None:
    """Call those who listen to an end that is about to be stored."""
    _notifier.ended_elsewhere(queue, registry.get(settlement.job.task), settlement, error)


def _forget() -> None:
    """Give a forked child a notifier of its own: it has no thread for coroutines."""
    global _notifier
    _notifier = _new_notifier()


os.register_at_fork(after_in_child=_forget)
