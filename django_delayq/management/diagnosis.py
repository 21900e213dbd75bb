"""Checks of ``delayq_check``: generators of findings. They change nothing in Redis."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.core.checks import ERROR, WARNING, run_checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from redis.exceptions import RedisError

from ..connections import other_shards
from ..core.broker import Broker
from ..core.errors import DelayQError, Misconfigured, QueueUnavailable
from ..core.limits import Limiter
from ..core.redis.faults import Fault, classify
from ..core.redis.scripts import raise_clear, script_names
from ..core.task import registry
from ..outbox.durability import advice_without_table, declared, has_table, stock
from ..settings.conf import Conf, conf
from ..status import LOST_AFTER, Finding, Snapshot, take, warnings_of
from ..status.formatting import printable
from ..status.warnings import LARGE_MORGUE, Level, outbox_warnings

Check = Callable[[Broker], Iterator[Finding]]

#: seconds of clock difference above which a warning is printed
SKEW: Final = 1.0
#: jobs of each queue whose task names are checked
SAMPLE: Final = 250
#: beginning of the names of our own tasks, which are none of the project's
OWN_TASKS: Final = "django_delayq."
#: tasks without a time limit that are named
MOST_NAMED: Final = 20


def findings(
    broker: Callable[[], Broker], *, deploy: bool = False, max_outbox_age: float | None = None
) -> Iterator[Finding]:
    """Yield all findings, in order. An error that makes later checks pointless ends those that need Redis."""
    yield from settings(deploy=deploy)
    if connections[DEFAULT_DB_ALIAS].vendor != "unknown":
        yield from databases(max_outbox_age)
    try:
        opened = broker()
        opened.now_ms()
    except (DelayQError, RedisError) as error:
        yield Finding("ERROR", "connection", str(error))
        return
    is_whole = not opened.connection.silent_masters()
    for check in CHECKS:
        try:
            yield from check(opened)
        except QueueUnavailable as error:
            if is_whole:
                yield Finding("ERROR", check.__name__, str(error))
            else:  # the part that does not answer is named by itself
                yield Finding("WARN", check.__name__, "not checked in full while a part of Redis does not answer")
        except (DelayQError, RedisError) as error:
            yield Finding("ERROR", check.__name__, str(error))


def settings(*, deploy: bool) -> Iterator[Finding]:
    """Run the system checks of this package."""
    messages = run_checks(tags=["delayq"], include_deployment_checks=deploy)
    for message in messages:
        level: Level = "ERROR" if message.level >= ERROR else "WARN" if message.level >= WARNING else "OK"
        text = message.msg.rstrip(".") + "." + (f" {message.hint}" if message.hint else "")
        yield Finding(level, "settings", f"({message.id}) {text}")
    if not messages:
        yield Finding("OK", "settings", "DELAYQ is valid")


# -- databases -------------------------------------------------------------------------------------------------------


def databases(max_outbox_age: float | None) -> Iterator[Finding]:
    """Check the default database and those of the outbox."""
    try:
        project = conf()
    except Misconfigured:  # reported by the system checks
        yield from _migrations(DEFAULT_DB_ALIAS)
        return
    for alias in dict.fromkeys((DEFAULT_DB_ALIAS, *project.outbox.databases)):
        if alias in connections:
            yield from _migrations(alias)
    yield from _tables(project)
    kept = stock(project.outbox.databases)
    if kept is not None:
        found = list(outbox_warnings(kept, max_outbox_age))
        fine = Finding("OK", "outbox", f"{kept['waiting']} durable jobs wait to be sent, {kept['sent']} are with Redis")
        yield from found or [fine]


def _migrations(alias: str) -> Iterator[Finding]:
    where, option = ("", "") if alias == DEFAULT_DB_ALIAS else (f" in {alias!r}", f" --database {alias}")
    try:
        executor = MigrationExecutor(connections[alias])
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        is_read_only = _is_read_only(alias)
    except DatabaseError as error:
        yield Finding("ERROR", "database", f"{alias!r} cannot be read: {printable(str(error), 200)}")
        return
    if is_read_only:
        yield Finding("ERROR", "database", f"{alias!r} is read-only: is it a replica? Workers need the primary")
    if missing:
        text = f"{len(missing)} migrations are not applied{where}: run `manage.py migrate{option}`"
        yield Finding("WARN", "database", text)
    else:
        yield Finding("OK", "database", f"all migrations are applied{where}")


def _is_read_only(alias: str) -> bool:
    """Return True if PostgreSQL refuses writes of this user's transactions."""
    if connections[alias].vendor != "postgresql":
        return False
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return bool(cursor.fetchone() == ("on",))


def _tables(project: Conf) -> Iterator[Finding]:
    """Check that durable jobs can be stored."""
    if not project.outbox.databases or not declared(project):
        return
    for alias in project.outbox.databases:
        try:
            lacks_table = alias in connections and not has_table(alias)
        except DatabaseError:
            continue  # reported by `_migrations`
        if lacks_table:
            advice = advice_without_table(alias)
            yield Finding("ERROR", "outbox", f"durable jobs in {alias!r} are refused, for it has no table: {advice}")


# -- Redis -----------------------------------------------------------------------------------------------------------


def version(broker: Broker) -> Iterator[Finding]:
    """Check that the server is new enough, and of the kind that is configured."""
    broker.check_server()
    info = broker.server_info()
    text = f"{info.get('server_name', 'redis')} {info.get('redis_version')}, {info.get('redis_mode', 'standalone')}"
    yield Finding("OK", "version", text)


