"""Ends of jobs reserved by another process or an earlier request, of which only id and lease are known.

Everything else (policy, failures, fields of the event) is read from the live jobs, from all shards in one round trip;
then each shard is called once per verb. The fencing token decides, as everywhere: a holder that lost the lease changes
nothing, whatever was read before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..core.errors import InvalidJob
from ..core.inputs import one_line, short
from ..core.job import DEFAULT_PRIORITY, DURABLE, Job, Payload
from ..core.job_view import JobView
from ..core.outcomes import AttemptOutcome, Settlement, ack
from ..core.queue import Queue
from ..core.reading import jobs_of, payloads_of
from ..core.task import registry
from ..core.times import iso_of
from ..core.verdicts import Bury, Release
from ..pull import held as listeners, limits
from ..worker.ends import End, policy_of
from ..worker.record import name_of, record_of

#: seconds that a reserve or a touch holds a job by default
TTR: Final = 60
LONGEST_TTR: Final = 3600
LEASE: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,15})(?:t([1-9][0-9]{0,11}))?")
#: tokens are transmitted as doubles
_LARGEST_TOKEN: Final = 1 << 53
_CLASS_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Lease:
    """Shard in which a job is held, its fencing token, and its own ttr if it has one.

    The text form is opaque to clients.
    """

    shard: int
    token: int
    own_ttr_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.shard}.{self.token}" + (f"t{self.own_ttr_ms}" if self.own_ttr_ms else "")

    @property
    def usual_ttr_ms(self) -> int:
        """Length of the lease after a touch that names none."""
        return self.own_ttr_ms or TTR * 1000

    @property
    def taken_ms(self) -> int:
        """Start of the lease, Unix ms on Redis's clock.

        A token is a timestamp. In closing shards it is up to 2 s early.
        """
        return self.token // 1000


def lease_of(job: Job) -> Lease:
    """Return the lease of a held job."""
    return Lease(job.shard, job.token, job.ttr_ms)


def read_lease(text: object) -> Lease:
    """Parse a lease sent by a client; raise :class:`InvalidJob` if it is not a lease."""
    match = LEASE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[2]) > _LARGEST_TOKEN:
        raise InvalidJob(f"this is the lease that reserve gave with the job, not {short(text)}")
    return Lease(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """One job of a request with its options; options that were missing or null are absent."""

    id: str
    lease: Lease
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedError:
    """Error reported by a program in another language."""

    message: str
    name: str = ""
    trace: str = ""


def read_error(value: object) -> ReportedError:
    """Parse an error: a text, or an object with class, message and traceback."""
    if isinstance(value, str):
        return ReportedError(value)
    if not isinstance(value, dict):
        raise InvalidJob(f"an error is a text, or an object with class, message and traceback, not {short(value)}")
    for name, text in value.items():
        if name not in ("class", "message", "traceback"):
            raise InvalidJob(f"an error has class, message and traceback, not {short(name)}")
        if not isinstance(text, str):
            raise InvalidJob(f"{name} of an error is a text, not {short(text)}")
    return ReportedError(value.get("message", ""), one_line(value.get("class", "")), value.get("traceback", ""))


class Reported(Exception):
    """Stand-in for an error reported by an API client; rules for exception classes do not apply to it."""

    def __init__(self, error: ReportedError) -> None:
        super().__init__(error.message)
        self.error = error


def _released(options: Mapping[str, Any]) -> Release:
    delay_ms = options.get("delay")
    return Release(delay=None if delay_ms is None else delay_ms / 1000, priority=options.get("priority"))


#: verb → what a handler would raise for the same end, from the options of an entry; None = it returns
_RAISED: Final[Mapping[str, Callable[[Mapping[str, Any]], BaseException | None]]] = {
    "ack": lambda options: None,
    "fail": lambda options: Reported(options.get("error", ReportedError(""))),
    "release": _released,
    "bury": lambda options: Bury(options.get("reason", "")),
}


def _settlement_of(job: Job, entry: HeldEntry, raised: BaseException | None, taken_ms: int, run_ms: int) -> Settlement:
    """Return the settlement of an attempt that raised this."""
    if raised is None:
        return ack(job, taken_ms, run_ms)
    end = End(job, policy_of(registry.get(job.task), job), taken_ms, run_ms)
    if not isinstance(raised, Reported):
        return end.raised(raised)
    error = raised.error
    settlement = end.raised(raised, record=lambda _: record_of(error.name, error.message, error.trace))
    settlement.error_class = error.name[:_CLASS_CHARS]
    settlement.reason = settlement.reason.replace(name_of(Reported), settlement.error_class or "an error")
    if settlement.verb == "fail" and "delay" in entry.options:
        settlement.delay_ms = entry.options["delay"]
    return settlement


def settle(queue: Queue, entries: Sequence[HeldEntry], verb: str, caller: str, seed: bytes | None = None) -> list[bool]:
    """End held jobs of a queue.

    Args:
        queue: the queue of the jobs.
        entries: the jobs.
        verb: ack, fail, release or bury.
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
    raised = [_RAISED[verb](entry.options) for entry in entries]
    for place in mine:
        entry, error = entries[place], raised[place]
        view = live.get((entry.lease.shard, entry.id))
        held, taken_ms = _held(view, entry), entry.lease.taken_ms
        if view is not None and held is not None:
            settlements[place] = _settlement_of(held, entry, error, taken_ms, max(0, int(view.read_ms) - taken_ms))
        else:  # sent anyway: the shard counts the ends that came too late
            lost[place] = _settlement_of(_unread_job(queue, entry, caller), entry, error, taken_ms, 0)
    _notify(queue, entries, settlements, raised)
    # Held jobs go first: the first job of a call names its worker.
    settlements_by_place = {**settlements, **lost}
    counted = dict(zip(settlements_by_place, queue.settle(list(settlements_by_place.values()), seed=seed), strict=True))
    ended = [one for place, one in settlements.items() if counted[place]]
    queue.tally.ended(queue.name, ended)
    limits.give_back(queue, [one.job for one in ended])
    return [counted.get(place, False) for place in range(len(entries))]


def _notify(
    queue: Queue,
    entries: Sequence[HeldEntry],
    settlements: Mapping[int, Settlement],
    raised: Sequence[BaseException | None],
) -> None:
    """Call the listeners for ends of held jobs, with the complete jobs."""
    announced = {place: one for place, one in settlements.items() if listeners.has_listeners(one)}
    live = _live(queue, [entries[place] for place in announced], most=None)
    for place, settlement in announced.items():
        entry = entries[place]
        view = live.get((entry.lease.shard, entry.id))
        if view is None or view.job.token != entry.lease.token:
            continue
        job = view.job
        if job.merged:
            job.payloads = tuple(payloads_of(queue, job.id))
        error = raised[place]
        if settlement.outcome == AttemptOutcome.BURIED and "error" not in entry.options:
            error = Bury(settlement.reason)
        listeners.notify(queue, replace(settlement, job=job), error)


def touch(queue: Queue, entries: Sequence[HeldEntry]) -> list[dict[str, Any]]:
    """Extend the leases of jobs and return one result for each, as the document describes it."""
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
