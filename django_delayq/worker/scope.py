"""Queues that a process serves, and their shards: read at the start, and again when the registry reports a change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.workers import IGNORE, WATCH
from .config import WorkerConfig

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.queue import Queue

logger = logging.getLogger(__name__)

#: number of queue names that a process with ``all_queues`` announces
_MOST_NAMES = 50


class Scope:
    """Queues of one process. Any thread may call :meth:`refresh`.

    Args:
        changed: called with the queues whose jobs this process runs, whenever these or their shards change.
    """

    def __init__(
        self, broker: Broker, config: WorkerConfig, changed: Callable[[Sequence[Queue]], None] = lambda _: None
    ) -> None:
        #: every queue of the process, including those that other programs pull from
        self.queues: list[Queue] = []
        self._broker = broker
        self._config = config
        #: queues requested by name, and queues whose leases are reaped but that are not reserved from
        self._wanted = config.queues
        self._ignored = config.pulled
        #: queues that operators added ("watch") or took away ("ignore") while the program runs
        self._choices: Mapping[str, str] = {}
        self._changed = changed
        self._seen = ""
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    @property
    def worked(self) -> list[Queue]:
        """Queues whose jobs this process runs."""
        return [queue for queue in self.queues if queue.kind == "python" and self._serves(queue.name)]

    def _serves(self, name: str) -> bool:
        chosen = self._choices.get(name)
        return chosen == WATCH or (chosen != IGNORE and name not in self._ignored)

    @property
    def ignored(self) -> list[str]:
        """Names of the queues that operators took away."""
        return sorted(name for name, word in self._choices.items() if word == IGNORE)

    @property
    def names(self) -> list[str]:
        """Names of the queues for display. If there are very many, the first ones and the number of the others."""
        if not self._config.all_queues:
            return [name for name in dict.fromkeys((*self._wanted, *self._choices)) if self._serves(name)]
        names = [queue.name for queue in self.worked]
        return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], f"… {len(names) - _MOST_NAMES} more"]

    def refresh(self, choices: Mapping[str, str] | None = None) -> None:
        """Read the registry.

        Args:
            choices: queues that operators added ("watch") or took away ("ignore"); None = as before.
        """
        with self._choosing():
            if choices is not None:
                self._choices = choices
            self._refresh()

    def follow(self, choices: Mapping[str, str]) -> None:
        """Apply the choices that an announcement returned; read the registry if they or the registry changed."""
        if choices != self._choices:
            changes = [f"{word} {name}" for name, word in sorted(choices.items())]
            logger.warning("choice of queues by operators: %s", ", ".join(changes) or "none any more")
            self.refresh(choices)
        elif self._broker.worker_registry.changes != self._seen:
            self.refresh()

    def _refresh(self) -> None:
        seen = self._broker.worker_registry.changes
        # A chosen queue is never created: it may have been deleted since.
        chosen = [name for name in self._choices if name not in self._wanted]
        awaited = self._config.awaited | set(chosen)
        self.queues = self._broker.served((*self._wanted, *chosen), every=self._config.all_queues, awaited=awaited)
        numbers = {queue.name: queue.numbers for queue in self.worked}
        if numbers != self._numbers:
            if self._numbers:
                logger.info("queues or shards changed: %s", _difference(self._numbers, numbers))
            self._changed(self.worked)
            self._numbers = numbers
        self._seen = seen

    def watch(self, name: str, *, now: bool) -> None:
        """Serve this queue too.

        Args:
            name: the queue.
            now: read the registry for it; False = the first read is still to come.

        Raises:
            InvalidJob: it cannot be the name of a queue, or workers do not reserve from it.
            QueueUnavailable: Redis is unreachable. In either case nothing has changed.
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
        """Stop reserving from this queue; its leases are still reaped. Raises as :meth:`watch` does."""
        check_queue_name(name)
        with self._choosing():
            self._ignored |= {name}
            if now:
                self._refresh()

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Undo a choice if the registry cannot be read for it, before any thread sees it."""
        with self._lock:
            before = self._wanted, self._ignored, self._choices
            try:
                yield
            except BaseException:
                self._wanted, self._ignored, self._choices = before
                raise


def _difference(before: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]]) -> str:
    words = [f"{name} is gone" for name in before if name not in now]
    words += [f"{name} has {len(numbers)} shards" for name, numbers in now.items() if before.get(name) != numbers]
    return ", ".join(words[:20]) + (" …" if len(words) > 20 else "")
