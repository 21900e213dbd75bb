"""Verbs on all jobs of a queue, for at most :data:`LONGEST` seconds a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..core import bulk
from ..core.filtered_bulk import Verb, change_matching
from ..core.operations.selection import Progress
from ..core.queue import Queue
from ..outbox import batch_verbs
from ..repair.sweeping import Sweep
from .listing import text_of

#: maximum seconds of an operation on all jobs of a queue
LONGEST: Final = 10.0


def cancel_all(queue: Queue) -> dict[str, Any]:
    """Cancel every waiting job, including rows that the outbox has not sent yet; see :func:`sweep`."""
    cancelled = batch_verbs.cancel_unsent(queue)
    return sweep(lambda progress: bulk.cancel_all(queue, progress=progress), cancelled=cancelled)


def run_all_now(queue: Queue) -> dict[str, Any]:
    """Make every waiting job due now, including rows that the outbox has not sent yet; see :func:`sweep`."""
    moved = batch_verbs.run_unsent_now(queue)
    return sweep(lambda progress: bulk.run_all_now(queue, progress=progress), moved=moved)


def change_where(queue: Queue, verb: Verb, body: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a verb to the jobs in Redis that meet the conditions ``where`` of a request, from its ``cursor`` on.

    Returns:
        See :func:`sweep`; also the ``cursor`` with which the next request continues.
    """
    where, cursor = body["where"], body.get("cursor", "")
    changed = change_matching(queue, verb, where, accepts=text_of(where), cursor=cursor, seconds=LONGEST)
    complete = {"complete": not changed.cursor, "seen": changed.examined, "total": changed.total}
    return {"counts": dict(changed.counts), **complete, **({"cursor": changed.cursor} if changed.cursor else {})}


def sweep(act: Callable[[Progress], dict[str, int]], **before: int) -> dict[str, Any]:
    """Execute an operation on all jobs of a queue and return the API's answer.

    The operation ends after :data:`LONGEST` seconds. If it is not complete then, the same call resumes with the rest.

    Args:
        act: the operation; called with a progress callback.
        before: counts to include, by outcome.

    Returns:
        ``counts`` by outcome (only those of ``before`` if the operation is not complete), ``complete``, ``total``, and
        the number of jobs processed as ``seen``.
    """
    bounded = Sweep(LONGEST)
    counts = {outcome: number for outcome, number in before.items() if number}
    for outcome, number in bounded.run(act).items():
        counts[outcome] = counts.get(outcome, 0) + number
    return {"counts": counts, "complete": not bounded.over, "seen": bounded.seen, "total": bounded.total}
