"""One attempt through its pipeline, without a queue: the job, the call of its handler, and what was decided then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from django_delayq.core import Job, Payload, Registry, Settlement, Task, TaskOptions
from django_delayq.core.codec import decode_args, encode, encode_args
from django_delayq.core.job import STARTED, UNCLEAR, UNRENEWED, new_key
from django_delayq.core.retry import MAX_DELAY
from django_delayq.worker.attempt import NEVER, Attempt, BatchAttempt, CurrentJob, view_of as handler_view
from django_delayq.worker.ends import End, policy_of, safe_delay
from django_delayq.worker.execution import Execution, ack_early
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.record import AttemptLog, error_record, logger as attempt_logger
from django_delayq.worker.shards import Pace, Source
from django_delayq.worker.slots import EventLoop, Slots
from django_delayq.worker.timeouts import TimeoutMonitor

from .worker_stage import registry_of

#: name of the logger that has the lines of attempts
ATTEMPT_LOGGER = attempt_logger.name


def make_job(**changes: Any) -> Job:
    """A reserved job as a worker would hold it."""
    queue, ident = changes.get("queue", "default"), changes.get("id", "job-1")
    values = {
        "queue": queue,
        "shard": 0,
        "id": ident,
        "task": "work",
        "key": blake2b(f"{queue}/{ident}".encode(), digest_size=16).digest(),
        "args": b"",
        "options_json": b"",
        "priority": 4,
        "due_ms": 1_700_000_000_000,
        "token": 7,
        "reserves": 1,
        "worker": "w",
    }
    return Job(**{**values, **changes})


def payloads_of(*values: Any) -> tuple[Payload, ...]:
    """Payloads as a merged job in a worker's hands has them."""
    return tuple(Payload(encode(value), str(score), new_key()) for score, value in enumerate(values, 1))


def make_attempt(job: Job | None = None, **changes: Any) -> Attempt:
    """A run of a job that no Redis knows."""
    connection = SimpleNamespace(cluster=False, limited=lambda seconds: contextlib.nullcontext())
    queue: Any = SimpleNamespace(name="default", deployment=SimpleNamespace(connection=connection))
    source = Source(queue, 0, Pace())
    now = time.monotonic()
    attempt = Attempt(job or make_job(), source, now, now + 14, time.time() * 1000 - now * 1000)
    attempt.slot = 0
    for name, value in changes.items():
        setattr(attempt, name, value)
    return attempt


# --- the call of the handler


def perform(
    attempt: Attempt | Sequence[Attempt],
    registry: Registry,
    hooks: Hooks | None = None,
    *,
    middlewares: Any = (),
    timeout_monitor: Any = None,
) -> Attempt:
    """Run an attempt, or one at several merged jobs, as a slot does."""
    whole = attempt if isinstance(attempt, Attempt) else BatchAttempt(list(attempt))
    execution = Execution(registry, hooks or Hooks(), middlewares)
    if timeout_monitor is not None:
        execution.timeout_monitor = timeout_monitor
    execution(whole)
    return whole


def execute(
    function: Callable[..., Any],
    *args: Any,
    hooks: Hooks | None = None,
    middlewares: Any = (),
    job: Job | None = None,
    **options: Any,
) -> Attempt:
    """Run ``function`` as the handler of a job, without any Redis."""
    registry = Registry()
    registry.add(Task(function, name="work", options=TaskOptions(**options)))
    attempt = make_attempt(job or make_job(args=encode_args(args, {})))
    return perform(attempt, registry, hooks, middlewares=middlewares)


def execute_batch(
    function: Callable[..., Any], jobs: list[Job], hooks: Hooks | None = None, **options: Any
) -> BatchAttempt:
    """Run ``function`` as the handler of several merged jobs, without any Redis."""
    attempt = BatchAttempt([make_attempt(job) for job in jobs])
    attempt.slot = 0
    registry = registry_of(function, **{"merge": True, "batch_size": 100, **options})
    for member in attempt.members:
        member.job.task = function.__name__
    perform(attempt, registry, hooks)
    return attempt


def acks_early(attempt: Attempt) -> bool:
    """Ack a job before its handler begins. Return True if it may begin."""
    return ack_early(attempt)


def strike(monitor: TimeoutMonitor, attempt: Attempt) -> None:
    """Let the monitor look around at the moment at which the attempt's time limit ends."""
    monitor._check(attempt.limit_at)


def strike_while_disarmed(timeout_monitor: TimeoutMonitor, attempt: Attempt) -> BaseException | None:
    """Enforce the limit of an attempt whose thread waits to disarm it; return what that thread raised."""
    raised, over = list[BaseException](), threading.Event()

    def run() -> None:
        try:
            timeout_monitor.limited(attempt, 0, over.wait)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while attempt.limit_at == NEVER:
        time.sleep(0.001)
    with timeout_monitor._condition:
        over.set()
        time.sleep(0.1)  # the thread arrives at the lock, of which nothing tells
        strike(timeout_monitor, attempt)
    thread.join(10)
    return raised[0] if raised else None


def idle_slots(count: int) -> Slots:
    """Return threads for attempts that were not started; what runs in them is up to the test."""
    return Slots(count, lambda attempt: None, Hooks(), lambda: None)


# --- decisions about one end


def end_by_error(
    job: Job, policy: TaskOptions, error: BaseException, started_ms: int, run_ms: int, **details: Any
) -> Settlement:
    """Return the end of an attempt that raised."""
    return End(job, policy, started_ms, run_ms).raised(error, **details)


def end_by_overrun(job: Job, policy: TaskOptions, started_ms: int, run_ms: int, stack: str = "") -> Settlement:
    """Return the end of an attempt that ignored its time limit."""
    return End(job, policy, started_ms, run_ms).overran(stack)


def end_by_crash(job: Job, policy: TaskOptions, why: str, **details: Any) -> Settlement:
    """Return the end of an attempt whose process died."""
    return End(job, policy).crashed(why, **details)


def end_by_lost_lease(job: Job, policy: TaskOptions) -> Settlement:
    """Return the end of an attempt whose lease ran out."""
    return End(job, policy).lost()


def end_unbegun(job: Job, policy: TaskOptions, *args: Any, **details: Any) -> Settlement:
    """Return the end of an attempt that did not begin."""
    return End(job, policy).give_back(*args, **details)


def end_unprepared(job: Job, policy: TaskOptions, error: BaseException, now_ms: float) -> Settlement:
    """Return the end of an attempt that could not begin."""
    return End(job, policy).not_prepared(error, now_ms)


def end_unknown(job: Job, policy: TaskOptions, now_ms: float, *, elsewhere: bool, jitter: float) -> Settlement:
    """Return the end of an attempt at a job of an unknown task."""
    return End(job, policy).unknown_task(now_ms, jitter=jitter, is_known=lambda: elsewhere)
