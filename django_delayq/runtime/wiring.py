"""Wiring of the worker into Django: configuration from settings and command line, and the hooks around each job."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, Final, NoReturn

from django.conf import settings as django_settings
from django.db import connections as databases
from django.utils.autoreload import get_child_arguments

from .. import connections, hygiene, signals
from ..core.errors import Misconfigured, QueueUnavailable
from ..core.inputs import suggest
from ..core.job import Job
from ..core.redis.connection import RedisConfig
from ..core.task import registry
from ..settings.conf import (
    SETTING,
    Conf,
    conf,
    install_codec,
    load_function,
    load_plain_function,
    mask,
    restore_context,
)
from ..worker.child import ChildSpec, adopt, leave
from ..worker.config import WorkerConfig
from ..worker.hooks import Hooks, Middleware
from ..worker.loop import Changes
from ..worker.record import AttemptLog
from ..worker.supervisor import Supervisor
from ..worker.worker import Worker
from . import bookkeeping, tasks_setting

logger: Final = logging.getLogger("django_delayq.runtime")

#: seconds between two renewals of the leases, unless they are short
HEARTBEAT_SECONDS: Final = 5.0


def make_hooks(settings: Conf) -> Hooks:
    """Return the worker's hooks: connection handling, signals, the context of jobs, and the functions in ``HOOKS``.

    Raises:
        Misconfigured: a path in ``HOOKS``, ``CONTEXT``, ``CODEC`` or ``CODEC_TYPES`` cannot be imported, or has
            the wrong type.
    """
    install_codec(settings)
    _ = settings.context_variables  # imports them
    paths = settings.hooks.paths()
    own = {name: load_function(f"{SETTING}['HOOKS'][{name!r}]", path) for name, path in paths.items()}
    worker_init = own.pop("worker_init", None)
    # In a mass failure the same few tracebacks occur thousands of times a second.
    mask_traceback = lru_cache(maxsize=32)(mask().traceback)
    return Hooks(
        process_start=partial(_begin_process, settings, worker_init),
        process_stop=hygiene.uninstall,
        thread_end=hygiene.thread_end,
        before_job=_before_job,
        after_job=hygiene.after_job,
        wants=signals.wants,
        notify=signals.notify,
        log=AttemptLog(mask_text=mask().text, mask_traceback=mask_traceback),
        **own,
    )


def _begin_process(settings: Conf, worker_init: Callable[[], object] | None) -> None:
    hygiene.install(conn_max_age=settings.worker.conn_max_age)
    try:
        if worker_init is not None:
            worker_init()
    except Exception as error:
        logger.exception("worker_init failed")
        raise Misconfigured(
            f"{SETTING}['HOOKS']['worker_init']: {settings.hooks.worker_init} failed, so this process ends: "
            f"{type(error).__name__}: {error}"
        ) from error


def _before_job(job: Job) -> None:
    hygiene.before_job()
    restore_context(job)  # each attempt has its own contextvars.Context, so nothing has to be undone


def make_config(settings: Conf, **chosen: Any) -> WorkerConfig:
    """Return the worker configuration from the settings and command-line choices (None = not chosen).

    Raises:
        Misconfigured: a choice is not one that the settings allow.
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    shared = {one.name for one in fields(WorkerConfig)} & {one.name for one in fields(settings.worker)}
    worker = replace(settings.worker, **{name: given[name] for name in shared & given.keys()})  # checks the choices
    queues = worker.queues or default_queues(settings)
    values = {name: getattr(worker, name) for name in shared} | given
    entries = settings.queues.items()
    values |= {
        "queues": queues,
        "all_queues": not worker.queues,
        "awaited": frozenset(queues) - declared_queues(settings),
        "pulled": frozenset(name for name, entry in entries if entry.kind == "pull"),
        "weights": {name: entry.weight for name, entry in entries},
        "limits": {name: entry.limits for name, entry in entries if entry.limits},
        "heartbeat": min(HEARTBEAT_SECONDS, settings.lease / 3),  # one that is late loses no job
        "timezone": django_settings.TIME_ZONE or "UTC",
    }
    return WorkerConfig(**values)


def with_functions(config: WorkerConfig) -> WorkerConfig:
    """Return the configuration with the function that it names.

    Raises:
        Misconfigured: it cannot be loaded.
    """
    if not isinstance(config.scheduler, str):
        return config
    return replace(config, scheduler=load_plain_function(f"{SETTING}['WORKER']['scheduler']", config.scheduler))


def default_queues(settings: Conf) -> tuple[str, ...]:
    """Return every queue of kind "python" that the project declares or Redis has."""
    names = declared_queues(settings)
    # Without Redis the worker waits for it, with the queues that the project itself names.
    with contextlib.suppress(QueueUnavailable):
        names.update(queue.name for queue in connections.broker().queues() if queue.kind == "python")
    return tuple(sorted(name for name in names if settings.queue(name).kind == "python"))