def persistence(broker: Broker) -> Iterator[Finding]:
    """Check how much a power cut would lose, and if Redis can confirm writes as ``WAIT_…`` demand."""
    for obstacle in broker.scripts.confirmation_obstacles():
        yield Finding("ERROR", "persistence", obstacle)
    if not broker.server_info().get("aof_enabled"):
        return  # a warning of the snapshot
    fsync = _config(broker, "appendfsync")
    if fsync == "no":
        text = "appendfsync is `no`, so a power cut loses up to 30 s: use everysec or always"
        yield Finding("WARN", "persistence", text)
    else:
        yield Finding("OK", "persistence", f"append-only file, appendfsync {fsync or 'unknown'}")


def scripts(broker: Broker) -> Iterator[Finding]:
    """Check that the server accepts every script."""
    for name in script_names():
        _, source = broker.scripts.loaded(name)
        try:
            broker.client.script_load(source)
        except RedisError as error:
            if classify(error) is Fault.TRANSIENT:
                raise_clear(error)
            yield Finding("ERROR", "scripts", f"{name}: {error}")
            return
    yield Finding("OK", "scripts", f"{len(script_names())} scripts load")


def clock(broker: Broker) -> Iterator[Finding]:
    """Compare the clocks of this machine and Redis. Due times given with ``at=`` use this machine's clock."""
    before = time.time()
    theirs = broker.now_ms() / 1000
    skew = theirs - (before + time.time()) / 2
    if abs(skew) > SKEW:
        yield Finding("WARN", "clock", f"Redis's clock is {skew:+.1f} s off this machine's: synchronise both (NTP)")
    else:
        yield Finding("OK", "clock", f"Redis's clock is {round(skew * 1000):+d} ms off this machine's")


def tasks(broker: Broker) -> Iterator[Finding]:
    """Check that stored jobs have registered tasks."""
    unknown: dict[str, str] = {}
    for queue in broker.queues():
        if queue.kind != "python":
            continue
        for place in ("waiting", "morgue"):
            for view in broker.inspector.page(queue.name, place, limit=SAMPLE, partial=True).jobs:
                if view.job.task and view.job.task not in registry:
                    unknown.setdefault(view.job.task, queue.name)
    for name, queue_name in sorted(unknown.items()):
        yield Finding(
            "WARN",
            "tasks",
            f"queue {queue_name} has jobs for {printable(name)!r}, which no installed app registers. "
            f"If it was renamed, give the new task aliases=({printable(name)!r},)",
        )
    if not unknown:
        number = sum(not task.name.startswith(OWN_TASKS) for task in registry)
        yield Finding(
            "OK", "tasks", f"{number} task{'' if number == 1 else 's'} registered, none unknown in the queues"
        )


def limits(broker: Broker) -> Iterator[Finding]:
    """Name the tasks whose handlers may hold a slot for ever."""
    endless = [task for task in registry if task.options.timeout is None and task.options.max_lease is None]
    names = [task.name for task in endless if not task.name.startswith(OWN_TASKS)]
    if not names:
        yield Finding("OK", "limits", "every task has a timeout or a max_lease")
    else:
        shown = ", ".join(sorted(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
        text = f"neither timeout= nor max_lease= limits {shown}; TASK_DEFAULTS sets one for all, so that none hangs"
        yield Finding("OK", "limits", text)


def run_time_limits(broker: Broker) -> Iterator[Finding]:
    """Name the queues and tasks that do not exist, although limits of them were set at run time: these never apply."""
    queues, missing = {queue.name for queue in broker.queues()}, Counter[str]()
    for name in Limiter(broker.registry).own_limits():
        kind, subject, *_ = name.split(":", 2)
        if subject not in queues if kind != "task" else registry.get(subject) is None:
            missing[f"{'task' if kind == 'task' else 'queue'} {subject}"] += 1
    for subject, number in missing.most_common(MOST_NAMED):
        text = f"there is no {printable(subject)}, so {number} of the limits that were set at run time never apply"
        yield Finding("WARN", "limits", f"{text}; correct the name, or remove them with limits.clear()")


def shards(broker: Broker) -> Iterator[Finding]:
    """Compare the number of shards of the queues with the settings and tasks."""
    differences = other_shards(broker)
    for difference in differences:
        yield Finding("WARN", "shards", difference)
    if not differences:
        yield Finding("OK", "shards", "every queue has the configured number of shards")


def snapshot(broker: Broker) -> Iterator[Finding]:
    """Yield the warnings of a snapshot, and for each check without one what is well."""
    now = take(broker, recurring=True, outbox=False)
    found = warnings_of(now)
    yield from found
    named = {one.check for one in found}
    yield from (Finding("OK", check, text) for check, text in _fine(now).items() if check not in named)


def _fine(now: Snapshot) -> dict[str, str]:
    limit = now.redis.maxmemory or "unlimited"
    return {
        "connection": "Redis answers",
        "eviction": f"maxmemory-policy {now.redis.maxmemory_policy}, maxmemory {limit}",
        "pauses": "nothing is paused for good",
        "workers": f"{len(now.alive)} worker processes sent a heartbeat in the last {LOST_AFTER:.0f} s",
        "idle": "no due job waits beside a free slot",
        "morgue": f"no morgue without a limit has more than {LARGE_MORGUE:,} jobs",
    }


CHECKS: Final = (version, persistence, scripts, clock, tasks, limits, run_time_limits, shards, snapshot)


def _config(broker: Broker, name: str) -> str | None:
    """Return a setting of the server, or None if the server does not allow it (managed services forbid CONFIG)."""
    try:
        reply: Any = broker.client.config_get(name)
    except RedisError:
        return None
    if reply and isinstance(next(iter(reply.values())), dict):  # a cluster replies for each node
        reply = next(iter(reply.values()))
    value = reply.get(name) if reply else None
    return value.decode() if isinstance(value, bytes) else value
