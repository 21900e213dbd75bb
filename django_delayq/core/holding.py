"""Verbs of the holders of jobs, on one shard by its number: reserve, settle, touch, and the leases of all holders.

They are methods of :class:`.queue.Queue`, which has the verbs that name a job by its id.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from .job import Job, digest_of
from .job_view import Reply
from .outcomes import AttemptOutcome, Batch, Settlement, Which, bury, expire
from .reading import read
from .records.frames import (
    CHUNK,
    Allowance,
    pack,
    pack_allowances,
    pack_settlements,
    pack_take_over,
    start_flag,
    unpack_batch,
    unpack_held,
)
from .records.keys import SHARD_KEYS
from .redis.pool import last_sent
from .registry import ShardSet

_TOUCHED: Final = {"h": "held", "s": "stopping", "l": "lost"}
_SERVED: Final[dict[Which, tuple[bytes, ...]]] = {"all": (), "others": (b"1", b"8"), "quarantined": (b"9", b"9")}
_ALL: Final = (b"1", b"9")
#: byte in a reply for a settlement that was applied
_APPLIED: Final = ord("1")


# -- reserve and settle ------------------------------------------------------------------------------------------


def reserve(
    queue: ShardSet,
    number: int,
    limit: int,
    *,
    worker: str,
    request: bytes | None = None,
    ttr_ms: int | None = None,
    started: bool = False,
    prefer_own_ttr: bool = False,
    which: Which = "all",
    allowances: Sequence[Allowance] = (),
) -> Batch:
    """Reserve up to ``limit`` (1 … 250) due jobs of a shard under one lease.

    Args:
        worker: name of the holder.
        request: the request id of an earlier call whose reply was lost: the same jobs are returned again.
        ttr_ms: duration of the lease; None = that of the broker's leases.
        started: the holder has no heartbeat to report later starts: the attempts count as begun now.
        prefer_own_ttr: a job with a ``ttr`` of its own is held for that time.
        which: also the jobs that wait for quarantine (all), only the others, or only those.
        allowances: how many jobs of limited tasks may be returned; the others that are due are parked.
    """
    ttr, began = b"" if ttr_ms is None else b"%d" % ttr_ms, time.monotonic()
    frame = queue.call(
        "reserve",
        number,
        worker.encode(),
        min(limit, CHUNK),
        ttr,
        start_flag(started=started, prefer_own_ttr=prefer_own_ttr),
        b"",
        b"",
        *_serving(which, allowances),
        request=request,
    )
    return batch_of(queue, frame, number, worker, last_sent(began))


def settle_reserve(
    queue: ShardSet,
    number: int,
    settlements: Sequence[Settlement],
    limit: int,
    *,
    worker: str,
    request: bytes | None = None,
    which: Which = "all",
    allowances: Sequence[Allowance] = (),
) -> tuple[list[bool], Batch]:
    """Settle finished jobs of a shard and reserve its next ones, in one script call for up to 250 settlements.

    Returns:
        True for each settlement that was applied (see :meth:`settle`), and the batch.
    """
    frame, began = pack_settlements(settlements[:CHUNK]), time.monotonic()
    reply, batch = queue.call(
        "settle", number, worker.encode(), frame, min(limit, CHUNK), *_serving(which, allowances), request=request
    )
    counted = [answer == _APPLIED for answer in reply] + settle(queue, settlements[CHUNK:])
    return counted, batch_of(queue, batch, number, worker, last_sent(began))


def settle(queue: ShardSet, settlements: Sequence[Settlement], *, seed: bytes | None = None) -> list[bool]:
    """Apply settlements, each by its own verb (:class:`Settlement`).

    Args:
        settlements: how each job ends.
        seed: a later call with the same seed and the same jobs, whatever their verbs, gets the replies of the first
            call.

    Returns:
        For each, True if it was applied. False: the lease was lost (or, with ``guard="expired"``, has not run out)
            and nothing was changed. A record is always applied, unless it has that guard and an end is stored
            already.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for place, settlement in enumerate(settlements):
        groups.setdefault((settlement.job.shard, settlement.job.worker), []).append(place)
    counted = [False] * len(settlements)
    for (number, worker), places in groups.items():
        for start in range(0, len(places), CHUNK):
            chunk = [settlements[place] for place in places[start : start + CHUNK]]
            request = None if seed is None else _request_of(seed, [settlement.job for settlement in chunk])
            reply, _ = queue.call("settle", number, worker.encode(), pack_settlements(chunk), b"", request=request)
            for place, answer in zip(places[start : start + CHUNK], reply, strict=True):
                counted[place] = answer == _APPLIED
    return counted


def touch(
    queue: ShardSet, jobs: Sequence[Job], started: Container[tuple[str, int]] = (), *, ttr_ms: int | None = None
) -> list[str]:
    """Extend the leases of held jobs to one full lease from now.

    Args:
        ttr_ms: duration of the lease from now; None = that of the broker's leases.
        started: (id, token) of those whose handler has begun: from now on a crash counts against them.

    Returns:
        For each: held, stopping (held, but cancelled) or lost.
    """
    places: dict[int, list[int]] = {}
    for place, job in enumerate(jobs):
        places.setdefault(job.shard, []).append(place)
    answers = ["lost"] * len(jobs)
    ttr = b"" if ttr_ms is None else b"%d" % ttr_ms
    for number, mine in places.items():
        for start in range(0, len(mine), CHUNK):
            chunk = mine[start : start + CHUNK]
            held = [jobs[place] for place in chunk]
            frame = pack([(job.id, job.token, (job.id, job.token) in started) for job in held])
            for place, letter in zip(chunk, queue.call("touch", number, frame, ttr).decode(), strict=True):
                answers[place] = _TOUCHED[letter]
    return answers


