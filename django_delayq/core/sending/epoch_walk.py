"""Walk of a call through the epochs of a queue, while the number of its shards changes.

A closed shard refuses an id that is not live in it, and the call goes on to the next epoch. Why an id never lives in
two epochs: ``docs/decisions/epochs.md``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import QueueUnavailable

if TYPE_CHECKING:
    from ..records.layout import Epochs
    from .sender import Sender


class LayoutWait:
    """Wait of one call for a layout with an open shard for its id.

    Args:
        takeover_seconds: time after which the call completes another process's change.
        change_seconds: time after which the call gives up.
    """

    def __init__(self, takeover_seconds: float, change_seconds: float) -> None:
        now = time.monotonic()
        self._takeover_at = now + takeover_seconds * random.uniform(0.8, 1.2)
        self._give_up_at = now + change_seconds
        self._pause = 0.002

    def is_takeover_due(self) -> bool:
        """Return True if the caller should complete the unfinished change itself."""
        return time.monotonic() >= self._takeover_at

    def sleep(self, queue: str) -> None:
        """Sleep for a moment.

        Raises:
            QueueUnavailable: the wait took too long.
        """
        if time.monotonic() >= self._give_up_at:
            raise QueueUnavailable(
                f"queue {queue!r} is being changed, and the change does not complete; try again, and check "
                f"manage.py delayq_reshard {queue} --status"
            )
        time.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(0.05, self._pause * 1.5)


class EpochWalk:
    """Walk through the epochs of a queue, the oldest first.

    Args:
        queue: the queue.
        epochs: returns the epochs that are known now.
        create: re-create a deleted queue.
    """

    __slots__ = ("_create", "_epochs", "_queue", "_wait")

    def __init__(self, queue: Sender, epochs: Callable[[], Epochs], *, create: bool) -> None:
        self._queue = queue
        self._epochs = epochs
        self._create = create
        self._wait: LayoutWait | None = None

    def after(self, epoch: int) -> tuple[int, int] | None:
        """Return number and shards of the epoch after one whose shard is closed; wait until there is one.

        Returns:
            None if the queue was deleted.

        Raises:
            QueueUnavailable: no epoch was opened in time.
        """
        while True:
            later = next((pair for pair in self._epochs() if pair[0] > epoch), None)
            if later is not None:
                return later
            if self._wait is None:
                broker = self._queue.broker
                self._wait = LayoutWait(broker.takeover_seconds, broker.change_seconds)
            if not self._queue.broker.epochs.refresh(self._queue, epoch, self._wait, create=self._create):
                return None

    def end(self) -> None:
        """End the walk: a shard took the call, and the next walk may wait as long again."""
        self._wait = None
