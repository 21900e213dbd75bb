"""Stage of the tests of the backend: the two worlds of Tasks, records, and registered tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.backends import compat, registration, results
from django_delayq.backends.backend import adopt_tasks
from django_delayq.backends.compat import (
    InvalidTask,
    InvalidTaskBackend,
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task,
)
from django_delayq.backends.errors import Crashed, Gone, JobTimeout, ResultTooLarge
from django_delayq.backends.registration import priority_class
from django_delayq.backends.results import Record
from django_delayq.core import Broker, registry
from django_delayq.core.job import Job
from django_delayq.core.outcomes import Settlement
from django_delayq.core.task import Task
from django_delayq.runtime import tasks_setting, wiring
from django_delayq.settings.conf import conf
from django_delayq.signals import notify
from django_delayq.worker.ends import End, policy_of

__all__ = [
    "BEGIN",
    "END",
    "WORLD",
    "Crashed",
    "Gone",
    "InvalidTask",
    "InvalidTaskBackend",
    "Job",
    "JobTimeout",
    "Record",
    "ResultTooLarge",
    "Task",
    "TaskContext",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "adopt_tasks",
    "be_before_django_6",
    "check_world",
    "compat",
    "crash",
    "create",
    "end",
    "forget",
    "key_of",
    "known",
    "make_worker",
    "notify_of_crash",
    "overrun",
    "priority_class",
    "registry",
    "results",
    "settle",
    "start",
    "task",
]

MINUTE = 60_000
#: package of the framework, and the name of its logger
WORLD = "django.tasks" if compat.NATIVE else "django_tasks"
check_world = tasks_setting.check_world
BEGIN = "2030-01-01T00:00:00+00:00"
END = "2030-01-01T00:00:01+00:00"
known = registration.known


def make_worker(**options: Any) -> Any:
    """Return a worker of this process."""
    return wiring.make_worker(wiring.make_config(conf(), **options))


def be_before_django_6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of ``TASKS`` see a Django without Tasks."""
    monkeypatch.setattr(tasks_setting, "_NATIVE", False)


def forget(function: Callable[..., Any]) -> None:
    """Take the task of a function out of the registries."""
    task = registration._known.pop(function, None)
    if task is not None:
        registry.remove(task)


# --- records: the steps in the life of a job


def key_of(broker: Broker, ident: str) -> bytes:
    """Return the Redis key of the record of a result."""
    return results.key_of(broker, ident)


def create(broker: Broker, ident: str, head: str, ttl_ms: int = MINUTE) -> None:
    results.write(broker, ident, "create", ttl_ms, {"head": head, "state": "READY"})


def start(broker: Broker, job: Job, head: str = "{}", at: str = BEGIN) -> Record | None:
    """Write the start of an attempt as its worker does."""
    fields = {"head": head, "state": "RUNNING", "first": at, "last": at}
    return results.write(broker, job.id, "start", MINUTE, fields, token=job.token, worker="w")


def end(broker: Broker, job: Job, state: str = "READY", error: str = "", **fields: str) -> Record | None:
    """Write the end of an attempt as its worker does."""
    fields = {"head": "{}", "first": BEGIN, "last": BEGIN, "end": END, "state": state, **fields}
    return results.write(broker, job.id, "end", MINUTE, fields, token=job.token, worker="w", error=error)


# --- the end of an attempt whose process is gone


def settle(broker: Broker, settlement: Settlement) -> None:
    assert broker.queue(settlement.job.queue).settle([settlement]) == [True]


def notify_of_crash(job: Job) -> None:
    """Notify of a crash, as the process does that settles the job."""
    notify("job_failed", job=job, task=registry.get(job.task), error=Crashed("killed by signal 9"), retry_in=0.0)


def crash(broker: Broker, job: Job) -> None:
    """Settle the job of a dead process."""
    settle(broker, End(job, policy_of(registry.get(job.task), job)).crashed("killed by signal 9"))


def overrun(broker: Broker, job: Job) -> None:
    """Settle a job whose process was ended after its time limit."""
    settle(broker, End(job, policy_of(registry.get(job.task), job)).overran())