def declared_queues(settings: Conf) -> set[str]:
    """Return the names of the queues that a task, ``QUEUES`` or a backend of Django's Tasks names, and "default"."""
    names = {task.options.queue for task in registry} | set(settings.queues) | tasks_setting.queue_names()
    return names | {settings.task_defaults.get("queue", "default")}


def check_queues(names: Sequence[str], settings: Conf) -> None:
    """Refuse queues that no task, setting or job has, most often a misspelled ``--queues``.

    Redis is queried only for names that the project does not declare.

    Raises:
        Misconfigured: there is no such queue; the message names the one that may be meant.
        QueueUnavailable: Redis is unreachable.
    """
    declared = declared_queues(settings)
    unknown = [name for name in names if name not in declared]
    in_redis = connections.broker().queue_names() if unknown else ()
    for name in unknown:
        if name not in in_redis:
            raise Misconfigured(
                f"there is no queue {name!r}: no task and no setting names it, and Redis has no such queue."
                f"{suggest(name, {*declared, *in_redis})} If jobs will come into it later, name it in "
                f"{SETTING}['QUEUES']: {{{name!r}: {{}}}}."
            )


def pulled_queues(names: Sequence[str], settings: Conf) -> list[str]:
    """Return messages about queues that workers do not reserve from."""
    return [
        f"the queue {name!r} is of kind 'pull': workers take nothing from it, Queue({name!r}).reserve() does."
        for name in names
        if settings.queue(name).kind == "pull" or getattr(connections.existing_queue(name), "kind", "") == "pull"
    ]


def make_middlewares(settings: Conf) -> list[Middleware]:
    """Return the functions that ``MIDDLEWARE`` names.

    Raises:
        Misconfigured: one cannot be imported or called.
    """
    return [load_function(f"{SETTING}['MIDDLEWARE']", path) for path in settings.middleware]


def make_worker(config: WorkerConfig, child_spec: ChildSpec | None = None) -> Worker:
    """Return a worker on the broker of this process.

    Args:
        config: the worker's configuration.
        child_spec: the child specification from the supervisor, if there is one.
    """
    settings, broker, changes = conf(), connections.broker(), Changes()
    worker = Worker(
        broker,
        registry,
        with_functions(config),
        make_hooks(settings),
        middlewares=make_middlewares(settings),
        duties=bookkeeping.duties(settings, broker, changes, lambda: worker.scope.queues, dispatcher=config.dispatcher),
        changes=changes,
        child_spec=child_spec,
        board=adopt(child_spec) if child_spec is not None else None,
    )
    return worker


def run_worker(config: WorkerConfig, child_spec: ChildSpec | None = None) -> NoReturn:
    """Work until stopped, then end this process without waiting for threads whose jobs still run."""
    code = make_worker(config, child_spec).run()
    # leave() skips exit handlers: the last user of the embedded Redis has to stop it, and buffered spans have to be
    # sent.
    if embedded := sys.modules.get("django_delayq.embedded"):
        embedded.release_all()
    if tracing := sys.modules.get("django_delayq.metrics.tracing"):
        tracing.flush()
    leave(code)


def make_supervisor(config: WorkerConfig, command: Sequence[str], *, reload_on: frozenset[int]) -> Supervisor:
    """Return a supervisor of such workers.

    Database connections that were opened at start are closed again, because the supervisor runs no jobs.
    """
    with_functions(config)
    make_middlewares(conf())
    hooks = make_hooks(conf())  # a wrong path raises one error here, instead of one in every new child
    databases.close_all()
    return Supervisor(command, config, connections.broker, registry, reload_on=reload_on, hooks=hooks)


def child_command(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command line of a child: that of this process, without system checks.

    Only its options for the log count; the rest of its configuration comes with the child specification.
    """
    called = os.path.basename(sys.argv[0] if sys.argv else "")
    if name in sys.argv and called:
        command = list(get_child_arguments())
    else:  # started from code; the child finds its settings through the environment
        command = [sys.executable, "-m", "django", name]
        for option in ("log_format", "verbosity"):
            if options.get(option) is not None:
                command += [f"--{option.replace('_', '-')}", str(options[option])]
    return [*command, "--skip-checks"]


def redis_name(settings: Conf) -> str:
    """Return a readable name of the Redis server, never with a password."""
    redis = settings.redis
    if settings.is_embedded:
        return "embedded Redis"
    if isinstance(redis, str) and "://" not in redis:
        return f"Redis of the cache {redis!r}"
    return f"Redis {RedisConfig.parse(redis).display_url}"


def ensure_server() -> str:
    """Check the version of Redis before anything starts.

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
