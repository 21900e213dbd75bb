"""Check of a campaign's history: what the client was promised against what the tasks did.

It uses nothing of the package, only the client's record and the trace of the tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: s; the due time of the trace has whole milliseconds, clocks of one machine do not differ
EARLY_TOLERANCE = 0.0015
#: s; shorter than a lease. An attempt that took longer was frozen
LONGEST = 1.0


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
    promises: Iterable[Promise], trace: Iterable[Mapping[str, Any]], limits: Mapping[str, int]
) -> Iterator[str]:
    """Yield a sentence for each start that is one too many for a limit of jobs at a time.

    Attempts whose end is not known, or that were frozen for so long that their leases may have ended, count as none.
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
            if running > limits[name]:
                yield f"{running} jobs of {name} ran at {at:.3f}; its limit is {limits[name]}"


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
