"""Rendering of the status as lines of text: data in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from ..core.task import registry
from ..settings.conf import conf
from .formatting import duration, printable, table
from .idle import idle_beside_due
from .json_form import human_bytes
from .snapshot import PLACES, QueueStatus, RecurringStatus, Snapshot, WorkerStatus

if TYPE_CHECKING:
    from ..outbox.durability import Stock

NO_QUEUE: Final = "No queue yet: nothing was ever scheduled."
NO_WORKER: Final = "No worker is running. Start one: manage.py delayq_worker"
PRODUCERS_PAUSED: Final = (
    "Producers are paused: no queue takes new jobs. Resume: manage.py delayq_queue resume-producers"
)
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def report(snapshot: Snapshot) -> list[str]:
    """Return the lines of the status report that is printed once."""
    lines = [server_line(snapshot), *unreachable_lines(snapshot), ""]
    rules = [rules_of(queue, snapshot.now_ms) for queue in snapshot.queues]
    last = ("done", "rules") if any(rules) else ("done",)
    rows = [
        (
            queue.name,
            *(getattr(queue.counts, place) for place in PLACES),
            duration(queue.lag_seconds),
            *(queue.counts.counters.get("acked", 0), rules[place])[: len(last)],
        )
        for place, queue in enumerate(snapshot.queues)
    ]
    lines += table(("queue", *PLACES, "lag", *last), rows) if rows else no_queue(snapshot)
    lines += ["", PRODUCERS_PAUSED] if snapshot.producers_paused_ms is not None else []
    if snapshot.outbox is not None and any(snapshot.outbox.values()):
        lines += ["", outbox_line(snapshot.outbox)]
    for line in waiting_lines(snapshot):
        lines += ["", line]
    lines += ["", *(_workers(snapshot.workers) if snapshot.workers else no_worker(snapshot))]
    return [*lines, "", *recurring_table(snapshot.recurring)] if snapshot.recurring else lines


def unreachable_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each part of a cluster that does not answer."""
    return [f"INCOMPLETE: {printable(str(part), 1000)}" for part in snapshot.unreachable]


def no_queue(snapshot: Snapshot) -> list[str]:
    """Return the line in place of the queues, unless they are only unknown."""
    return [NO_QUEUE] if snapshot.has_registry else []


def no_worker(snapshot: Snapshot) -> list[str]:
    """Return the line in place of the workers, unless they are only unknown."""
    return [NO_WORKER] if snapshot.has_registry else []


def server_line(snapshot: Snapshot) -> str:
    """Return the status of Redis in one line."""
    redis = snapshot.redis
    used = "?" if redis.used_memory is None else human_bytes(redis.used_memory)
    nodes = f" on {redis.nodes} nodes" if redis.nodes > 1 else ""
    aof = "AOF" if redis.aof else "no AOF"
    troubles = [
        text
        for text, true in (
            ("LOADING", redis.loading),
            ("AOF WRITES FAIL", not redis.aof_ok),
            ("SNAPSHOTS FAIL", not redis.rdb_ok),
        )
        if true
    ]
    return ", ".join((f"Redis {redis.version}{nodes}", f"{used} used", aof, *troubles))


def rules_of(queue: QueueStatus, now_ms: float) -> str:
    """Return the pauses and limits of a queue as a short text."""
    words = {"both": "paused", "in": "paused in", "out": "paused out"}.get(queue.paused, "")
    left = [f"{word} {duration((end - now_ms) / 1000)}" for word, end in queue.paused_until.items()]
    words += f" (ends: {', '.join(left)})" if left else ""
    limits = [f"{name} {value}" for name, value in queue.limits.items()]
    return ", ".join(filter(None, (words, *limits, *_limits_of(queue.name))))


def _limits_of(queue: str) -> Iterator[str]:
    """Yield the limits of a queue and of its tasks, as this project's code has them."""
    options: list[tuple[str, Any]] = [("", conf().queue(queue))]
    options += [(f" of {task.name}", task.options) for task in registry if task.options.queue == queue]
    for whose, one in options:
        if (limit := one.concurrency) is not None:
            numbers = [] if limit.total is None else [str(limit.total)]
            numbers += [] if limit.local is None else [f"{limit.local} a process"]
            yield f"concurrency{whose} {' and '.join(numbers)}"
        if one.rate is not None:
            yield f"rate{whose} {one.rate.text}"


