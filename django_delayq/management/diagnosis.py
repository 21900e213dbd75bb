"""The questions of ``delayq_check``: each a function that yields findings. They change nothing in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.core.checks import ERROR, WARNING, run_checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from redis.exceptions import RedisError

from ..connections import other_shards
from ..core.broker import OLDEST_SERVER, Broker
from ..core.errors import DelayQError, Misconfigured
from ..core.redis.scripts import NAMES, server_version
from ..core.task import registry
from ..outbox.stock import stock
from ..settings.conf import conf
from ..status import LOST_AFTER
from ..status.formatting import printable

Level = Literal["OK", "WARN", "ERROR"]

#: seconds by which the clocks may differ before it is worth a warning
SKEW: Final = 1.0
#: jobs of each queue whose task names are looked at
SAMPLE: Final = 250
#: seconds of silence after which a worker counts as gone
SILENCE: Final = LOST_AFTER
#: seconds that a durable job may wait to be sent before it is worth a warning
WAITING: Final = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    level: Level
    what: str
    text: str


Question = Callable[[Broker], Iterator[Finding]]


def settings(*, deploy: bool) -> Iterator[Finding]:
    """The system checks of this package."""
    found = run_checks(tags=["delayq"], include_deployment_checks=deploy)
    for message in found:
        level: Level = "ERROR" if message.level >= ERROR else "WARN" if message.level >= WARNING else "OK"
        yield Finding(level, "settings", f"({message.id}) {message.msg} {message.hint or ''}".strip())
    if not found:
        yield Finding("OK", "settings", "DELAYQ is well formed")


def version(broker: Broker) -> Iterator[Finding]:
    """Is the server new enough?"""
    info = broker.server_info()
    text = f"{info.get('server_name', 'redis')} {info.get('redis_version')}, {info.get('redis_mode', 'standalone')}"
    if server_version(broker.client.info) < OLDEST_SERVER:
        yield Finding("ERROR", "version", f"{text} is too old: install Redis 6.2 or newer")
    else:
        yield Finding("OK", "version", text)
    if info.get("role") == "slave":
        yield Finding("ERROR", "version", "this server is a replica and refuses writes: name the primary, or Sentinel")


def persistence(broker: Broker) -> Iterator[Finding]:
    """What does a restart of Redis lose?"""
    info = broker.server_info()
    if not info.get("aof_enabled"):
        yield Finding("WARN", "persistence", "no append-only file, so a restart loses jobs: set `appendonly yes`")
        return
    if info.get("aof_last_write_status", "ok") != "ok":
        yield Finding("ERROR", "persistence", "Redis could not write its append-only file: is the disk full?")
    fsync = _config(broker, "appendfsync")
    if fsync == "no":
        yield Finding(
            "WARN", "persistence", "appendfsync is `no`, so a power cut loses up to 30 s: use everysec or always"
        )
    else:
        yield Finding("OK", "persistence", f"append-only file, appendfsync {fsync or 'unknown'}")


def eviction(broker: Broker) -> Iterator[Finding]:
    """May Redis throw jobs away when its memory is full?"""
    info = broker.server_info()
    policy, limit = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory") or 0)
    if policy.startswith("allkeys"):
        yield Finding(
            "ERROR", "eviction", f"maxmemory-policy {policy} throws jobs away when memory is full: set noeviction"
        )
        return
    used = int(info.get("used_memory") or 0)
    if limit and used > 0.9 * limit:
        yield Finding("WARN", "eviction", f"{100 * used // limit} % of maxmemory is used; schedule() fails at 100 %")
    yield Finding("OK", "eviction", f"maxmemory-policy {policy}, maxmemory {limit or 'unlimited'}")


def scripts(broker: Broker) -> Iterator[Finding]:
    """Does the server accept every script?"""
    for name in NAMES:
        _, source = broker.scripts.loaded(name)
        try:
            broker.client.script_load(source)
        except RedisError as error:
            yield Finding("ERROR", "scripts", f"{name}: {error}")
            return
    yield Finding("OK", "scripts", f"{len(NAMES)} scripts load")


def clock(broker: Broker) -> Iterator[Finding]:
    """Do this machine and Redis agree on the time? Due times given with ``at=`` are this machine's."""
    before = time.time()
    theirs = broker.now_ms() / 1000
    skew = theirs - (before + time.time()) / 2
    if abs(skew) > SKEW:
        yield Finding("WARN", "clock", f"Redis's clock is {skew:+.1f} s off this machine's: synchronise both (NTP)")
    else:
        yield Finding("OK", "clock", f"Redis's clock is {round(skew * 1000):+d} ms off this machine's")


