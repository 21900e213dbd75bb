"""Walk of a call through the epochs of a queue, while the number of its shards changes.

A closed shard refuses an id that is not live in it, and the call goes on to the next epoch. Why an id never lives in
two epochs: :mod:`..operations.resharding`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import QueueUnavailable

if TYPE_CHECKING:
    from ..records.layout import Epochs
    from .sender import Sender

#: seconds after which a caller completes the unfinished change of another process instead of waiting for it
PATIENCE_SECONDS: Final = 0.5
#: seconds after which a call gives up
LONGEST_WAIT_SECONDS: Final = 10.0


class Patience:
    """Patience of one call that waits for a layout with an open shard for its id."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._finish_at = now + PATIENCE_SECONDS * random.uniform(0.8, 1.2)
        self._give_up_at = now + LONGEST_WAIT_SECONDS
        self._pause = 0.002

    def is_over(self) -> bool:
        """Return True if the caller should complete the unfinished change itself."""
        return time.monotonic() >= self._finish_at

    def rest(self, queue: str) -> None:
        """Wait a moment.

        Raises:
            QueueUnavailable: it took too long.
        """
        if time.monotonic() >= self._give_up_at:
            raise QueueUnavailable(
                f"the shards of queue {queue!r} are being changed, and the change does not end; try again, and look "
                f"at manage.py delayq_reshard {queue} --status"
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

    __slots__ = ("_create", "_epochs", "_patience", "_queue")

    def __init__(self, queue: Sender, epochs: Callable[[], Epochs], *, create: bool) -> None:
        self._queue = queue
        self._epochs = epochs
        self._create = create
        self._patience: Patience | None = None

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
            self._patience = self._patience or Patience()
            if not self._queue.broker.epochs.meet(self._queue, epoch, self._patience, create=self._create):
                return None

    def end(self) -> None:
        """End the walk: a shard took the call, and the next walk may wait as long again."""
        self._patience = None
