"""Tasks of Django's framework for the tests of the backend."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from django.db import transaction

from django_delayq import Bury, Release, Retry, connections, current_job

from .stage import TaskContext, key_of, task

#: what the tasks saw
seen: list[Any] = []


@task
def noop(*args: Any, **kwargs: Any) -> None:
    return None


@task()
async def noop_async(*args: Any, **kwargs: Any) -> None:
    return None


@task
def meaning_of_life() -> int:
    return 42


@task(priority=50, queue_name="mail")
def letter(to: str, *, copies: int = 1) -> dict[str, Any]:
    return {"to": to, "copies": copies, "by": ("post", "plane")}


@task
async def fetch(number: int) -> list[int]:
    job = current_job()
    seen.append(job.id if job else None)
    return [number, number + 1]


@task
def fail_value() -> None:
    raise ValueError("This Task failed due to ValueError")


@task
def fail_exit() -> None:
    raise SystemExit("This Task failed due to SystemExit")


@task
def fail_complex() -> None:
    raise ValueError(ValueError("This task failed"))


@task
def return_complex() -> Any:
    return meaning_of_life


@task
def return_bytes() -> bytes:
    return b"\xff\xfe"


@task
def return_much(size: int) -> str:
    return "x" * size


@task(takes_context=True)
def own_id(context: TaskContext) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
def look_around(context: TaskContext, number: int) -> list[Any]:
    result = context.task_result
    seen.append((context.attempt, result.status.value, result.args, result.worker_ids, len(result.errors)))
    return [context.attempt, number]


@task(takes_context=True)
async def look_around_async(context: TaskContext) -> int:
    return int(context.attempt)


@task(takes_context=True)
def third_time_lucky(context: TaskContext) -> str:
    seen.append((context.attempt, len(context.task_result.errors)))
    if context.attempt < 3:
        raise ConnectionError(f"attempt {context.attempt}")
    return "at last"


@task
def verdict(word: str) -> None:
    raise {"retry": Retry("again", delay=0), "bury": Bury("never"), "release": Release("not now", delay=3600)}[word]


@task
def leak() -> None:
    transaction.atomic().__enter__()


@task
def die(flag: str) -> str:
    """Kills its process the first time."""
    if not Path(flag).exists():
        Path(flag).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@task
def wait_for(began: str, go: str) -> str:
    """Runs until a file of that name is there."""
    Path(began).touch()
    while not Path(go).exists():
        time.sleep(0.01)
    return "gone on"


@task(takes_context=True)
def fail_once(context: TaskContext) -> str:
    if context.attempt == 1:
        raise ConnectionError("try later")
    return "fine"


@task(takes_context=True)
def forget_me(context: TaskContext, number: int) -> int:
    """Takes its own record away."""
    broker = connections.broker()
    broker.client.delete(key_of(broker, context.task_result.id))
    return number
