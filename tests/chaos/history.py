"""Check of a campaign's history: what the client was promised against what the tasks did.

It uses nothing of the package, only the client's record and the trace of the tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: s; the due time of the trace has whole milliseconds, clocks of one machine do not differ
EARLY_TOLERANCE = 0.0015
#: s; shorter than a lease. An attempt that took longer was frozen
LONGEST = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of jobs at a time, and of starts in a time; None = none."""

    total: int | None = None
    #: starts in a second, and at once
    rate: float | None = None
    burst: int = 0


@dataclass(slots=True)
class Promise:
    """Record of the client for one job. Times are those of the wall clock, in seconds."""

    id: str
    #: due time of the last acknowledged schedule or reschedule; 0 = at once
    due: float = 0.0
    #: reply to a cancel: cancelled, stopping (its attempt may still succeed, or end it), "unknown" if none came; "" if
    #: no cancel was sent
    cancel: str = ""
    cancelled_at: float = 0.0
    #: the job ends in the morgue instead of succeeding
    doomed: bool = False
    #: names of its limits
    limits: tuple[str, ...] = ()
    queue: str = "default"


def violations(
    promises: Iterable[Promise], trace: Iterable[Mapping[str, Any]], morgue: Iterable[str], live: Iterable[str]
) -> list[str]:
    """Return a sentence for every broken promise.

    Args:
        promises: one for each job whose schedule was acknowledged.
        trace: lines with ``event`` (start or end), ``id``, ``at``, ``due``, ``token``, in the order of their times.
        morgue: ids in the morgue at the end.
        live: ids that wait or run at the end.
    """
    starts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    ended = set()
    for line in trace:
        if line["event"] == "start":
            starts[line["id"]].append(line)
        else:
            ended.add(line["id"])
    found = [f"{ident}: still in the queue" for ident in live]
    buried = set(morgue)
    for promise in promises:
        found += _of_job(promise, starts[promise.id], promise.id in ended, promise.id in buried)
    return found


def exceeded(
    promises: Iterable[Promise], trace: Iterable[Mapping[str, Any]], limits: Mapping[str, Limit], lease: float
) -> Iterator[str]:
    """Yield a sentence for each start that is one too many for a limit of jobs at a time, or of starts in a time.

    Of jobs at a time, attempts count as none whose end is not known, or that were frozen for so long that their leases
    may have ended. Starts are counted when the shard handed the jobs out, which their tokens tell in µs: a handler may
    begin much later. A job is handed out no later than a tenth of a lease after it was granted.
    """
    names = {promise.id: promise.limits for promise in promises}
    began: dict[tuple[str, int], float] = {}
    moments: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for line in trace:
        start = began.setdefault((line["id"], line["token"]), line["at"])
        if line["event"] == "end" and line["at"] - start <= LONGEST:
            for name in names.get(line["id"], ()):
                moments[name] += [(start, 1), (line["at"], -1)]
    for name, steps in moments.items():
        running = 0
        for at, step in sorted(steps):  # an end before a start at the same moment
            running += step
            if running > (limits[name].total or math.inf):
                yield f"{running} jobs of {name} ran at {at:.3f}; its limit is {limits[name].total}"
    handed_out = {(ident, token) for ident, token in began if names.get(ident)}
    for name, limit in limits.items():
        if limit.rate:
            tokens = sorted(token for ident, token in handed_out if name in names[ident])
            yield from _too_fast(name, limit.rate, limit.burst, [token / 1e6 for token in tokens], lease / 10)


def _too_fast(name: str, rate: float, burst: int, moments: Iterable[float], late: float) -> Iterator[str]:
    """Yield a sentence for each start with which a bucket that starts fill and time empties runs over."""
    level = before = 0.0
    for at in moments:
        level, before = max(0.0, level - (at - before) * rate) + 1, at
        if level > burst + late * rate + 1e-3:
            yield f"{level:.1f} starts of {name} beside its rate of {rate:g}/s at {at:.3f}; {burst} are allowed at once"


def _of_job(promise: Promise, starts: list[Mapping[str, Any]], ended: bool, buried: bool) -> Iterator[str]:
    cancelled = promise.cancel == "cancelled"
    if cancelled and any(start["at"] > promise.cancelled_at for start in starts):
        yield f"{promise.id}: started after its cancellation was acknowledged"
    if not promise.cancel and not (buried if promise.doomed else ended):
        yield f"{promise.id}: acknowledged and lost ({len(starts)} starts)"
    if buried and not promise.doomed:
        yield f"{promise.id}: in the morgue, though no attempt of it failed for good"
    for start in starts:
        if start["at"] < max(start["due"], promise.due) - EARLY_TOLERANCE:
            yield f"{promise.id}: started {max(start['due'], promise.due) - start['at']:.3f} s early"
    tokens = [start["token"] for start in starts]
    if tokens != sorted(set(tokens)):
        yield f"{promise.id}: fencing tokens do not grow: {tokens}"
