"""A worker program without Django: ``python -m tests.support.worker_program supervise|child|single``.

The environment tells the rest: DQ_URL, DQ_PREFIX, DQ_CONFIG (JSON of WorkerConfig), DQ_PATIENCE, DQ_LEASE and DQ_LISTEN
(the events whose ends leave a line in the list "ends").
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from django_delayq import current_job
from django_delayq.core import Broker, RedisConfig, Registry, Task, TaskOptions, connect
from django_delayq.worker.child import adopt, child_spec, leave
from django_delayq.worker.config import WorkerConfig
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.supervisor import Supervisor
from django_delayq.worker.worker import Worker

FAST = {"retry_in": lambda n: 0.0}


def make_broker() -> Broker:
    connection = connect(RedisConfig.parse(os.environ["DQ_URL"]))
    return Broker(connection, prefix=os.environ["DQ_PREFIX"], lease_ms=int(os.environ.get("DQ_LEASE", "15000")))


BROKER: list[Broker] = []


def tell(word: str) -> None:
    """Leave a trace that the test can read: ``word:id:attempt:pid``."""
    job = current_job()
    assert job is not None
    BROKER[0].client.rpush("trace", f"{word}:{job.id}:{job.attempt}:{os.getpid()}")


def note(word: str = "ran") -> None:
    tell(word)


def wait(seconds: float = 60) -> None:
    """Works until it is told that it may end, or should stop."""
    tell("begun")
    BROKER[0].connection.blocking().blpop(["release"], seconds)
    tell("ended")


def wait_early() -> None:
    wait()


def explode(batch: dict[str, list[str]]) -> None:
    """A merged task: the payload "boom" kills the process."""
    job = current_job()
    assert job is not None
    attempts = ",".join(f"{one.id} {one.attempt}" for one in sorted(job.jobs, key=lambda one: one.id))
    BROKER[0].client.rpush("batches", attempts)
    if any("boom" in payloads for payloads in batch.values()):
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL)


def hold(seconds: float) -> None:
    """Keeps the interpreter lock: nothing else in the process runs."""
    tell("begun")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def crash_once() -> None:
    tell("begun")
    job = current_job()
    if job is not None and job.attempt == 1:
        # To this thread: sent to the process another thread may take it, while this one returns and is acked.
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)


def always_exit() -> None:
    tell("begun")
    os._exit(0)


def brief(seconds: float) -> None:
    tell("begun")
    time.sleep(seconds)
    tell("ended")


def few(seconds: float) -> None:
    brief(seconds)


def deadly(seconds: float) -> None:
    tell("begun")
    time.sleep(seconds)
    os._exit(1)


def stubborn() -> None:
    tell("begun")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            time.sleep(60)
        except BaseException:
            continue


def exhausted(job: Any, error: BaseException) -> None:
    """The hook of all tasks here; ``current_job()`` is its job, wherever it is called."""
    same = current_job()
    seen = "?" if same is None or same.id != job.id else ",".join([job.task, *job.payloads])
    make_broker().client.rpush("ends", f"on_exhausted:{job.id}:{type(error).__name__}:{seen}")


def notify(event: str, *, job: Any, task: Any, error: Any = None, **details: Any) -> None:
    """The framework of this program: leaves a line, and may die of it."""
    client = make_broker().client
    said = details.get("outcome", details.get("reason"))
    client.rpush("ends", f"{event}:{job.id}:{said}:{type(error).__name__}")
    if client.lpop("deadly"):
        os._exit(9)


def hooks() -> Hooks:
    wanted = os.environ.get("DQ_LISTEN", "").split(",")
    return Hooks(wants=lambda event, task: event in wanted, notify=notify)


def registry() -> Registry:
    made = Registry()
    options: dict[Any, dict[str, Any]] = {
        note: {},
        wait: {},
        hold: {},
        crash_once: {},
        always_exit: {},
        stubborn: {"timeout": 0.2, "max_attempts": 1},
        brief: {},
        few: {"concurrency": 3},
        deadly: {"crash_limit": 2},
        wait_early: {"ack": "early"},
        explode: {"merge": True, "batch_size": 10, "crash_limit": 1},
    }
    for function, special in options.items():
        own = {"on_exhausted": exhausted} if os.environ.get("DQ_LISTEN") else {}
        made.add(Task(function, name=function.__name__, options=TaskOptions(**{**FAST, **own, **special})))
    return made


def main(role: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(process)d %(levelname)s %(name)s %(message)s")
    told = json.loads(os.environ.get("DQ_CONFIG", "{}"))
    config = WorkerConfig(**{"queues": ("default",), "threads": 2, **told})
    if role == "supervise":
        command = [sys.executable, "-m", "tests.support.worker_program", "child"]
        sys.exit(Supervisor(command, config, make_broker, registry(), hooks=hooks()).run())
    if role == "broken":
        sys.exit(3)
    made = child_spec() if role == "child" else None
    board = adopt(made) if made else None
    config = made.config if made else config
    BROKER.append(make_broker())
    patience = float(os.environ.get("DQ_PATIENCE", "5"))
    leave(Worker(BROKER[0], registry(), config, hooks(), child_spec=made, board=board, reaction_seconds=patience).run())


if __name__ == "__main__":
    main(sys.argv[1])
