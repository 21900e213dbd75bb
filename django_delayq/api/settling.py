"""Ends of jobs reserved by another process or an earlier request, of which only id and lease are known.

Everything else (policy, failures, fields of the event) is read from the live jobs, from all shards in one round trip;
then each shard is called once per verb. The fencing token decides, as everywhere: a holder that lost the lease changes
nothing, whatever was read before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..core.errors import Bury, Release
from ..core.job import DEFAULT_PRIORITY, DURABLE, Job, Payload
from ..core.job_view import JobView
from ..core.options import TaskOptions
from ..core.outcomes import AttemptOutcome, Settlement, ack
from ..core.queue import Queue
from ..core.reading import jobs_of, payloads_of
from ..core.task import registry
from ..core.times import iso_of
from ..pull import ends, limits
from ..worker import ends as decision
from ..worker.ends import policy_of
from ..worker.record import name_of, record_of
from .leases import HeldEntry, ReportedError

#: function that builds the settlement: held job, its entry, start of the lease (Unix ms), ms since then
Builder = Callable[[Job, HeldEntry, int, int], Settlement]
_NO_ERROR: Final = ReportedError("")
_CLASS_CHARS: Final = 200


class Reported(Exception):
    """Stand-in for errors reported by API clients; rules for exception classes do not apply to them."""


def acked(job: Job, entry: HeldEntry, taken_ms: int, run_ms: int) -> Settlement:
    """Return the settlement of a completed job."""
    return ack(job, taken_ms, run_ms)


def failed(job: Job, entry: HeldEntry, taken_ms: int, run_ms: int) -> Settlement:
    """Return the settlement of a failed attempt, which counts; see :meth:`HeldJob.fail`."""
    error: ReportedError = entry.options.get("error", _NO_ERROR)
    record = record_of(error.name, error.message, error.trace)
    settlement = decision.raised(job, _policy(job), Reported(error.message), taken_ms, run_ms, record=lambda _: record)
    settlement.error_class = error.name[:_CLASS_CHARS]
    settlement.reason = settlement.reason.replace(name_of(Reported), settlement.error_class or "an error")
    if settlement.verb == "fail" and "delay" in entry.options:
        settlement.delay_ms = entry.options["delay"]
    return settlement


def released(job: Job, entry: HeldEntry, taken_ms: int, run_ms: int) -> Settlement:
    """Return the settlement of a released job, whose attempt does not count; see :meth:`HeldJob.release`."""
    delay_ms = entry.options.get("delay")
    verdict = Release(delay=None if delay_ms is None else delay_ms / 1000, priority=entry.options.get("priority"))
    return decision.raised(job, _policy(job), verdict, taken_ms, run_ms)


def buried(job: Job, entry: HeldEntry, taken_ms: int, run_ms: int) -> Settlement:
    """Return the settlement that buries a job; see :meth:`HeldJob.bury`."""
    return decision.raised(job, _policy(job), Bury(entry.options.get("reason", "")), taken_ms, run_ms)


def _policy(job: Job) -> TaskOptions:
    return policy_of(registry.get(job.task), job)


def settle(
    queue: Queue, entries: Sequence[HeldEntry], build: Builder, caller: str, seed: bytes | None = None
) -> list[bool]:
    """End held jobs of a queue.

    Args:
        queue: the queue of the jobs.
        entries: the jobs.
        build: builds the settlement of each job.
        caller: name of the caller, used as the worker of jobs that it does not hold.
        seed: see :meth:`Queue.settle`.

    Returns:
        True for each job whose end counted; False = the lease was lost (or never existed), and nothing was changed.

    Raises:
        QueueUnavailable: Redis could not be reached; some ends may have counted.
    """
    existing = _known_shards(queue, entries)
    mine = [place for place, entry in enumerate(entries) if entry.lease.shard in existing]
    live = _live(queue, [entries[place] for place in mine])
    settlements: dict[int, Settlement] = {}
    lost: dict[int, Settlement] = {}
    for place in mine:
        entry = entries[place]
        view = live.get((entry.lease.shard, entry.id))
        held, taken_ms = _held(view, entry), entry.lease.taken_ms
        if view is not None and held is not None:
            settlements[place] = build(held, entry, taken_ms, max(0, int(view.read_ms) - taken_ms))
        else:  # sent anyway: the shard counts the ends that came too late
            lost[place] = build(_unread_job(queue, entry, caller), entry, taken_ms, 0)
    _notify(queue, entries, settlements)
    # Held jobs go first: the first job of a call names its worker.
    settlements_by_place = {**settlements, **lost}
    counted = dict(zip(settlements_by_place, queue.settle(list(settlements_by_place.values()), seed=seed), strict=True))
    ended = [one for place, one in settlements.items() if counted[place]]
    queue.tally.ended(queue.name, ended)
    limits.give_back(queue, [one.job for one in ended])
    return [counted.get(place, False) for place in range(len(entries))]


def _notify(queue: Queue, entries: Sequence[HeldEntry], settlements: Mapping[int, Settlement]) -> None:
    """Call the listeners for ends of held jobs, with the complete jobs."""
    announced = {place: one for place, one in settlements.items() if ends.has_listeners(one)}
    live = _live(queue, [entries[place] for place in announced], most=None)
    for place, settlement in announced.items():
        entry = entries[place]
        view = live.get((entry.lease.shard, entry.id))
        if view is None or view.job.token != entry.lease.token:
            continue
        job = view.job
        if job.merged:
            job.payloads = tuple(payloads_of(queue, job.id))
        ends.notify(queue, replace(settlement, job=job), _error_of(entry, settlement))


def _error_of(entry: HeldEntry, settlement: Settlement) -> BaseException:
    if settlement.outcome == AttemptOutcome.BURIED and "error" not in entry.options:
        return Bury(settlement.reason)
    error: ReportedError = entry.options.get("error", _NO_ERROR)
    return Reported(error.message)


def touch(queue: Queue, entries: Sequence[HeldEntry]) -> list[dict[str, Any]]:
    """Extend the leases of jobs and return one result for each, as ``ExtendedSerializer`` describes it."""
    existing = _known_shards(queue, entries)
    now_ms = queue.deployment.now_ms()  # read before the touch, so that no lease ends earlier than reported
    results: list[dict[str, Any]] = [
        {"id": entry.id, "held": False, "stopping": False, "lease_ends": None} for entry in entries
    ]
    by_ttr: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.lease.shard in existing:
            by_ttr.setdefault(entry.options.get("ttr", entry.lease.usual_ttr_ms), []).append(place)
    for ttr_ms, places in by_ttr.items():
        permitted = set[int]()
        jobs = [_unread_job(queue, entries[place], "") for place in places]
        for number, answer in enumerate(queue.touch(jobs, ttr_ms=ttr_ms, permitted=permitted)):
            place = places[number]
            if answer != "lost":
                results[place] |= {
                    "held": True,
                    "stopping": answer == "stopping",
                    "lease_ends": iso_of(now_ms + ttr_ms),
                }
        if permitted:
            held = [entries[places[number]] for number in permitted]
            limits.renew(queue, [view.job for view in _live(queue, held).values()], ttr_ms)
    return results


def _known_shards(queue: Queue, entries: Sequence[HeldEntry]) -> frozenset[int]:
    """Return the numbers of the existing shards: calling another one would create it."""
    numbers = frozenset(queue.numbers)
    if any(entry.lease.shard not in numbers for entry in entries) and queue.reload():
        numbers = frozenset(queue.numbers)
    return numbers


def _live(queue: Queue, entries: Sequence[HeldEntry], most: int | None = 0) -> Mapping[tuple[int, str], JobView]:
    """Return the live jobs by (shard, id).

    Args:
        queue: the queue of the jobs.
        entries: the jobs.
        most: maximum bytes of arguments to read; None = all.
    """
    members: dict[tuple[str, int], list[bytes]] = {}
    for entry in entries:
        members.setdefault((queue.name, entry.lease.shard), []).append(entry.id.encode())
    views = (view for _, view in jobs_of(queue.deployment, members, most=most))
    return {(view.job.shard, view.id): view for view in views}


def _held(view: JobView | None, entry: HeldEntry) -> Job | None:
    """Return the job if it is held under this lease, else None."""
    if view is None or view.job.token != entry.lease.token:
        return None
    job = view.job
    if job.merged:
        # The held payloads are not read. This stand-in has a durable key, so that the shard checks the payloads itself.
        job.payloads = (Payload(b"", "", DURABLE * 16),)
    return job


def _unread_job(queue: Queue, entry: HeldEntry, worker: str) -> Job:
    """Return a job of which only id and lease are known."""
    lease = entry.lease
    return Job(queue.name, lease.shard, entry.id, "", b"", b"", b"", DEFAULT_PRIORITY, 0, lease.token, worker=worker)
