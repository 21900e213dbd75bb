"""A running worker in this process: its tasks and jobs, and what a test sees of it and of what it stores."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import redis

from django_delayq.core import Broker, NewJob, Payload, QueueUnavailable, Registry, Task, TaskOptions, new_id
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.events import Event
from django_delayq.core.figures import DepthPoint, read_depths
from django_delayq.core.fsck import assert_invariants
from django_delayq.core.job import STARTED, new_key
from django_delayq.core.options import Limits
from django_delayq.core.records import keys
from django_delayq.worker.child import EXIT_FATAL, EXIT_NO_REDIS, EXIT_OK, EXIT_RECYCLE, EXIT_STUCK
from django_delayq.worker.config import WorkerConfig
from django_delayq.worker.fetch import Stage
from django_delayq.worker.hooks import Hooks
from django_delayq.worker.loop import Changes
from django_delayq.worker.worker import Worker

from .core_calls import ScriptCall
from .event_entries import read_events

DEADLINE = 15.0
#: calls by clients: scripts and waits
ASKED = {f"cmdstat_{name}" for name in ("evalsha", "eval", "blpop", "client|id", "ping", "hgetall", "hello", "client")}


# --- tasks and jobs


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


def put_unheard(broker: Broker, task: str, **options: Any) -> None:
    """Schedule a job whose wake-up token goes to a list that nobody reads."""
    with patch(
        "django_delayq.core.deployment.wake_key", lambda prefix, queue: f"{prefix}:{queue}:where nobody listens"
    ):
        put(Broker(broker.connection, prefix=broker.prefix), task, **options)


class Gate:
    """Task whose attempts wait until the test opens the gate."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self._open = threading.Event()

    def work(self, *_: Any) -> None:
        """Wait for the gate."""
        self._begun.release()
        assert self._open.wait(DEADLINE)

    def wait_begun(self, attempts: int = 1) -> None:
        """Wait until so many more attempts have begun."""
        for _ in range(attempts):
            assert self._begun.acquire(timeout=DEADLINE)

    def open(self) -> None:
        """Let all attempts return."""
        self._open.set()


# --- workers


def config(**changes: Any) -> WorkerConfig:
    """A small worker for the queue ``default``."""
    return WorkerConfig(**{"queues": ("default",), "threads": 3, "grace": 5.0, **changes})


def config_of_settings() -> WorkerConfig:
    """Return the configuration of a worker for the queue ``default`` from Django's settings."""
    from django_delayq.runtime.wiring import make_config, with_functions
    from django_delayq.settings.conf import conf

    return with_functions(make_config(conf(), queues=("default",)))


@contextlib.contextmanager
def working(
    broker: Broker, registry: Registry, settings: WorkerConfig | None = None, hooks: Hooks | None = None, **options: Any
) -> Iterator[Worker]:
    """A worker in this process for the length of a block."""
    worker = Worker(broker, registry, settings or config(), hooks or Hooks(), **options)
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


# --- what a worker does now


def is_resting(worker: Worker) -> bool:
    """True while the worker has nothing to reserve and sleeps."""
    return worker._selector.resting


def is_listening(worker: Worker) -> bool:
    """True while the worker waits for wake-up tokens, because it has room for jobs and knows of none."""
    return bool(worker._selector.waiting)


def is_idle(worker: Worker) -> bool:
    """True while the worker sleeps and any token would wake it."""
    return is_resting(worker) and is_listening(worker)


def learn_all(worker: Worker) -> None:
    """Let the worker take every shard for one with due jobs, as after lost tokens."""
    worker._selector.check_all()


def served_shards(worker: Worker) -> list[tuple[str, int]]:
    """Return queue and number of each shard that the worker reserves from."""
    return [(source.queue.name, source.shard) for source in worker._selector.sources]


def worked_queues(worker: Worker) -> list[str]:
    """Return the names of the queues whose jobs the worker runs."""
    return [queue.name for queue in worker.scope.worked]


def announced_queues(worker: Worker) -> list[str]:
    """Return the names of the queues with which the worker would announce itself now."""
    names: list[str] = worker.entry()["queues"]
    return names


def held_by(worker: Worker) -> int:
    """Return the number of jobs that the worker has reserved and not settled."""
    assert worker.consumer is not None, "the worker runs no jobs"
    return len(worker.consumer.held)