def outbox_line(stock: Stock) -> str:
    """Return the numbers of durable jobs in the database in one line."""
    age = stock["oldest_waiting_seconds"]
    since = "" if age is None else f" (for {duration(age)})"
    return (
        f"outbox: {stock['waiting']} waiting{since}, {stock['sent']} sent, {stock['buried']} buried, "
        f"{stock['refused']} refused"
    )


def waiting_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each reason, other than its due time, for which jobs wait."""
    lines = quarantine_line(snapshot), parked_line(snapshot), starving_line(snapshot), idle_line(snapshot)
    return list(filter(None, lines))


def quarantine_line(snapshot: Snapshot) -> str:
    """Return which jobs wait for quarantine and why, in one line; empty if none do."""
    waiting = [
        f"{queue.counts.quarantine} of {printable(queue.name)}" for queue in snapshot.queues if queue.counts.quarantine
    ]
    if not waiting:
        return ""
    return f"quarantine: {', '.join(waiting)} wait to run alone in a process, because they ran when one died"


def parked_line(snapshot: Snapshot) -> str:
    """Return which jobs wait for a free permit of their task, in one line; empty if none do."""
    waiting = [f"{queue.counts.parked} of {printable(queue.name)}" for queue in snapshot.queues if queue.counts.parked]
    return f"concurrency: {', '.join(waiting)} wait for a free permit of their task" if waiting else ""


def starving_line(snapshot: Snapshot) -> str:
    """Return which priorities wait too long for more urgent jobs, in one line; empty if none do."""
    waiting = [
        f"priority {starving.priority} of {printable(queue.name)} for {duration(starving.seconds)}"
        for queue in snapshot.queues
        if (starving := queue.starving)
    ]
    advice = "behind more urgent jobs: add workers, or set starve_after"
    return f"starving: {', '.join(waiting)}, {advice}" if waiting else ""


def idle_line(snapshot: Snapshot) -> str:
    """Return which queues have due jobs beside a process with free slots, in one line; empty if there are none."""
    found = [
        f"{printable(queue)} beside {printable(worker.name)}" for queue, worker in idle_beside_due(snapshot).items()
    ]
    return f"idle: due jobs of {', '.join(found)}, which has free slots: delayq_check says what to do" if found else ""


def seen(worker: WorkerStatus) -> str:
    """Return the time since a worker's last heartbeat, or "lost"."""
    return "lost" if worker.lost else f"{duration(worker.seconds_ago)} ago"


def _workers(workers: Sequence[WorkerStatus]) -> list[str]:
    def number(worker: WorkerStatus, name: str) -> object:
        return getattr(worker, name) if name in worker.payload else "-"

    rows = [
        (
            f"{printable(worker.name)}{' (quarantine)' if worker.quarantine else ''}",
            printable(", ".join((*worker.queues, *(f"not {name}" for name in worker.ignored)))),
            number(worker, "running"),
            number(worker, "threads"),
            seen(worker),
        )
        for worker in workers
    ]
    return table(("worker", "queues", "running", "threads", "seen"), rows, left=2)


def recurring_table(tasks: Sequence[RecurringStatus]) -> list[str]:
    """Return recurring tasks with their ticks as lines of a table."""
    head = ("recurring task", "schedule", "time zone", "last tick", "next tick")
    rows = []
    for one in tasks:
        zone = one.timezone or "UTC"
        following = "paused" if one.paused_ms is not None else _local(one.next_tick_ms, zone)
        last = _local(one.last_tick_ms, zone)
        rows.append((printable(one.task), printable(one.schedule) or "not in this project", zone, last, following))
    return table(head, rows, left=len(head))


def _local(tick: float | None, zone: str) -> str:
    """Return a tick in local time of the given time zone."""
    return "-" if tick is None else f"{datetime.fromtimestamp(tick / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"


# -- small charts ------------------------------------------------------------------------------------------------------


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Return numbers as a line of blocks, one character each, from 0 to ``top`` (default: the largest)."""
    largest = max(values, default=0.0) if top is None else top
    if largest <= 0:
        return _BLOCKS[0] * len(values)
    steps = len(_BLOCKS) - 1
    # Any value above zero is visible.
    return "".join(_BLOCKS[min(steps, max(value > 0, round(steps * value / largest)))] for value in values)
