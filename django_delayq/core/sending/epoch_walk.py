"""Walk of a call through the epochs of a queue, while the number of its shards changes.

A closed shard refuses an id that is not live in it, and the call goes on to the next epoch. Why an id never lives in
two epochs: ``docs/decisions/epochs.md``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import QueueUnavailable

if TYPE_CHECKING:
    from ..queue import Queue
    from ..records.layout import Epochs


class EpochWalk:
    """Walk of one call through the epochs of a queue, the oldest first.

    Args:
        queue: the queue.
        epochs: returns the epochs that are known now.
        create: re-create a deleted queue.
    """

    __slots__ = ("_create", "_epochs", "_give_up_at", "_pause", "_queue", "_takeover_at")

    def __init__(self, queue: Queue, epochs: Callable[[], Epochs], *, create: bool) -> None:
        self._queue = queue
        self._epochs = epochs
        self._create = create
        self._takeover_at = self._give_up_at = math.inf
        self._pause = 0.002

    def after(self, epoch: int) -> tuple[int, int] | None:
        """Return number and shards of the epoch after one whose shard is closed; wait until there is one.

        Returns:
            None if the queue was deleted.

        Raises:
            QueueUnavailable: no epoch was opened in time.
        """
        broker = self._queue.broker
        while True:
            later = next((pair for pair in self._epochs() if pair[0] > epoch), None)
            if later is not None:
                return later
            if self._give_up_at == math.inf:
                now = time.monotonic()
                self._takeover_at = now + broker.takeover_seconds * random.uniform(0.8, 1.2)
                self._give_up_at = now + broker.change_seconds
            if not broker.epochs.refresh(self._queue, epoch, self, create=self._create):
                return None

    def is_takeover_due(self) -> bool:
        """Return True if the call should complete the unfinished change of another process itself."""
        return time.monotonic() >= self._takeover_at

    def sleep(self) -> None:
        """Sleep for a moment.

        Raises:
            QueueUnavailable: the wait took too long.
        """
        if time.monotonic() >= self._give_up_at:
            raise QueueUnavailable(
                f"queue {self._queue.name!r} is being changed, and the change does not complete; try again, and check "
                f"manage.py delayq_reshard {self._queue.name} --status"
            )
        time.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(0.05, self._pause * 1.5)
