"""Checks of ``delayq_check``: functions that yield findings. They change nothing in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.core.checks import ERROR, WARNING, run_checks
from django.db import DEFAULT_DB_ALIAS, connections
from redis.exceptions import RedisError

from ..connections import other_shards
from ..core.broker import Broker
from ..core.errors import DelayQError, QueueUnavailable
from ..core.layouts import queue_policy
from ..core.redis.faults import Fault, classify
from ..core.redis.scripts import raise_clear, script_names
from ..core.task import registry
from ..status import LOST_AFTER, take
from ..status.formatting import printable
from ..status.idle import idle_beside_due
from .databases import databases
from .findings import Check, Finding, Level
from .pauses import pauses

#: seconds of clock difference above which a warning is printed
SKEW: Final = 1.0
#: jobs of each queue whose task names are checked
SAMPLE: Final = 250
#: seconds without a heartbeat after which a worker counts as gone
SILENCE: Final = LOST_AFTER
#: jobs in a morgue without a limit above which a warning is printed
LARGE_MORGUE: Final = 100_000
#: beginning of the names of our own tasks, which are none of the project's
OWN_TASKS: Final = "django_delayq."
#: tasks without a time limit that are named
MOST_NAMED: Final = 20


def settings(*, deploy: bool) -> Iterator[Finding]:
    """Run the system checks of this package."""
    messages = run_checks(tags=["delayq"], include_deployment_checks=deploy)
    for message in messages:
        level: Level = "ERROR" if message.level >= ERROR else "WARN" if message.level >= WARNING else "OK"
        text = message.msg.rstrip(".") + "." + (f" {message.hint}" if message.hint else "")
        yield Finding(level, "settings", f"({message.id}) {text}")
    if not messages:
        yield Finding("OK", "settings", "DELAYQ is valid")


def version(broker: Broker) -> Iterator[Finding]:
    """Check that the server is new enough, and of the kind that is configured."""
    broker.check_server()
    info = broker.server_info()
    text = f"{info.get('server_name', 'redis')} {info.get('redis_version')}, {info.get('redis_mode', 'standalone')}"
    yield Finding("OK", "version", text)


def persistence(broker: Broker) -> Iterator[Finding]:
    """Check what a restart of Redis would lose, and if Redis can confirm writes as ``WAIT_…`` demand."""
    for obstacle in broker.scripts.confirmation_obstacles():
        yield Finding("ERROR", "persistence", obstacle)
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
    """Check that Redis does not evict jobs when its memory is full."""
    info = broker.server_info()
    policy, limit = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory") or 0)
    if policy.startswith("allkeys"):
        yield Finding(
            "ERROR", "eviction", f"maxmemory-policy {policy} deletes jobs when memory is full: set noeviction"
        )
        return
    used = int(info.get("used_memory") or 0)
    if limit and used > 0.9 * limit:
        yield Finding("WARN", "eviction", f"{100 * used // limit} % of maxmemory is used; schedule() fails at 100 %")
    yield Finding("OK", "eviction", f"maxmemory-policy {policy}, maxmemory {limit or 'unlimited'}")


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


def shards(broker: Broker) -> Iterator[Finding]:
    """Compare the number of shards of the queues with the settings and tasks."""
    differences = other_shards(broker)
    for difference in differences:
        yield Finding("WARN", "shards", difference)
    if not differences:
        yield Finding("OK", "shards", "every queue has the configured number of shards")


def workers(broker: Broker) -> Iterator[Finding]:
    """Report overdue jobs, and leases that no dispatcher would take back."""
    now_ms = broker.now_ms()
    alive = [worker for worker in broker.workers() if abs(now_ms - worker["seen_ms"]) < SILENCE * 1000]
    queues = broker.inspector.all_counts(partial=True)
    reserved = sum(counts.reserved for counts in queues)
    if reserved and not any(worker.get("dispatcher") for worker in alive):
        yield Finding(
            "WARN",
            "workers",
            f"{reserved} jobs are reserved and no dispatcher is running, so jobs of dead workers are not run again: "
            "start manage.py delayq_dispatcher",
        )
    late = [counts for counts in queues if counts.ready and counts.lag_seconds > SILENCE]
    for counts in late:
        text = f"queue {counts.queue}: {counts.ready} jobs are due, the oldest for {counts.lag_seconds:.0f} s"
        if (starving := counts.starving) and starving.seconds > SILENCE:
            text += (
                f"; those of priority {starving.priority} wait for {starving.seconds:.0f} s behind more urgent ones: "
            )
            text += "add workers, or set starve_after in QUEUES"
        yield Finding("WARN", "workers", text)
    if late and not alive:
        yield Finding("ERROR", "workers", "jobs are overdue and no worker is running: start manage.py delayq_worker")
    elif not late:
        yield Finding("OK", "workers", f"{len(alive)} worker processes sent a heartbeat in the last {SILENCE:.0f} s")


def idle(broker: Broker) -> Iterator[Finding]:
    """Report due jobs that wait although a process that serves their queue has free slots."""
    found = idle_beside_due(take(broker, outbox=False))
    for queue, worker in found.items():
        text = (
            f"queue {printable(queue)} has due jobs, and worker {printable(worker.name)}, which serves it, has had free"
        )
        text += (
            f" slots for {worker.idle_seconds:.0f} s: see its log; if that gives no reason, restart it and report it"
        )
        yield Finding("WARN", "idle", text)
    if not found:
        yield Finding("OK", "idle", "no due job waits beside a free slot")


def morgue(broker: Broker) -> Iterator[Finding]:
    """Check that no morgue grows without a limit."""
    is_unlimited = False
    for counts in broker.inspector.all_counts(partial=True):
        queue = broker.known_queue(counts.queue) if counts.morgue > LARGE_MORGUE else None
        if queue is not None and not queue_policy(queue.layout)["limits"].keys() & {"morgue_max", "morgue_ttl"}:
            is_unlimited = True
            text = f"queue {counts.queue}: {counts.morgue:,} jobs in a morgue without a limit: set morgue_max or "
            yield Finding("WARN", "morgue", f"{text}morgue_ttl in QUEUES, and repair or discard what is there")
    if not is_unlimited:
        yield Finding("OK", "morgue", f"no morgue without a limit has more than {LARGE_MORGUE:,} jobs")


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


CHECKS: Final[tuple[Check, ...]] = (
    version,
    persistence,
    eviction,
    scripts,
    clock,
    tasks,
    limits,
    shards,
    morgue,
    workers,
    idle,
    pauses,
)


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
    silent = opened.connection.silent_masters()
    for part in silent:
        yield Finding("ERROR", "connection", f"{part}: no answer; start that node, or fail over to its replica")
    if not silent:
        yield Finding("OK", "connection", "Redis answers")
    for check in CHECKS:
        try:
            yield from check(opened)
        except QueueUnavailable as error:
            if not silent:
                yield Finding("ERROR", check.__name__, str(error))
            else:  # that error stands above already
                yield Finding("WARN", check.__name__, "not checked in full while a part of Redis does not answer")
        except (DelayQError, RedisError) as error:
            yield Finding("ERROR", check.__name__, str(error))


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
