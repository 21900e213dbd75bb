"""A supervisor with children: programs of their own, and what is decided about the jobs of a child that died."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis

from django_delayq.core import Broker, Job, Queue, Registry, Settlement
from django_delayq.worker.attempt import NEVER
from django_delayq.worker.child import ENDED, RUNNING, TIMED_OUT, ChildSpec, Scoreboard, Slot, child_spec
from django_delayq.worker.dead import Death, Ends, decide, salvage
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.supervisor import Supervisor
from django_delayq.worker.worker import Worker

from .attempt_stage import make_attempt, make_job
from .duty_stage import make_process
from .worker_stage import config, eventually, registry_of

ROOT = Path(__file__).resolve().parent.parent.parent
#: a time of Redis, Unix ms
NOW_MS = 1_700_000_000_000.0


class Program:
    """A supervisor (or a single worker) in a process of its own, and what its jobs told."""

    def __init__(self, process: subprocess.Popen[Any], client: redis.Redis) -> None:
        self.process = process
        self.client = client

    def trace(self) -> list[tuple[str, str, int, int]]:
        """(word, job id, attempt, pid) in the order told."""
        lines = [text.split(":") for text in self._texts("trace")]
        return [(word, ident, int(attempt), int(pid)) for word, ident, attempt, pid in lines]

    def ends(self) -> list[str]:
        """Arguments that the listeners to ends were called with, in order."""
        return self._texts("ends")

    def _texts(self, key: str) -> list[str]:
        found: Any = self.client.lrange(key, 0, -1)
        return [text.decode() for text in found]

    def await_words(self, word: str, count: int = 1) -> list[tuple[str, str, int, int]]:
        """The first ``count`` entries that say ``word``."""
        return eventually(lambda: len(found := [e for e in self.trace() if e[0] == word]) >= count and found, word)  # type: ignore[no-any-return]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20) -> int:
        return int(self.process.wait(timeout))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- supervisors


def supervisor_of(broker: Broker, program: str, *arguments: object, **settings: Any) -> Supervisor:
    """Return a supervisor whose children run a Python program; its first argument is ``arguments[0]``."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return Supervisor(command, config(**settings), lambda: broker, registry_of(print))


#: program of a child that notes its name and, if it is the first one, requests an end from its supervisor; else it
#: stops the supervisor. Then it dies. Arguments: the file for the names, the word
DYING_CHILD = """
import os, signal, sys
from pathlib import Path
from django_delayq.worker.child import child_spec
told = child_spec()
births = Path(sys.argv[1])
births.write_text(births.read_text() + told.config.name + chr(10))
if told.config.name.endswith(".1"):
    for word in sys.argv[2:]:
        os.kill(told.parent, signal.SIGUSR1 if word == "drain" else signal.SIGUSR2)
else:
    os.kill(told.parent, signal.SIGTERM)
os._exit(9)
"""


def sent_to_child(spec: ChildSpec) -> ChildSpec | None:
    """Return what a child finds in the environment that its supervisor gives it."""
    with patch.dict(os.environ, spec.environment()):
        return child_spec()


def orphaned_child(parent: int) -> ChildSpec:
    """Return what a child has from a supervisor whose pid is ``parent``; it is orphaned unless that is its parent."""
    return ChildSpec(config(), board_fd=-1, parent=parent)


def worker_with(consumer: Any) -> Worker:
    """Return a worker that was never started, with this fetch loop."""
    worker = Worker(make_process().broker, Registry(), config())
    worker.consumer = consumer
    return worker


def let_overrun(worker: Worker, attempt: Any) -> None:
    """Let the timeout monitor find an attempt that cannot be ended."""
    worker._overran(attempt)


# --- the jobs of a dead child


def record_of(
    job: str | Job,
    *,
    beside: Sequence[str] = (),
    token: int = 7,
    started: float = 1.0,
    limit_at: float = NEVER,
    timed_out: bool = False,
    ended: bool = False,
) -> Slot:
    """Return what a dead child left in shared memory about the attempt in one of its threads.

    Args:
        job: the job, or the id of one in the queue "default".
        beside: ids of the other jobs of its batch.
        token, started, limit_at: other values than usual.
        timed_out: its time limit was enforced, and it still ran.
        ended: its handler had returned.
    """
    jobs = [make_job(id=ident, token=token) for ident in beside]
    jobs.insert(0, job if isinstance(job, Job) else make_job(id=job, token=token))
    board = Scoreboard.create(1)
    board.mark(make_attempt(jobs[0], slot=0, started=started), [make_attempt(one) for one in jobs])
    board.slots[0].limit_at = limit_at
    board.slots[0].flag = TIMED_OUT if timed_out else ENDED if ended else RUNNING
    (record,) = board.records()
    os.close(board.fd)
    return record


def decided(
    jobs: Sequence[Job],
    records: Sequence[Slot],
    *,
    why: str = "died",
    planned: bool = False,
    registry: Registry | None = None,
) -> list[Settlement]:
    """Return what a supervisor decides about the jobs that a child held which died at 9.0."""
    death = Death("child", why, records, 9.0, planned)
    return decide(jobs, death, registry or registry_of(), NOW_MS)


def salvage_of(
    records: Sequence[Slot], registry: Registry, hooks: Hooks | None = None, *, at: float = 9.0
) -> Callable[[Broker, Sequence[Queue]], None]:
    """Return what settles the jobs of the worker "child", which was killed, called with broker and queues.

    Args:
        records: what ran in its threads.
        registry: the policies.
        hooks: who listens to the ends.
        at: moment of its death (monotonic).
    """
    return partial(salvage, Death("child", "was killed", records, at), Ends(registry, hooks))
