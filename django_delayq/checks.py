"""System checks for ``manage.py check``, with ids ``delayq.E…`` and ``delayq.W…``.

They never connect to a server. Checks that need Redis itself are in ``manage.py delayq_check``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, connections as databases
from redis.connection import parse_url

from .connections import check_cache, embedded_directory, may_use_redis
from .core.errors import Misconfigured
from .core.inputs import suggest
from .core.redis.config import RedisConfig
from .core.task import registry
from .outbox.durability import advice_without_table, declared, has_table
from .outbox.inbox import remembering
from .repair.orders import QUEUE as SYSTEM_QUEUE
from .runtime import tasks_setting
from .settings.conf import SETTING, Conf, conf, install_codec, load_function, load_plain_function

#: hosts that are this machine
_LOCAL: Final = ("", "localhost", "127.0.0.1", "::1")
#: address of a server and number of a database
Place: TypeAlias = tuple[str, int]


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
        *_check_redis(config),
        *_check_caches(config),
        *_check_paths(config),
        *_check_queues(config),
        *_check_limits(config),
        *_check_pools(config),
        *_check_sqlite(config),
        *_check_outbox(config),
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
    if not declared(config) or "migrate" in sys.argv[1:2]:
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
    messages += _check_password(config)
    if declared(config):
        messages += [
            Warning(
                f"The outbox of durable jobs is in SQLite (the database {alias!r}), where a writer makes others wait.",
                hint="Use PostgreSQL, MySQL or MariaDB for it.",
                id="delayq.W103",
            )
            for alias in config.outbox.databases
            if _is_sqlite(settings.DATABASES.get(alias, {}))
        ]
    return messages


def _check_paths(config: Conf) -> Iterator[CheckMessage]:
    """Check the dotted paths in the settings."""
    yield from _check_loads(lambda: config.context_variables, ident="delayq.E008")
    for path in config.middleware:
        yield from _check_loads(load_function, f"{SETTING}['MIDDLEWARE']", path, ident="delayq.E005")
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


def _check_loads(
    load: Callable[..., object],
    *args: object,
    ident: str,
    hint: str = "Correct the dotted path, or what it names.",
) -> Iterator[CheckMessage]:
    try:
        load(*args)
    except Misconfigured as error:
        yield Error(str(error), hint=hint, id=ident)


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


def _check_limits(config: Conf) -> Iterator[CheckMessage]:
    """Find limits of concurrency that are never reached, because a tighter one holds for all these jobs."""
    for task in registry:
        limits, group = (config.queue(task.options.queue).limits, task.options.limits), task.options.group_concurrency
        queue_total, total = (None if one is None else one.total for one in limits)
        for name, number, others in (
            ("concurrency", total, (queue_total,)),
            ("group_concurrency", None if callable(group) else group, (queue_total, total)),
        ):
            least = min((other for other in others if other is not None), default=None)
            if number is not None and least is not None and number > least:
                yield Warning(
                    f"{name}={number} of the task {task.name} never applies: its queue or the task has {least}.",
                    hint="Lower it, raise the other one, or remove it.",
                    id="delayq.W007",
                )


# -- Redis and caches -------------------------------------------------------------------------------------------------


def _check_redis(config: Conf) -> Iterator[CheckMessage]:
    """Check the setting ``REDIS``: a URL, a dict, the alias of a cache, or None for the embedded Redis."""
    redis = config.redis
    if config.is_embedded:
        yield from _check_embedded(config)
    elif isinstance(redis, str) and "://" not in redis:
        hint = "Name a cache on Redis, or the URL of its server."
        yield from _check_loads(check_cache, redis, ident="delayq.E004", hint=hint)
    else:
        try:
            RedisConfig.parse(redis)
        except Misconfigured as error:
            yield Error(
                f"{SETTING}['REDIS']: {error}",
                hint="Give a URL like 'redis://localhost:6379/0', or a dict with SENTINELS or CLUSTER.",
                id="delayq.E002",
            )


def _check_embedded(config: Conf) -> Iterator[CheckMessage]:
    if not may_use_redis():
        return  # `manage.py test` needs no server
    try:
        embedded_directory(config)
        from .embedded import find_binary

        find_binary()
    except Misconfigured as error:
        yield Error(
            str(error),
            hint=f"{SETTING}['REDIS'] takes a URL, or the alias of a Redis cache.",
            id="delayq.E003",
        )


def _check_password(config: Conf) -> Iterator[CheckMessage]:
    """Check that a password crosses the network only by TLS."""
    if config.is_embedded or (isinstance(config.redis, str) and "://" not in config.redis):
        return
    try:
        redis = RedisConfig.parse(config.redis)
    except Misconfigured:
        return  # reported as delayq.E002
    hosts = [host for host, _ in redis.sentinels or redis.cluster_nodes or ((redis.host, redis.port),)]
    remote = [] if redis.path else [host for host in hosts if host not in _LOCAL]
    if remote and not redis.ssl and (redis.password or redis.sentinel_password):
        yield Warning(
            f"The password of Redis at {remote[0]} crosses the network unencrypted.",
            hint="Use TLS: a rediss:// URL, or SSL: True in the dict.",
            id="delayq.W102",
        )


def _check_caches(config: Conf) -> Iterator[CheckMessage]:
    """Find the caches whose ``clear()`` would delete the jobs, which is FLUSHDB whatever their ``KEY_PREFIX`` is.

    Addresses are compared as written. The alias in ``REDIS`` is dedicated to the jobs, so it is not reported unless it
    is the default cache.
    """
    jobs = set(_databases_of_jobs(config))
    for alias, cache in settings.CACHES.items():
        shared = sorted(jobs.intersection(_databases_of_cache(cache)))
        if shared and (alias != config.redis or alias == "default"):
            where, number = shared[0]
            yield Error(
                f"The cache {alias!r} is in the Redis database of the jobs ({where}, database {number}): "
                f"cache.clear() would delete all jobs, whatever its KEY_PREFIX is.",
                hint=f"Give the jobs another database number, for example {SETTING} = {{'REDIS': "
                f"'redis://localhost:6379/1'}}; a Redis Cluster has only one database, so take another server there.",
                id="delayq.E017",
            )


def _databases_of_jobs(config: Conf) -> Iterator[Place]:
    redis = config.redis
    with contextlib.suppress(Misconfigured):  # reported as delayq.E002 and E003
        if config.is_embedded:
            yield _place(str(embedded_directory(config) / "redis.sock"), "", 0, 0)
        elif isinstance(redis, str) and "://" not in redis:
            yield from _databases_of_cache(settings.CACHES.get(redis, {}))
        else:
            parsed = RedisConfig.parse(redis)
            for host, port in parsed.cluster_nodes or ((parsed.host, parsed.port),):
                yield _place(parsed.path, host, port, parsed.db)


def _databases_of_cache(cache: Mapping[str, Any]) -> Iterator[Place]:
    given, options = cache.get("LOCATION") or (), cache.get("OPTIONS") or {}
    for location in re.split("[;,]", given) if isinstance(given, str) else given:
        with contextlib.suppress(ValueError):  # no URL of Redis
            parts: Mapping[str, Any] = parse_url(re.sub(r"\A\s*valkey", "redis", str(location)).strip())
            number = int(parts.get("db") or options.get("db") or 0)
            yield _place(parts.get("path") or "", parts.get("host") or "", int(parts.get("port") or 6379), number)


def _place(path: str, host: str, port: int, number: int) -> Place:
    if path:
        return f"unix:{os.path.realpath(path)}", number
    return f"{'localhost' if host.lower() in _LOCAL else host.lower()}:{port}", number


# -- databases -------------------------------------------------------------------------------------------------------


def _check_outbox(config: Conf) -> Iterator[CheckMessage]:
    durable = declared(config)
    if durable and not config.outbox.databases:
        yield Error(
            f"Durable jobs are switched off, but {durable[0]} has such.",
            hint=f"Name a database in {SETTING}['OUTBOX']['databases'], or take durable=True off there.",
            id="delayq.E013",
        )
    named = [(f"{SETTING}['OUTBOX']['databases']", alias, "delayq.E014") for alias in config.outbox.databases]
    named += [(f"@exactly_once of the task {name}", alias, "delayq.E015") for alias, name in remembering().items()]
    for place, alias, ident in named:
        if alias not in settings.DATABASES:
            yield Error(
                f"{place} names {alias!r}, which is no alias in DATABASES.{suggest(alias, settings.DATABASES)}",
                hint="Correct the name.",
                id=ident,
            )
    if (
        config.worker.queues is not None
        and SYSTEM_QUEUE not in config.worker.queues
        and apps.is_installed("django.contrib.admin")
    ):
        yield Warning(
            f"{SETTING}['WORKER']['queues'] leaves out {SYSTEM_QUEUE!r}, where the admin's orders for many jobs wait.",
            hint=f"Add it, or run a worker of its own for it: delayq_worker --queues {SYSTEM_QUEUE}",
            id="delayq.W005",
        )


def _check_pools(config: Conf) -> Iterator[CheckMessage]:
    for alias in databases:
        options = settings.DATABASES.get(alias, {}).get("OPTIONS") or {}
        pool = options.get("pool")
        if not pool:
            continue
        size = pool.get("max_size", pool.get("min_size", 4)) if isinstance(pool, dict) else 4
        if isinstance(size, int) and size < config.worker.threads:
            yield Warning(
                f"The connection pool of the database {alias!r} has {size} connections for the {config.worker.threads} "
                f"threads of a worker process, so jobs would wait for each other.",
                hint=f"Raise OPTIONS['pool']['max_size'] to {config.worker.threads} or more, or lower "
                f"{SETTING}['WORKER']['threads'].",
                id="delayq.W003",
            )


def _check_sqlite(config: Conf) -> Iterator[CheckMessage]:
    """Check for SQLite file databases whose transactions fail when two of them write concurrently."""
    threads = config.worker.threads * config.worker.processes
    for alias in dict.fromkeys((DEFAULT_DB_ALIAS, *config.outbox.databases)):
        database = settings.DATABASES.get(alias, {})
        options = database.get("OPTIONS") or {}
        name = str(database.get("NAME") or ":memory:")
        mode = str(options.get("transaction_mode") or "").upper()
        in_memory = ":memory:" in name or "mode=memory" in name  # no other process can access it
        if threads > 1 and _is_sqlite(database) and not in_memory and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Warning(
                f"The database {alias!r} is SQLite, whose transactions begin without the right to write: with "
                f"{threads} worker threads jobs and requests fail with 'database is locked'.",
                hint=f"Set DATABASES[{alias!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE', 'timeout': 20}}, so "
                f"that a writer waits up to 20 seconds for the others; or use PostgreSQL, MySQL or MariaDB.",
                id="delayq.W006",
            )


def _is_sqlite(database: Mapping[str, Any]) -> bool:
    """Return True if an entry of ``DATABASES`` is SQLite."""
    return str(database.get("ENGINE", "")).endswith(("sqlite3", "spatialite"))
