"""System checks for ``manage.py check``, with ids ``delayq.E…`` and ``delayq.W…``.

They never connect to a server. Checks that need Redis itself are in ``manage.py delayq_check``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.utils.module_loading import import_string

from ..core.errors import Misconfigured
from ..core.inputs import suggest
from ..core.task import registry
from ..outbox.durability import declared
from ..runtime import tasks_setting
from ..settings.conf import SETTING, Conf, conf, context_variable, install_codec, load_function, load_plain_function
from .caches import check_caches
from .databases import check_databases, is_sqlite
from .redis import check_password, check_redis


@register("delayq")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the ``DELAYQ`` setting and everything it names."""
    try:
        config = conf()
    except Misconfigured as error:
        return [
            Error(
                str(error),
                hint=f"Correct settings.{SETTING}; the page 'Settings' of the documentation lists its keys.",
                id="delayq.E001",
            )
        ]
    return [
        *check_redis(config),
        *check_caches(config),
        *_check_middleware(config),
        *_check_paths(config),
        *_check_queues(config),
        *check_databases(config),
    ]


@register("delayq", Tags.database)
def check_tables(
    app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that the tables for durable jobs exist where needed. Runs with ``manage.py check --database default``."""
    try:
        config = conf()
    except Misconfigured:
        return []  # reported as delayq.E001
    from ..outbox.durability import advice_without_table, has_table

    if not config.outbox.enabled or not declared(config) or "migrate" in sys.argv[1:2]:
        return []  # migrate runs the checks before it creates the table
    return [
        Warning(
            f"Jobs are durable, but the database {alias!r} has no table for them yet.",
            hint=f"Durable jobs need it: {advice_without_table(alias)}.",
            id="delayq.W004",
        )
        for alias in databases or ()
        if alias in config.outbox.databases and not has_table(alias)
    ]


@register("delayq", deploy=True)
def check_deployment(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check for configuration that is acceptable in development but not in production."""
    try:
        config = conf()
    except Misconfigured:
        return []  # reported as delayq.E001
    messages: list[CheckMessage] = []
    if config.is_embedded:
        messages.append(
            Warning(
                "The embedded Redis is used: it runs on this machine only, and ends with the processes that use it.",
                hint=f"Run a Redis of its own and set {SETTING}['REDIS'] to its URL.",
                id="delayq.W101",
            )
        )
    messages += check_password(config)
    if declared(config):
        messages += [
            Warning(
                f"The outbox of durable jobs is in SQLite (the database {alias!r}), where a writer makes others wait.",
                hint="Use PostgreSQL, MySQL or MariaDB for it.",
                id="delayq.W103",
            )
            for alias in config.outbox.databases
            if is_sqlite(settings.DATABASES.get(alias, {}))
        ]
    return messages


def _check_middleware(config: Conf) -> Iterator[CheckMessage]:
    for path in config.middleware:
        try:
            middleware = import_string(path)
        except ImportError as error:
            yield Error(
                f"{SETTING}['MIDDLEWARE']: {path} cannot be imported: {error}",
                hint="Correct the dotted path.",
                id="delayq.E005",
            )
        else:
            if not callable(middleware):
                yield Error(
                    f"{SETTING}['MIDDLEWARE']: {path} is not callable.",
                    hint="A middleware takes the next call and returns a call.",
                    id="delayq.E005",
                )


def _check_paths(config: Conf) -> Iterator[CheckMessage]:
    """Check the remaining dotted paths in the settings."""
    for name, path in config.context.items():
        yield from _check_loads(context_variable, name, path, ident="delayq.E008")
    for path in config.schedule_middleware:
        yield from _check_loads(load_function, f"{SETTING}['SCHEDULE_MIDDLEWARE']", path, ident="delayq.E009")
    for name, path in config.hooks.paths().items():
        yield from _check_loads(load_function, f"{SETTING}['HOOKS'][{name!r}]", path, ident="delayq.E010")
    if config.worker.scheduler is not None:
        yield from _check_loads(
            load_plain_function, f"{SETTING}['WORKER']['scheduler']", config.worker.scheduler, ident="delayq.E012"
        )
    for path in config.api.authentication or ():
        yield from _check_loads(load_function, f"{SETTING}['API']['authentication']", path, ident="delayq.E016")
    if config.api.allow is not None:
        yield from _check_loads(
            load_plain_function, f"{SETTING}['API']['allow']", config.api.allow, ident="delayq.E016"
        )
    if config.codec or config.codec_types:
        yield from _check_loads(install_codec, config, ident="delayq.E011")


def _check_loads(load: Callable[..., object], *args: object, ident: str) -> Iterator[CheckMessage]:
    try:
        load(*args)
    except Misconfigured as error:
        yield Error(str(error), hint="Correct the dotted path, or what it names.", id=ident)


def _check_queues(config: Conf) -> Iterator[CheckMessage]:
    shards: dict[str, dict[int, str]] = defaultdict(dict)
    for name, entry in config.queues.items():
        if entry.shards is not None:
            shards[name].setdefault(entry.shards, f"{SETTING}['QUEUES']")
    for task in registry:
        if task.options.shards is not None:
            shards[task.options.queue].setdefault(task.options.shards, f"task {task.name}")
    for name, numbers in shards.items():
        if len(numbers) > 1:
            places = " and ".join(f"{number} ({who})" for number, who in sorted(numbers.items()))
            yield Error(
                f"The queue {name!r} is given different numbers of shards: {places}.",
                hint="Name the number in one place.",
                id="delayq.E006",
            )
    for task in registry:
        if config.queue(task.options.queue).kind == "pull":
            yield Error(
                f"The task {task.name} goes to the queue {task.options.queue!r}, which is of kind 'pull': no worker "
                f"would ever run it.",
                hint="Give the task another queue, or make this one of kind 'python'.",
                id="delayq.E007",
            )
    names = {*config.queues, *(task.options.queue for task in registry), *tasks_setting.queue_names(), "default"}
    for name in config.worker.queues or ():
        if name not in names:
            yield Warning(
                f"{SETTING}['WORKER']['queues'] names {name!r}, a queue of no task.{suggest(name, names)}",
                hint="Correct the name, or list the queue in QUEUES if other programs fill it.",
                id="delayq.W002",
            )