def batch_of(queue: ShardSet, frame: bytes, number: int, worker: str, sent_at: float) -> Batch:
    """Return the batch in a reply of a shard; jobs that cannot be read are buried, late ones are ended."""
    jobs, broken, now_us, next_due, quarantined, parked = unpack_batch(frame, queue.name, number, worker)
    if broken:
        queue.deployment.on_unreadable(broken)
        settle(
            queue,
            [
                bury(
                    item.job,
                    0,
                    0,
                    reason="undecodable",
                    outcome=AttemptOutcome.UNDECODABLE,
                    error_class="Undecodable",
                    error=item.error.encode(),
                )
                for item in broken
            ],
        )
    late = [job for job in jobs if job.options_json and job.has_expired(now_us / 1000)]
    if late:
        settle(queue, [expire(job) for job in late])
        gone = {job.id for job in late}
        jobs = [job for job in jobs if job.id not in gone]
    wait = None if next_due is None else max(0.0, next_due // 1000 - now_us / 1000)
    until = None if quarantined is None else quarantined // 1000 - now_us / 1000
    moved = parked[0] if parked else 0
    return Batch(jobs, broken, wait, now_us / 1000, len(late), until, sent_at, moved, tuple(parked[1:]))


# -- leases -----------------------------------------------------------------------------------------------------


def expired(queue: ShardSet, number: int, limit: int = CHUNK, *, offset: int = 0) -> list[Job]:
    """Return jobs of a shard whose lease ran out, the oldest first; none during a reaper hold.

    Settle them with ``guard="expired"``.

    Args:
        limit: 1 … 250.
        offset: number of jobs to skip.
    """
    return _leases(queue, number, offset, min(limit, CHUNK), only_expired=True)


def take_over(
    queue: ShardSet, job: Job, worker: str, *, only_expired: bool = False, request: bytes | None = None
) -> Job | None:
    """Take a job whose attempt has begun over from its holder, under a new token, for one lease from now.

    Args:
        job: as its holder has it.
        worker: the new holder. The returned job still names the old one, to which the attempt belongs.
        only_expired: only if its lease is over.
        request: the request id of an earlier call whose reply was lost: it gives the same job again.

    Returns:
        The job under the new token; None if it is settled, or held under another token, or not over.
    """
    frame = queue.call(
        "take_over", job.shard, pack_take_over(job, only_expired=only_expired), worker.encode(), request=request
    )
    jobs, broken, *_ = unpack_batch(frame, queue.name, job.shard, job.worker)
    return next(iter([*jobs, *(one.job for one in broken)]), None)


def begun(
    queue: ShardSet,
    number: int,
    worker: str = "",
    *,
    before_ms: float | None = None,
    except_workers: Iterable[str] = (),
) -> list[Job]:
    """Return jobs of a shard that were acked before their attempts began, and whose end is not stored yet.

    Args:
        worker: only its jobs; "" = those of all.
        before_ms: only attempts that began before this moment, Unix ms; None = whenever.
        except_workers: names of workers whose jobs are left out.

    Returns:
        At most 250; ``deadline_ms`` is the moment at which the attempt began.
    """
    before = b"" if before_ms is None else b"%d" % before_ms
    left_out = [name.encode() for name in except_workers]
    return unpack_held(queue.call("begun", number, worker.encode(), before, *left_out), queue.name, number)


def held_by(queue: ShardSet, worker: str, *numbers: int) -> Iterator[Job]:
    """Yield all jobs that a worker holds, in these shards or in all. Meant for a dead worker."""
    for number in numbers or queue.numbers:
        yield from [job for job in leases(queue, number) if job.worker == worker]


def leases(queue: ShardSet, number: int) -> list[Job]:
    """Return all reserved jobs of a shard, by the end of their lease; read in chunks, so not an atomic snapshot."""
    jobs: dict[str, Job] = {}
    offset = 0
    while chunk := _leases(queue, number, offset, CHUNK, only_expired=False):
        jobs.update((job.id, job) for job in chunk)
        # Leases that end meanwhile move the others forward. Stepping back by one chunk's tail would not help, so
        # the walk continues and a skipped lease is found by the next call.
        offset += len(chunk)
    return list(jobs.values())


def _leases(queue: ShardSet, number: int, offset: int, limit: int, *, only_expired: bool) -> list[Job]:
    frame = read(
        queue.deployment,
        queue.name,
        number,
        index=SHARD_KEYS.index("lease") + 1,
        place="r",
        skip=offset,
        limit=limit,
        expired=only_expired,
    )
    return [view.job for view in Reply(queue.name, number, frame, buried=False, place="r").views()]


def _serving(which: Which, allowances: Sequence[Allowance]) -> tuple[bytes, ...]:
    """Return the last arguments of a reserve: the classes that it serves, and the limits of tasks."""
    served = _SERVED[which]
    return (*(served or _ALL), pack_allowances(allowances)) if allowances else served


def _request_of(seed: bytes, jobs: Sequence[Job]) -> bytes:
    return digest_of(seed, *[b"%d %b" % (job.token, job.id.encode()) for job in jobs])
