"""What somebody tells this worker through Redis (:meth:`Broker.tell_worker`), done once each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from .shutdown import log_stacks

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.workers import Heard

logger = logging.getLogger(__name__)


class Words:
    """Belongs to the heartbeat.

    Args:
        end: ``end(word)`` begins a "stop" or a "drain"; it waits for nothing.
    """

    def __init__(self, broker: Broker, name: str, end: Callable[[str], None]) -> None:
        #: ids of what was done, to be said with the next announcement; None before the first one
        self.done: list[str] | None = None
        self._broker = broker
        self._name = name
        self._end = end

    def heed(self, heard: Heard) -> None:
        """Do what an announcement brought, unless that was done before."""
        before = self.done or ()
        # What is said no more was heard to be done; what is said again, though it was done, is confirmed again.
        self.done = [told.id for told in heard.told]
        for told in heard.told:
            if told.id in before:
                continue
            logger.warning("worker %s was told: %s", self._name, told.word)
            if told.word == "dump":
                self._dump(heard.now_ms)
            else:
                self._end(told.word)

    def _dump(self, now_ms: float) -> None:
        text = log_stacks()
        try:
            self._broker.keep_dump(self._name, text, now_ms)
        except Exception as error:  # it is in the log in any case
            logger.warning("worker %s could not put its stacks into Redis: %s", self._name, error)
