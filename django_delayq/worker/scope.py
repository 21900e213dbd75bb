"""Which queues a process serves, and their shards: read at the start, and again when the registry says it changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from .config import WorkerConfig

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

logger = logging.getLogger(__name__)

#: that many names are told of a process that serves all queues
_TOLD = 50


class Scope:
    """The queues of one process. Any thread may ask for a refresh.

    Args:
        changed: called with the queues whose jobs this process runs, whenever these or their shards are others.
    """

    def __init__(
        self, broker: Broker, config: WorkerConfig, changed: Callable[[Sequence[Queue]], None] = lambda _: None
    ) -> None:
        #: every queue of the process, also those that are pulled from elsewhere
        self.queues: list[Queue] = []
        self._broker = broker
        self._config = config
        #: queues that are asked for by name, and those that are looked after but not reserved from
        self._wanted = config.queues
        self._ignored = config.pulled
        self._changed = changed
        self._seen = ""
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    @property
    def worked(self) -> list[Queue]:
        """The queues whose jobs this process runs."""
        return [queue for queue in self.queues if queue.kind == "python" and queue.name not in self._ignored]

    @property
    def names(self) -> list[str]:
        """The queues for people; when they are very many, the first ones and the number of the others."""
        if not self._config.all_queues:
            return [name for name in self._wanted if name not in self._ignored]
        names = [queue.name for queue in self.worked]
        return names if len(names) <= _TOLD else [*names[:_TOLD], f"… {len(names) - _TOLD} more"]

    def refresh(self) -> None:
        """Read the registry."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        seen = self._broker.changes
        self.queues = self._broker.served(self._wanted, every=self._config.all_queues, awaited=self._config.awaited)
        numbers = {queue.name: queue.numbers for queue in self.worked}
        if numbers != self._numbers:
            if self._numbers:
                logger.info("queues or shards changed: %s", _difference(self._numbers, numbers))
            self._changed(self.worked)
            self._numbers = numbers
        self._seen = seen

    def watch(self, name: str, *, now: bool) -> None:
        """Serve this queue too; ``now`` = read the registry for it, else that is still to come.

        Raises:
            InvalidJob: it cannot be the name of a queue, or workers do not reserve from it.
            QueueUnavailable: Redis cannot be asked. Nothing has changed then, in either case.
        """
        check_queue_name(name)
        with self._choosing():
            self._wanted = (*(other for other in self._wanted if other != name), name)
            self._ignored -= {name}
            if now:
                self._refresh()
                if name not in {queue.name for queue in self.worked}:
                    raise InvalidJob(
                        f"queue {name!r} is of kind 'pull', which workers leave to others; use "
                        f"django_delayq.Queue({name!r}).reserve()"
                    )

    def ignore(self, name: str, *, now: bool) -> None:
        """Reserve no more from this queue; its leases are still looked after. Raises as :meth:`watch` does."""
        check_queue_name(name)
        with self._choosing():
            self._ignored |= {name}
            if now:
                self._refresh()

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Nobody sees a choice that is taken back, because the registry could not be read for it."""
        with self._lock:
            before = self._wanted, self._ignored
            try:
                yield
            except BaseException:
                self._wanted, self._ignored = before
                raise

    def heed(self) -> None:
        """Read the registry if the last announcement said that it changed."""
        if self._broker.changes != self._seen:
            self.refresh()


def _difference(before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]) -> str:
    words = [f"{name} is gone" for name in before if name not in now]
    words += [f"{name} has {len(numbers)} shards" for name, numbers in now.items() if before.get(name) != numbers]
    return ", ".join(words[:20]) + (" …" if len(words) > 20 else "")
