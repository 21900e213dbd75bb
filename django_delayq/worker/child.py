"""Link between a supervisor and its children: environment, scoreboard, exit codes, and detecting the other's death.

The scoreboard is shared memory where a child records its running jobs, readable by the supervisor after a ``kill -9``.
Writing a record takes a few stores into a mapped page: no system call, no lock. Times are CLOCK_MONOTONIC, which all
processes share.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import mmap
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from .attempt import NEVER, Attempt
from .config import WorkerConfig

if TYPE_CHECKING:
    from ..core.job import Job

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


IDLE: Final = 0
RUNNING: Final = 1
#: the handler still runs although its time limit was enforced
TIMED_OUT: Final = 2
#: the handler returned. If the process dies before the ack, this attempt is still the likeliest cause: a signal that a
#: handler sends to its own process may arrive after the handler has returned
ENDED: Final = 3

_KEY_BYTES: Final = 16
_MOST_JOBS: Final = 251
_STACK_BYTES: Final = 3000


class Slot(ctypes.Structure):
    """Record of what one slot runs or, if it has found no other work since, ran last.

    The flag is cleared first and set last, so a set flag always has a complete record behind it, whenever the child
    dies. ``keys`` are those of the jobs of a batch, which have one token, ``limit_at`` is when the time limit ends, and
    ``stack`` is what ran when it was enforced.
    """

    _fields_ = (
        ("flag", ctypes.c_uint8),
        ("jobs", ctypes.c_uint16),
        ("token", ctypes.c_uint64),
        ("started", ctypes.c_double),
        ("limit_at", ctypes.c_double),
        ("keys", ctypes.c_char * (_KEY_BYTES * _MOST_JOBS)),
        ("stack", ctypes.c_char * _STACK_BYTES),
    )

    @property
    def places(self) -> set[tuple[int, bytes]]:
        """Return what identifies the jobs (see :func:`place_of`)."""
        keys = bytes(self)[Slot.keys.offset :]
        return {(self.token, keys[at : at + _KEY_BYTES]) for at in range(0, _KEY_BYTES * self.jobs, _KEY_BYTES)}


def place_of(job: Job) -> tuple[int, bytes]:
    """Return what identifies a held job on scoreboards."""
    return job.token, job.key


class Scoreboard(ctypes.Structure):
    """Scoreboard of one child. The supervisor creates it; the child opens it by its file descriptor.

    Moments (0 = never): ``stamped``, when the child last showed life; ``ready``, when it began to serve its queues.
    Flags: ``leaving``, it ends on purpose, so that the jobs it still runs are not blamed; ``overdue``, it has found due
    quarantined jobs that it cannot take.
    """

    _fields_ = (
        ("stamped", ctypes.c_double),
        ("ready", ctypes.c_double),
        ("leaving", ctypes.c_bool),
        ("overdue", ctypes.c_bool),
    )

    fd: int
    slots: list[Slot]
    _keys: list[memoryview]  # of each slot, because the field ends at its first NUL

    @classmethod
    def open(cls, fd: int, slots: int) -> Scoreboard:
        """Return the scoreboard in the memory behind a file descriptor; it is unmapped with the last reference."""
        size, begin = ctypes.sizeof(Slot), ctypes.sizeof(cls)
        memory = mmap.mmap(fd, begin + slots * size)
        board = cls.from_buffer(memory)
        board.fd, board.slots = fd, list((Slot * slots).from_buffer(memory, begin))
        starts = range(begin + Slot.keys.offset, len(memory), size)
        board._keys = [memoryview(memory)[at : at + Slot.keys.size] for at in starts]
        return board

    @classmethod
    def create(cls, slots: int) -> Scoreboard:
        """Return a new scoreboard with all slots idle, in memory that only its file descriptor refers to."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("delayq-board")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, ctypes.sizeof(cls) + slots * ctypes.sizeof(Slot))
        return cls.open(fd, slots)

    def mark(self, attempt: Attempt, parts: Sequence[Attempt] = ()) -> None:
        """Record that slot ``attempt.slot`` begins ``attempt``; ``parts`` are all attempts of a batch."""
        slot, job = self.slots[attempt.slot], attempt.job
        slot.flag = IDLE
        slot.token, slot.started, slot.limit_at = job.token, attempt.started, NEVER
        slot.jobs = len(parts) or 1
        keys = b"".join([part.job.key for part in parts]) if parts else job.key
        self._keys[attempt.slot][: len(keys)] = keys
        slot.flag = RUNNING

    def mark_timed_out(self, slot: int, stack: str = "") -> None:
        """Record that the attempt in ``slot`` still runs after its time limit was enforced, when it did this."""
        self.slots[slot].stack = stack.encode(errors="replace")[-_STACK_BYTES:]
        self.slots[slot].flag = TIMED_OUT

    def clear(self, slot: int) -> None:
        """Record that the attempt in ``slot`` ended. Its record stays until the next attempt begins."""
        self.slots[slot].flag = ENDED

    @property
    def busy(self) -> bool:
        """Return True if a slot runs a job."""
        return any(slot.flag in (RUNNING, TIMED_OUT) for slot in self.slots)

    def records(self) -> list[Slot]:
        """Return copies of the records of all slots that ever ran a job."""
        return [Slot.from_buffer_copy(slot) for slot in self.slots if slot.flag != IDLE]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Child specification: what a supervisor passes to a child process."""

    config: WorkerConfig
    board_fd: int
    parent: int

    def environment(self) -> dict[str, str]:
        """Return the supervisor's environment with this specification added."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self), default=sorted)}


def child_spec() -> ChildSpec | None:
    """Return the specification that the supervisor passed to this process; None without a supervisor.

    Removes it from the environment, so call it once, early in the process.
    """
    text = os.environ.pop(VARIABLE, None)  # subprocesses of jobs must not inherit it
    if text is None:
        return None
    fields = json.loads(text)
    return ChildSpec(**fields | {"config": WorkerConfig.read(fields["config"])})


def adopt(spec: ChildSpec) -> Scoreboard:
    """Open the scoreboard. Subprocesses of jobs do not inherit it."""
    os.set_inheritable(spec.board_fd, False)
    return Scoreboard.open(spec.board_fd, spec.config.threads)


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
