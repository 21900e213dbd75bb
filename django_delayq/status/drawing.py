"""The status as lines of text: data in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from .formatting import duration, printable, table
from .snapshot import QueueStatus, RecurringStatus, Snapshot, WorkerStatus
from .telling import human_bytes

if TYPE_CHECKING:
    from ..outbox.stock import Stock

PLACES: Final = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
NO_QUEUE: Final = "No queue yet: nothing was ever scheduled."
NO_WORKER: Final = "No worker is running. Start one: manage.py delayq_worker"
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def report(snapshot: Snapshot) -> list[str]:
    """The status as it is printed once."""
    lines = [server_line(snapshot), ""]
    rules = [rules_of(queue) for queue in snapshot.queues]
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
    lines += table(("queue", *PLACES, "lag", *last), rows) if rows else [NO_QUEUE]
    if snapshot.outbox is not None and any(snapshot.outbox.values()):
        lines += ["", outbox_line(snapshot.outbox)]
    lines += ["", line] if (line := quarantine_line(snapshot)) else []
    lines += ["", *(_workers(snapshot.workers) if snapshot.workers else [NO_WORKER])]
    return [*lines, "", *_recurring(snapshot.recurring)] if snapshot.recurring else lines


def server_line(snapshot: Snapshot) -> str:
    """Redis in one line."""
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


def rules_of(queue: QueueStatus) -> str:
    """Pauses and limits of a queue, in a few words."""
    words = {"both": "paused", "in": "paused in", "out": "paused out"}.get(queue.paused, "")
    limits = [name if value is True else f"{name} {value}" for name, value in queue.limits.items()]
    return ", ".join(filter(None, (words, *limits)))


def outbox_line(kept: Stock) -> str:
    """Durable jobs in the database, in one line."""
    age = kept["oldest_waiting_seconds"]
    since = "" if age is None else f" (for {duration(age)})"
    return (
        f"outbox: {kept['waiting']} waiting{since}, {kept['sent']} sent, {kept['buried']} buried, "
        f"{kept['refused']} refused"
    )


def quarantine_line(snapshot: Snapshot) -> str:
    """Return which jobs wait for quarantine and why, in one line; empty if none do."""
    waiting = [
        f"{queue.counts.quarantine} of {printable(queue.name)}" for queue in snapshot.queues if queue.counts.quarantine
    ]
    if not waiting:
        return ""
    return f"quarantine: {', '.join(waiting)} wait to run alone in a process, because theirs died under them"


def seen(worker: WorkerStatus) -> str:
    """When a worker was last heard of."""
    return "lost" if worker.lost else f"{duration(worker.seconds_ago)} ago"


def _workers(workers: Sequence[WorkerStatus]) -> list[str]:
    def number(worker: WorkerStatus, name: str) -> object:
        return getattr(worker, name) if name in worker.said else "-"

    rows = [
        (
            f"{printable(worker.name)}{' (quarantine)' if worker.quarantine else ''}",
            printable(", ".join(worker.queues)),
            number(worker, "running"),
            number(worker, "threads"),
            seen(worker),
        )
        for worker in workers
    ]
    return table(("worker", "queues", "running", "threads", "seen"), rows, left=2)


def _recurring(tasks: Sequence[RecurringStatus]) -> list[str]:
    head = ("recurring task", "schedule", "time zone", "last tick", "next tick")
    rows = []
    for one in tasks:
        zone = one.timezone or "UTC"
        ticks = (_local(tick, zone) for tick in (one.last_tick_ms, one.next_tick_ms))
        rows.append((printable(one.task), printable(one.schedule), zone, *ticks))
    return table(head, rows, left=len(head))


def _local(tick: float | None, zone: str) -> str:
    """A tick as a person of that time zone reads it."""
    return "-" if tick is None else f"{datetime.fromtimestamp(tick / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"


# -- small pictures ----------------------------------------------------------------------------------------------------


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Numbers as a line of blocks, one character each: 0 is the lowest one, ``top`` (the largest) the highest."""
    largest = max(values, default=0.0) if top is None else top
    if largest <= 0:
        return _BLOCKS[0] * len(values)
    steps = len(_BLOCKS) - 1
    # What is not nothing is seen.
    return "".join(_BLOCKS[min(steps, max(value > 0, round(steps * value / largest)))] for value in values)


def regrouped(values: Sequence[int], most: int) -> list[int]:
    """The same numbers in no more than ``most`` groups of neighbours, summed up."""
    each = -(-len(values) // max(1, most)) or 1
    return [sum(values[start : start + each]) for start in range(0, len(values), each)]


def flowing(pieces: Sequence[str], width: int) -> list[str]:
    """Pieces with two spaces between, in as many lines as they need."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 2 + len(piece) <= width:
            lines[-1] += f"  {piece}"
        else:
            lines.append(piece)
    return lines


def clipped(line: str, width: int) -> str:
    """A line that is no wider than the terminal."""
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"


def fitted(head: Sequence[str], rows: Sequence[Sequence[str]], drop: Sequence[str], width: int) -> list[str]:
    """A table that is no wider than the terminal: the columns ``drop`` go, one by one, then the names are cut."""
    columns: Mapping[str, list[str]] = {name: [row[place] for row in rows] for place, name in enumerate(head)}
    kept = list(head)

    def drawn() -> list[str]:
        return table(kept, zip(*(columns[name] for name in kept), strict=True))

    for name in drop:
        if max(map(len, lines := drawn())) <= width:
            return lines
        kept.remove(name)
    over = max(map(len, drawn())) - width
    if over > 0:
        longest = max(len(cell) for cell in (kept[0], *columns[kept[0]]))
        columns[kept[0]][:] = [clipped(cell, max(8, longest - over)) for cell in columns[kept[0]]]
    return [clipped(line, width) for line in drawn()]
