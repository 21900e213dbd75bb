"""Shared helpers: tasks in a registry of their own, attempts without a queue, a worker in a block."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import redis

from django_delayq.core import Broker, Job, NewJob, Payload, Registry, Task, TaskOptions, new_id
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import new_key
from django_delayq.worker.attempt import Attempt, BatchAttempt
from django_delayq.worker.changes import Changes
from django_delayq.worker.config import WorkerConfig
from django_delayq.worker.execution import Execution
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.pace import Pace
from django_delayq.worker.process import Process
from django_delayq.worker.redis_health import RedisHealth
from django_delayq.worker.shard_selector import Source
from django_delayq.worker.worker import Worker

DEADLINE = 15.0
#: a time of Redis, Unix ms
NOW_MS = 1_700_000_000_000.0
#: calls by clients: scripts and waits
ASKED = {f"cmdstat_{name}" for name in ("evalsha", "eval", "blpop", "client|id", "ping", "hgetall", "hello", "client")}


def registry_of(*functions: Callable[..., Any], **options: Any) -> Registry:
    """A registry with these functions under their own names."""
    registry = Registry()
    for function in functions:
        registry.add(Task(function, name=function.__name__, options=TaskOptions(**options)))
    return registry


def registry_named(name: str, function: Callable[..., Any]) -> Registry:
    """A registry with a function under another name than its own."""
    registry = Registry()
    registry.add(Task(lambda *args: function(*args), name=name, options=TaskOptions()))
    return registry


def make_job(**changes: Any) -> Job:
    """A reserved job as a worker would hold it."""
    values = {
        "queue": "default",
        "shard": 0,
        "id": "job-1",
        "task": "work",
        "key": new_key(),
        "args": b"",
        "options_json": b"",
        "priority": 4,
        "due_ms": 1_700_000_000_000,
        "token": 7,
        "reserves": 1,
        "worker": "w",
    }
    return Job(**{**values, **changes})


def make_attempt(job: Job | None = None, **changes: Any) -> Attempt:
    """A run of a job that no Redis knows."""
    connection = SimpleNamespace(cluster=False, limited=lambda seconds: contextlib.nullcontext())
    queue: Any = SimpleNamespace(name="default", broker=SimpleNamespace(connection=connection))
    source = Source(queue, 0, Pace())
    now = time.monotonic()
    attempt = Attempt(job or make_job(), source, now, now + 14, time.time() * 1000 - now * 1000)
    attempt.slot = 0
    for name, value in changes.items():
        setattr(attempt, name, value)
    return attempt


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
    Execution(registry, hooks or Hooks(), middlewares)(attempt)
    return attempt


def put(
    broker: Broker, task: str, *args: Any, id: str = "", delay_ms: int = 0, queue: str = "default", **options: Any
) -> str:
    """Schedule a job; returns its id."""
    new = NewJob(id or new_id(), task, encode_args(args, {}), delay_ms=delay_ms, **options)
    broker.queue(queue).schedule(new)
    return new.id


def put_payload(
    broker: Broker,
    task: str,
    id: str,
    payload: Any,
    *,
    score: float = 1,
    queue: str = "default",
    key: bytes = b"",
    **options: Any,
) -> str:
    """Schedule a merged job; returns the outcome. ``key``: that of the payload, if not a new one."""
    new = NewJob(
        id,
        task,
        payload=Payload(encode(payload), str(score), key or new_key()),
        **{"delay_ms": 0, "on_conflict": "merge", "due_policy": "keep", **options},
    )
    return broker.queue(queue).schedule(new)


def payloads_of(*values: Any) -> tuple[Payload, ...]:
    """Payloads as a merged job in a worker's hands has them."""
    return tuple(Payload(encode(value), str(score), new_key()) for score, value in enumerate(values, 1))


def execute_batch(
    function: Callable[..., Any], jobs: list[Job], hooks: Hooks | None = None, **options: Any
) -> BatchAttempt:
    """Run ``function`` as the handler of several merged jobs, without any Redis."""
    attempt = BatchAttempt([make_attempt(job) for job in jobs])
    attempt.slot = 0
    registry = registry_of(function, **{"merge": True, "batch_size": 100, **options})
    for member in attempt.members:
        member.job.task = function.__name__
    Execution(registry, hooks or Hooks())(attempt)
    return attempt


def config(**changes: Any) -> WorkerConfig:
    """A small worker for the queue ``default``."""
    return WorkerConfig(**{"queues": ("default",), "threads": 3, "grace": 5.0, **changes})


def make_process(
    broker: Broker | None = None, registry: Registry | None = None, settings: WorkerConfig | None = None, **changes: Any
) -> Process:
    """Return the object that the parts of a worker process share; without a Redis unless there is a broker."""
    none: Any = SimpleNamespace(lease_ms=15_000, tally=SimpleNamespace(ended=lambda *_: None))
    return Process(
        **{
            "name": "w",
            "program": "w",
            "config": settings or config(),
            "broker": broker or none,
            "registry": registry or Registry(),
            "hooks": Hooks(),
            "health": RedisHealth(),
            "changes": Changes(),
            **changes,
        }
    )


@contextlib.contextmanager
def working(
    broker: Broker, registry: Registry, settings: WorkerConfig | None = None, hooks: Hooks | None = None, **options: Any
) -> Iterator[Worker]:
    """A worker in this process for the length of a block."""
    worker = Worker(broker, registry, settings or config(), hooks, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(2.0)


def run_dry(
    broker: Broker, registry: Registry, hooks: Hooks | None = None, *, middlewares: Any = (), **changes: Any
) -> Worker:
    """Let a worker do everything that is ready now."""
    with working(broker, registry, config(burst=True, **changes), hooks, middlewares=middlewares) as worker:
        assert worker.done.wait(DEADLINE), "the worker did not run dry"
    return worker


def eventually(condition: Callable[[], Any], what: str = "", *, seconds: float = DEADLINE) -> Any:
    """The first true value of ``condition()``; for facts in Redis, of which no event tells."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"never came true: {what or condition}"
        threading.Event().wait(0.01)
    return value


def places(broker: Broker, queue: str = "default") -> dict[str, int]:
    """Count the jobs by place; empty places are left out."""
    counts = broker.inspector.counts(queue)
    names = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def calls_of(client: redis.Redis) -> int:
    """Number of calls by clients: scripts and waits, without commands inside scripts and our own reads."""
    stats = client.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if name in ASKED)
