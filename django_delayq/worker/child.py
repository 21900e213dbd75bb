"""The two ends of the line between a supervisor and its children: environment, board, death in either direction."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from .board import Board

if TYPE_CHECKING:
    from ..core.shards import Which

VARIABLE: Final = "DELAYQ_CHILD"

#: exit codes of a worker process
EXIT_OK: Final = 0
#: worked off its max_jobs or outgrew its max_rss: start another one at once
EXIT_RECYCLE: Final = 81
#: a run ignored its time limit; only a new process gets rid of it
EXIT_STUCK: Final = 82
#: of a quarantine child: no job has waited for quarantine for a while
EXIT_DRY: Final = 83

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Birth:
    """What a supervisor tells a child."""

    name: str
    index: int
    board_fd: int
    slots: int
    parent: int
    #: it runs the jobs that wait for quarantine, and no others
    quarantine: bool = False

    def environment(self) -> dict[str, str]:
        """The supervisor's environment with this in it."""
        told = {
            "name": self.name,
            "index": self.index,
            "board": self.board_fd,
            "slots": self.slots,
            "parent": self.parent,
            "quarantine": self.quarantine,
        }
        return {**os.environ, VARIABLE: json.dumps(told)}


def birth() -> Birth | None:
    """What this process's supervisor told it; None if there is none. To be asked once, early in the process."""
    told = os.environ.pop(VARIABLE, None)  # a job's own subprocesses are nobody's children
    if told is None:
        return None
    words = json.loads(told)
    return Birth(words["name"], words["index"], words["board"], words["slots"], words["parent"], words["quarantine"])


def adopt(told: Birth) -> Board:
    """Take up the board, and have the kernel send SIGTERM to this process when the supervisor dies."""
    os.set_inheritable(told.board_fd, False)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return Board(told.board_fd, told.slots)


def is_orphan(told: Birth) -> bool:
    """Whether the supervisor is gone (for systems that do not tell, and for a death before :func:`adopt`)."""
    return os.getppid() != told.parent


def served_by(birth: Birth | None) -> Which:
    """Which jobs a process runs. Without a supervisor there is no quarantine: then it runs all alike."""
    if birth is None:
        return "all"
    return "quarantined" if birth.quarantine else "others"


def new_name() -> str:
    """A name that no other worker has: host, pid, and a random part for pids that come again."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def leave(code: int) -> NoReturn:
    """End the process with ``code``, past the threads of jobs that do not end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