def settled_by(worker: Worker) -> int:
    """Return the number of jobs that the worker has settled."""
    assert worker.consumer is not None, "the worker runs no jobs"
    return worker.consumer.settled


def runs_jobs(worker: Worker) -> bool:
    """Return True once the worker has what it needs to run jobs."""
    return worker.consumer is not None


def free_slots(worker: Worker) -> int:
    """Return the number of threads without an attempt."""
    assert worker.consumer is not None, "the worker runs no jobs"
    return worker.consumer.slots.free


def uncollected_ends(worker: Worker) -> int:
    """Return the number of attempts that have ended and that the worker has not looked at."""
    assert worker.consumer is not None, "the worker runs no jobs"
    return len(worker.consumer.slots.done)


def outage_of(worker: Worker) -> float:
    """Return the seconds for which the worker has been without Redis; 0 while it has it."""
    return worker.health.lasting()


def stops_fetching(worker: Worker) -> bool:
    """True once the worker was stopped or drains, so that it reserves no more."""
    return worker.consumer is not None and worker.consumer.stage > Stage.WORK


def drain(worker: Worker) -> None:
    """Let the worker finish what it holds and end."""
    worker.drain()


def exit_code(worker: Worker) -> int:
    """Return the exit code of the worker's process, were it to end now."""
    return worker.exit_code


# --- trouble


def fails_once(script: str, at: int = 1) -> Callable[[ScriptCall], None]:
    """Return a watcher of calls (``watch_calls``) at which one call of a script, by its number, ends with an error."""
    calls: list[ScriptCall] = []

    def fail(call: ScriptCall) -> None:
        if call.name != script:
            return
        calls.append(call)
        if len(calls) == at:
            raise QueueUnavailable("gone")

    return fail


def takes_longer(script: str, seconds: float) -> Callable[[ScriptCall], None]:
    """Return a watcher of calls (``watch_calls``) at which each call of a script takes so much longer."""

    def wait(call: ScriptCall) -> None:
        if call.name == script:
            time.sleep(seconds)

    return wait


@contextlib.contextmanager
def registry_away(broker: Broker, error: Exception) -> Iterator[None]:
    """Let reads of the registry of queues fail."""
    with patch.object(broker, "served", side_effect=error):
        yield


@contextlib.contextmanager
def waiting_for_redis(worker: Worker, error: Exception) -> Iterator[threading.Event]:
    """Let the reads at the worker's start fail.

    Yields an event: the worker has seen the outage, and now makes a pause that ends only with the test's patience.
    """
    long_pause = threading.Event()

    def refresh(choices: object) -> None:
        if outage_of(worker):
            long_pause.set()
        raise error

    with (
        patch("django_delayq.worker.worker.choices_of", lambda broker, program: {}),
        patch.object(worker.scope, "refresh", refresh),
        patch(
            "django_delayq.core.redis.faults.Backoff.next",
            lambda pause, fault: DEADLINE if long_pause.is_set() else 0.01,
        ),
    ):
        yield long_pause


# --- what is stored


def places(broker: Broker, queue: str = "default") -> dict[str, int]:
    """Count the jobs by place; empty places are left out."""
    counts = broker.inspector.counts(queue)
    names = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


def events_of(broker: Broker, queue: str = "default") -> list[Event]:
    """Return all events of a queue, those of each shard in their order."""
    return [one for number in broker.queue(queue).numbers for one in read_events(broker, queue, number)]


def depths_of(broker: Broker, queues: Sequence[str]) -> dict[str, list[DepthPoint]]:
    """Return the samples of the depth of these queues in the last hour; "" is all of them together."""
    return read_depths(broker, queues, broker.now_ms())


def epoch_of(job: Any) -> int:
    """Return the epoch of the shard that holds a job, of which a handler has the view."""
    number: int = job._job.shard
    return number // keys.MAX_SHARDS


def shards_of_epoch(epoch: int, count: int) -> Sequence[int]:
    """Return the numbers of the first shards of an epoch."""
    return [epoch * keys.MAX_SHARDS + place for place in range(count)]


def calls_of(client: redis.Redis) -> int:
    """Number of calls by clients: scripts and waits, without commands inside scripts and our own reads."""
    stats = client.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if name in ASKED)
