"""Listeners for the ends of held jobs outside of workers: called before the end is stored, as in a worker.

If the process dies in between, the job stays held, and a dispatcher settles it when its lease has expired.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import signals
from ..core.task import registry
from ..worker.hooks import Hooks
from ..worker.notifier import Notifier

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..core.settlement import Settlement


def _new_notifier() -> Notifier:
    return Notifier(Hooks(wants=signals.wants, notify=signals.notify))


_notifier = _new_notifier()


def has_listeners(settlement: Settlement) -> bool:
    """Return True if any listener is called for this end."""
    return _notifier.has_listeners(settlement, registry.get(settlement.job.task))


def notify(queue: Queue, settlement: Settlement, error: BaseException | None) -> None:
    """Call the listeners for an end that is about to be stored."""
    _notifier.ended_elsewhere(queue, registry.get(settlement.job.task), settlement, error)


def _forget() -> None:
    """Replace the notifier in a forked child: the inherited one has no thread for coroutines."""
    global _notifier
    _notifier = _new_notifier()


os.register_at_fork(after_in_child=_forget)
