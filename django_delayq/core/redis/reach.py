"""Pass over many shards of which some may be unreachable: their nodes are tried once, and the others served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ..errors import QueueUnavailable
from .faults import REDIS_ERRORS
from .link import within

if TYPE_CHECKING:
    from ..shard_set import ShardSet

#: time limit of the calls to one shard of a cluster, in seconds
SHARD_SECONDS: Final = 2.0


class Reach:
    """Nodes that did not answer in one pass. On a single server the first error ends the pass."""

    def __init__(self) -> None:
        #: error of each shard that was left out; the first one of its node
        self.missing: list[QueueUnavailable] = []
        self._lost: dict[int, QueueUnavailable] = {}

    @contextmanager
    def shard(self, queue: ShardSet, number: int, *, limited: bool = True) -> Iterator[None]:
        """Record that a shard is missing if the block cannot reach it, or its node was found to be lost before.

        The block is left without an error then.

        Args:
            limited: the block only calls Redis, for :data:`SHARD_SECONDS`; False = each of its calls has its own limit.

        Raises:
            QueueUnavailable: it is no cluster.
        """
        connection, node = queue.broker.connection, 0
        if not connection.cluster:
            yield
            return
        with suppress(*REDIS_ERRORS):
            node = id(connection.pool(queue.shard(number).keys[0]))
        try:
            limit = 0.0 if node in self._lost else SHARD_SECONDS if limited else None
            with within(None if limit is None else time.monotonic() + limit):
                yield
        except QueueUnavailable as error:
            self.missing.append(self._lost.setdefault(node, error))

    def raise_first(self) -> None:
        """Raise the error of the first missing shard, if there is any."""
        if self.missing:
            raise self.missing[0]
