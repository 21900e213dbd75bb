"""Shards of a cluster that cannot be reached: the fetch loop leaves them alone while it serves the others."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..core.redis.faults import REDIS_ERRORS, Backoff, classify

if TYPE_CHECKING:
    from .shard_selector import ShardSelector, Source

logger = logging.getLogger(__name__)

#: time limit of one call of the fetch loop on a cluster, and of one probe, in seconds: the other masters wait meanwhile
CALL_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 1.0


class UnreachableShards:
    """Shards that are set aside, and the thread that probes them. The fetch loop reads which ones without a lock.

    Its thread exists only while there are any. A shard that answers is due again, with all others of its node.
    """

    def __init__(self, selector: ShardSelector) -> None:
        self._selector = selector
        self._sources: dict[Source, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Return True while any shard is set aside."""
        return bool(self._sources)

    def __contains__(self, source: Source) -> bool:
        """Return True if this shard is set aside."""
        return source in self._sources

    def lasting(self) -> float:
        """Return the seconds since the first of these shards was set aside; 0 while there are none."""
        with self._lock:
            return time.monotonic() - min(self._sources.values()) if self._sources else 0.0

    def add(self, source: Source, error: BaseException) -> None:
        """Set a shard aside, and all others of its node."""
        node, now = _node_of(source), time.monotonic()
        lost = [one for one in self._selector.sources if node is not None and _node_of(one) == node and one not in self]
        with self._lock:
            for one in (source, *lost):
                self._sources.setdefault(one, now)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delayq-probe", daemon=True)
                self._thread.start()
        queues = sorted({one.queue.name for one in (source, *lost)})
        logger.warning(
            "%d shards of %d queues (%s) cannot be reached, the others are served: %s",
            len({source, *lost}),
            len(queues),
            ", ".join(queues[:10]),
            error,
        )

    def rest(self, source: Source) -> bool:
        """Let a shard rest if it is set aside; return True if it is."""
        if source not in self._sources:
            return False
        self._selector.postpone(source, float("inf"))
        if source not in self._sources:  # it has come back in between, and its call was just overwritten
            self._selector.expect(source, time.monotonic())
        return True

    def _run(self) -> None:
        pause = Backoff(cap=_LONGEST_PAUSE)
        while True:
            time.sleep(pause.next())
            nodes: dict[object, Source] = {_node_of(source): source for source in tuple(self._sources)}
            for source in nodes.values():
                try:
                    with source.queue.deployment.connection.limited(CALL_SECONDS):
                        source.queue.deployment.client.exists(source.queue.shard(source.shard).keys[0])
                except Exception as error:
                    logger.debug("%r is not reachable (%s): %s", source, classify(error), error)
                else:
                    self._restore(_node_of(source))
            with self._lock:
                if not self._sources:
                    self._thread = None
                    return

    def _restore(self, node: object) -> None:
        with self._lock:
            restored = {one: since for one, since in self._sources.items() if _node_of(one) == node}
            for source in restored:
                del self._sources[source]
        if restored:
            seconds = time.monotonic() - min(restored.values())
            logger.warning("%d shards can be reached again after %.1f s", len(restored), seconds)
            self._selector.wake([(source.queue.name, source.shard) for source in restored])


def _node_of(source: Source) -> int | None:
    """Return which node has the shard, as far as this process can tell; None = it knows none."""
    with suppress(*REDIS_ERRORS):
        return id(source.queue.deployment.connection.pool(source.queue.shard(source.shard).keys[0]))
    return None