def tasks(broker: Broker) -> Iterator[Finding]:
    """Is there a registered task for what is stored?"""
    unknown: dict[str, str] = {}
    for queue in broker.queues():
        if queue.kind != "python":
            continue
        for place in ("waiting", "morgue"):
            for view in broker.inspector.page(queue.name, place, limit=SAMPLE).jobs:
                if view.job.task and view.job.task not in registry:
                    unknown.setdefault(view.job.task, queue.name)
    for name, queue_name in sorted(unknown.items()):
        yield Finding(
            "WARN",
            "tasks",
            f"queue {queue_name} has jobs for {printable(name)!r}, which no installed app registers: was it renamed? "
            f"Then give the new one aliases=({printable(name)!r},)",
        )
    if not unknown:
        yield Finding("OK", "tasks", f"{len(registry)} tasks registered, none unknown in the queues")


def shards(broker: Broker) -> Iterator[Finding]:
    """Do the queues have as many shards as the settings and tasks say?"""
    found = other_shards(broker)
    for sentence in found:
        yield Finding("WARN", "shards", sentence)
    if not found:
        yield Finding("OK", "shards", "no queue has another number of shards than is configured")


def workers(broker: Broker) -> Iterator[Finding]:
    """Report overdue jobs, and leases that no dispatcher would take back."""
    now_ms = broker.now_ms()
    alive = [worker for worker in broker.workers() if now_ms - worker["seen_ms"] < SILENCE * 1000]
    queues = broker.inspector.all_counts()
    reserved = sum(counts.reserved for counts in queues)
    if reserved and not any(worker.get("dispatcher") for worker in alive):
        yield Finding(
            "WARN",
            "workers",
            f"{reserved} jobs are held and no dispatcher is running, so what is held for too long does not come back: "
            "start manage.py delayq_dispatcher",
        )
    late = [counts for counts in queues if counts.ready and counts.lag_seconds > SILENCE]
    for counts in late:
        yield Finding(
            "WARN", "workers", f"queue {counts.queue}: {counts.ready} jobs are due, for {counts.lag_seconds:.0f} s"
        )
    if late and not alive:
        yield Finding("ERROR", "workers", "jobs are overdue and no worker is running: start manage.py delayq_worker")
    elif not late:
        yield Finding("OK", "workers", f"{len(alive)} worker processes were heard of in the last {SILENCE:.0f} s")


def migrations() -> Iterator[Finding]:
    """Are the project's tables as its code expects?"""
    try:
        executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        yield Finding("ERROR", "database", f"cannot be read: {printable(str(error), 200)}")
        return
    if missing:
        yield Finding("WARN", "database", f"{len(missing)} migrations are not applied: run manage.py migrate")
    else:
        yield Finding("OK", "database", "all migrations are applied")


QUESTIONS: Final[tuple[Question, ...]] = (version, persistence, eviction, scripts, clock, tasks, shards, workers)


def outbox(max_age: float | None) -> Iterator[Finding]:
    """Do durable jobs get to Redis?"""
    try:
        kept = stock(conf().outbox.databases)
    except Misconfigured:
        return  # an answer of `settings`
    if kept is None:
        return
    age = kept["oldest_waiting_seconds"] or 0.0
    if age > (WAITING if max_age is None else max_age):
        level: Level = "WARN" if max_age is None else "ERROR"
        yield Finding(level, "outbox", f"a durable job has waited {age:.0f} s to be sent: is a dispatcher running?")
    if kept["refused"]:
        yield Finding("WARN", "outbox", f"{kept['refused']} durable jobs were refused: see the outbox in the admin")
    if age <= (WAITING if max_age is None else max_age) and not kept["refused"]:
        yield Finding("OK", "outbox", f"{kept['waiting']} durable jobs wait to be sent, {kept['sent']} are with Redis")


def answers(
    broker: Callable[[], Broker], *, deploy: bool = False, max_outbox_age: float | None = None
) -> Iterator[Finding]:
    """All findings, in order; what makes later questions pointless ends the list of those that need Redis."""
    yield from settings(deploy=deploy)
    if connections[DEFAULT_DB_ALIAS].vendor != "unknown":
        yield from migrations()
        yield from outbox(max_outbox_age)
    try:
        opened = broker()
        opened.now_ms()
    except (DelayQError, RedisError) as error:
        yield Finding("ERROR", "connection", str(error))
        return
    yield Finding("OK", "connection", "Redis answers")
    for question in QUESTIONS:
        try:
            yield from question(opened)
        except (DelayQError, RedisError) as error:
            yield Finding("ERROR", question.__name__, str(error))


def _config(broker: Broker, name: str) -> str | None:
    """A setting of the server, or None where it does not tell (managed services forbid CONFIG)."""
    try:
        answer: Any = broker.client.config_get(name)
    except RedisError:
        return None
    if answer and isinstance(next(iter(answer.values())), dict):  # a cluster answers for each node
        answer = next(iter(answer.values()))
    value = answer.get(name) if answer else None
    return value.decode() if isinstance(value, bytes) else value
