"""Link between a supervisor and its children: environment, scoreboard, exit codes, and detecting the other's death."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import secrets
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from .scoreboard import Scoreboard

if TYPE_CHECKING:
    from ..core.outcomes import Which

VARIABLE: Final = "DELAYQ_CHILD"

#: exit codes of a worker process
EXIT_OK: Final = 0
#: the process reached its max_jobs or max_rss: start another one at once
EXIT_RECYCLE: Final = 81
#: an attempt ignored its time limit; only ending the process ends it
EXIT_STUCK: Final = 82
#: a quarantine child ended because no job has waited for quarantine for a while
EXIT_DRY: Final = 83
#: one of the process's own threads died by an error
EXIT_FATAL: Final = 84
#: Redis was unavailable for longer than the process was to wait for it
EXIT_NO_REDIS: Final = 85

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Child specification: what a supervisor passes to a child process."""

    name: str
    index: int
    board_fd: int
    slots: int
    parent: int
    #: run the jobs that wait for quarantine, and no others
    quarantine: bool = False
    #: name of this start of the program, the same for all its processes
    program: str = ""

    def environment(self) -> dict[str, str]:
        """Return the supervisor's environment with this specification added."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}


def child_spec() -> ChildSpec | None:
    """Return the specification that the supervisor passed to this process; None without a supervisor.

    Removes it from the environment, so call it once, early in the process.
    """
    text = os.environ.pop(VARIABLE, None)  # subprocesses of jobs must not inherit it
    if text is None:
        return None
    return ChildSpec(**json.loads(text))


def adopt(spec: ChildSpec) -> Scoreboard:
    """Open the scoreboard, and have the kernel send SIGTERM to this process when the supervisor dies."""
    os.set_inheritable(spec.board_fd, False)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return Scoreboard(spec.board_fd, spec.slots)


def is_orphan(spec: ChildSpec) -> bool:
    """Return True if the supervisor is gone.

    Needed on systems that do not signal its death, and for a death before :func:`adopt`.
    """
    return os.getppid() != spec.parent


def served_by(child_spec: ChildSpec | None) -> Which:
    """Return which jobs a process runs. Without a supervisor there is no quarantine, so it runs all jobs."""
    if child_spec is None:
        return "all"
    return "quarantined" if child_spec.quarantine else "others"


def reap_adopted(own: set[int]) -> None:
    """Collect the exit codes of adopted processes.

    As PID 1 of a container, this process adopts the orphans of its children.
    """
    with contextlib.suppress(ChildProcessError, AttributeError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def new_name() -> str:
    """Return a unique worker name: host, pid, and a random part because pids are reused."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def leave(code: int) -> NoReturn:
    """End the process with ``code`` without waiting for threads whose jobs still run."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
