"""Where the worker meets Django: what the settings and the command line say, and the hooks around each job."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from django.db import connections as databases
from django.utils.autoreload import get_child_arguments
from django.utils.module_loading import import_string

from . import connections, hygiene, signals
from .conf import Conf, conf
from .core.errors import Misconfigured, QueueUnavailable
from .core.job import Job
from .core.task import Task, registry, suggest
from .worker import Birth, Hooks, Middleware, Supervisor, Worker, WorkerConfig, adopt, leave

_SIGNALS: Final = {
    name: getattr(signals, name) for name in ("job_started", "job_succeeded", "job_failed", "job_buried")
}


def make_hooks(settings: Conf) -> Hooks:
    """Connection hygiene and signals."""

    def process_start() -> None:
        hygiene.install(
            conn_max_age=settings.worker.conn_max_age, conn_health_checks=settings.worker.conn_health_checks
        )

    return Hooks(
        process_start=process_start,
        process_stop=hygiene.uninstall,
        thread_start=hygiene.thread_start,
        thread_end=hygiene.thread_end,
        before_job=hygiene.before_job,
        after_job=hygiene.after_job,
        wants=wants,
        notify=notify,
    )


def wants(event: str) -> bool:
    """Whether the signal of that name has receivers."""
    return bool(_SIGNALS[event].receivers)


def notify(event: str, *, job: Job, task: Task | None, **details: Any) -> None:
    """Send the signal of that name."""
    signals.emit(_SIGNALS[event], task, job=job, **details)


def make_config(settings: Conf, **chosen: Any) -> WorkerConfig:
    """The settings' worker, with what the command line chose (None = not chosen)."""
    wanted = settings.worker
    fields: dict[str, Any] = {
        "queues": wanted.queues or default_queues(settings),
        "weights": {name: entry.weight for name, entry in settings.queues.items()},
        "threads": wanted.threads,
        "processes": wanted.processes,
        "dispatcher": wanted.dispatcher,
        "grace": wanted.grace,
        "prefetch_ms": wanted.prefetch_ms,
        "heartbeat": wanted.heartbeat,
        "max_jobs": wanted.max_jobs,
        "max_rss": wanted.max_rss,
        "scheduler": wanted.scheduler,
        "splitter": _splitter(wanted.splitter),
    }
    fields |= {name: value for name, value in chosen.items() if value is not None}
    return WorkerConfig(**fields)


def default_queues(settings: Conf) -> tuple[str, ...]:
    """Every queue of kind "python" that a task, the settings or Redis name; and "default"."""
    names = {task.options.queue for task in registry} | set(settings.queues)
    names.add(settings.task_defaults.get("queue", "default"))
    # Without Redis the worker waits for it, with what the project itself names.
    with contextlib.suppress(QueueUnavailable):
        names.update(queue.name for queue in connections.broker().queues() if queue.kind == "python")
    return tuple(sorted(name for name in names if settings.queue(name).kind == "python"))


def unknown_queues(names: Sequence[str], settings: Conf) -> list[str]:
    """Sentences about queues that no task, setting or job has: most often a misspelled ``--queues``."""
    known = default_queues(settings)
    return [f"no task uses the queue {name!r}.{suggest(name, known)}" for name in names if name not in known]


def _splitter(name: str) -> Any:
    if name in ("default", "rendezvous"):
        return name
    try:
        return import_string(name)
    except ImportError as error:
        raise Misconfigured(f"DELAYQ['WORKER']['splitter']: {name} cannot be imported: {error}") from error


def make_middlewares(settings: Conf) -> list[Middleware]:
    """The functions that ``MIDDLEWARE`` names.

    Raises:
        Misconfigured: one cannot be imported or called.
    """
    found: list[Middleware] = []
    for path in settings.middleware:
        try:
            middleware = import_string(path)
        except ImportError as error:
            raise Misconfigured(f"DELAYQ['MIDDLEWARE']: {path} cannot be imported: {error}") from error
        if not callable(middleware):
            raise Misconfigured(f"DELAYQ['MIDDLEWARE']: {path} is not callable")
        found.append(middleware)
    return found


def make_worker(config: WorkerConfig, told: Birth | None = None) -> Worker:
    """A worker on the process's broker; ``told`` by its supervisor, if it has one."""
    settings = conf()
    return Worker(
        connections.broker(),
        registry,
        config,
        make_hooks(settings),
        middlewares=make_middlewares(settings),
        birth=told,
        board=adopt(told) if told is not None else None,
    )


def run_worker(config: WorkerConfig, told: Birth | None = None) -> NoReturn:
    """Work until told to stop, then end this process, past threads of jobs that do not end."""
    code = make_worker(config, told).run()
    embedded = sys.modules.get(f"{__package__}.embedded")
    if embedded is not None:  # leave() skips exit handlers, and the last user of the embedded Redis has to stop it
        embedded.release_all()
    leave(code)


def make_supervisor(config: WorkerConfig, command: Sequence[str], *, reload_on: frozenset[int]) -> Supervisor:
    """A supervisor of such workers. What the supervisor itself opened at start is closed again: it runs no jobs."""
    make_middlewares(conf())  # a wrong path is one error here, not one in each child, again and again
    databases.close_all()
    return Supervisor(command, config, connections.broker, registry, reload_on=reload_on)


def child_command(name: str, options: Mapping[str, Any], queues: Sequence[str]) -> list[str]:
    """How a child is started: as this process was, with the queues spelled out and the system checks left out."""
    called = os.path.basename(sys.argv[0] if sys.argv else "")
    if name in sys.argv and called:
        command = list(get_child_arguments())
    else:  # started from code; the child finds its settings through the environment
        command = [sys.executable, "-m", "django", name]
        for option in ("threads", "grace", "max_jobs", "max_rss", "log_format", "verbosity"):
            if options.get(option) is not None:
                command += [f"--{option.replace('_', '-')}", str(options[option])]
        if options.get("dispatcher") is False:
            command.append("--no-dispatcher")
    return [*command, "--queues", ",".join(queues), "--skip-checks"]


def redis_name(settings: Conf) -> str:
    """Which Redis it is, for people; never with a password."""
    redis = settings.redis
    if redis is None:
        return "embedded Redis"
    if isinstance(redis, Mapping):
        if "url" not in redis:
            return "Redis Sentinel" if "sentinels" in redis else "Redis Cluster"
        redis = str(redis["url"])
    if "://" not in redis:
        return f"Redis of the cache {redis!r}"
    parts = urlsplit(redis)
    place = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"Redis {parts.scheme}://{place}{port}{parts.path}"


def ensure_server() -> str:
    """Ask Redis for its version before anything starts.

    Returns:
        Why Redis cannot be used now; empty if it can. A worker waits for it.

    Raises:
        Misconfigured: waiting would not help (too old, wrong password, wrong settings).
    """
    try:
        connections.broker().check_server()
    except QueueUnavailable as error:
        return str(error)
    return ""
