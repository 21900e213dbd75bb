"""Starter of the child processes of one supervisor."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from .child import ChildSpec, new_name
from .places import Child, Place
from .scoreboard import Scoreboard

logger: Final = logging.getLogger("django_delayq.worker.supervisor")


class ChildStarter:
    """Starter of children: each gets a name, a scoreboard, and its specification in the environment.

    Args:
        command: the command line of a child.
        base: the names of the children begin with this.
        threads: number of slots of an ordinary child; a quarantine child has one.
    """

    def __init__(self, command: Sequence[str], base: str, threads: int) -> None:
        #: name of this start of the program: another one each time, unlike a configured name of the worker
        self.program = new_name()
        self._command = list(command)
        self._base = base
        self._threads = threads
        self._started = 0

    def start(self, place: Place) -> Child:
        """Start a child for this place.

        Raises:
            OSError: the system has no process for it.
        """
        self._started += 1
        slots = 1 if place.quarantine else self._threads
        board = Scoreboard.create(slots)
        name = f"{self._base}.{self._started}"
        spec = ChildSpec(name, place.index, board.fd, slots, os.getpid(), place.quarantine, self.program)
        try:
            process = subprocess.Popen(self._command, env=spec.environment(), pass_fds=(board.fd,))
        except OSError:
            board.close()
            raise
        logger.info("child %s started%s: pid %d", name, " for quarantine" if place.quarantine else "", process.pid)
        return Child(place.index, name, process, board, time.monotonic())
