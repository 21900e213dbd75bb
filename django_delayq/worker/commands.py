"""Worker commands that operators send through Redis (:meth:`Broker.tell_worker`), carried out once each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from .shutdown import log_stacks

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.workers import AnnouncementReply

logger = logging.getLogger(__name__)


class WorkerCommands:
    """Receiver of worker commands. Belongs to the heartbeat.

    Args:
        end: ``end(command)`` begins a "stop" or a "drain"; it does not wait.
    """

    def __init__(self, broker: Broker, name: str, end: Callable[[str], None]) -> None:
        #: ids of commands that were carried out, confirmed with the next announcement; None before the first one
        self.done: list[str] | None = None
        self._broker = broker
        self._name = name
        self._end = end

    def carry_out(self, announcement: AnnouncementReply) -> None:
        """Carry out the commands that an announcement returned, unless that was done before."""
        before = self.done or ()
        # A command that is not repeated was confirmed. One that is repeated is confirmed again.
        self.done = list(announcement.commands.values())
        for word, ident in announcement.commands.items():
            if ident in before:
                continue
            logger.warning("worker %s carries out the command %s", self._name, word)
            if word == "dump":
                self._dump(announcement.now_ms)
            else:
                self._end(word)

    def _dump(self, now_ms: float) -> None:
        text = log_stacks()
        try:
            self._broker.keep_dump(self._name, text, now_ms)
        except Exception as error:  # the log has the stacks in any case
            logger.warning("worker %s could not put its stacks into Redis: %s", self._name, error)
