"""Snapshot of a job, and its decoding from the replies of ``lua/read.lua``. Broken jobs never raise an error here."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat, starmap
from typing import Any, Final

from .codec import decode_args, readable
from .job import KEY_BYTES, Generation, Job, Payload, Undecodable, created_ms
from .records.frames import (
    NEVER,
    State,
    held_digests,
    job_of,
    names_of,
    unpack,
    unpack_body,
    unpack_payload,
    unpack_state,
)

#: doubles are exact up to this value; a moment beyond it cannot be one (µs)
FARTHEST: Final = 2.0**53
_BROKEN: Final = (ValueError, TypeError, AttributeError, LookupError, OverflowError)


@dataclass(slots=True)
class JobView:
    """Job as read at one moment.

    ``state`` is delayed, ready, reserved or morgue (of :meth:`behind` gated); ``failed`` jobs also wait.
    """

    job: Job
    state: str
    due_ms: int
    gated_due_ms: int | None = None
    payload_count: int = 0
    deadline_ms: int | None = None
    buried_ms: int | None = None
    outcome: str = ""
    reason: str = ""
    error_class: str = ""
    payloads: tuple[Payload, ...] = ()
    #: content gated behind the attempt; payloads of a merged job are among those of the job
    gated: Job | None = None
    #: bytes of the arguments (of the payloads of a buried merged job) that were not requested, and of the gated ones
    left_out: int = 0
    gated_left_out: int = 0
    #: number of the payloads that the attempt holds
    taken: int = 0
    #: why its stored bytes cannot be read; "" = they can. An unreadable body is in ``job.args``, with an empty task.
    broken: str = ""
    gated_broken: str = ""
    #: time of the reading on the shard's clock, Unix ms
    read_ms: float = 0

    @property
    def cut(self) -> bool:
        """True if the arguments are missing because they exceed the requested size."""
        return self.left_out > 0

    @property
    def size(self) -> int:
        """Size of the stored arguments in bytes; of a merged job, of its payloads as far as they are included.

        Those of a live merged job are not: :meth:`Inspector.payloads` reads them.
        """
        return self.left_out or len(self.job.args) + sum(len(payload.data) for payload in self.payloads)

    @property
    def bytes_here(self) -> int:
        """Number of its bytes that were read."""
        job = self.job
        size = len(job.args) + len(job.options_json) + len(job.error)
        return size + sum(len(payload.data) for payload in self.payloads)

    @property
    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Task's positional and keyword arguments; none for a merged job, whose payloads are its arguments.

        Raises:
            Undecodable: the stored bytes are no arguments (raw bytes of a pull queue, for instance), or they were left
                out.
        """
        if self.cut:
            raise Undecodable(f"{self.left_out} bytes of arguments were left out; read the job without most_bytes")
        return decode_args(self.job.args)

    @property
    def id(self) -> str:
        """Id of the job."""
        return self.job.id

    @property
    def quarantined(self) -> bool:
        """True if the job's process died during an attempt, so that it waits for, or runs in, a process of its own."""
        return self.job.quarantined

    @property
    def keys(self) -> list[bytes]:
        """Keys of the generation, and of the payloads as far as they are included."""
        return [self.job.key, *(payload.key for payload in self.payloads)]

    def place_of(self, generation: Generation) -> str:
        """Return "live" or "gated" if the view has the key of a generation in that place, else ""."""
        if self.job.key in generation.keys:
            return "live"
        return "gated" if self.gated is not None and self.gated.key in generation.keys else ""

    def behind(self) -> JobView:
        """Return the content that is gated behind the attempt as a job of its own."""
        if self.gated is None:
            return self  # payloads that did not fit into the attempt
        return JobView(
            self.gated,
            "gated",
            self.gated.due_ms,
            payload_count=max(0, self.payload_count - self.taken),
            left_out=self.gated_left_out,
            broken=self.gated_broken,
        )

    def texts(self) -> Iterator[str]:
        """Yield the texts in which a search looks."""
        yield from (self.id, self.job.task)
        for job in filter(None, (self.job, self.gated)):
            yield from (readable(job.args), readable(job.options_json))
        yield from (self.reason, self.error_class, str(self.error.get("class", "")), str(self.error.get("message", "")))
        for payload in self.payloads:
            yield readable(payload.data)

    def cut_off(self, most_bytes: int) -> None:
        """Leave arguments out that exceed a size, as if they had not been requested."""
        if self.size > most_bytes:
            self.left_out, self.job.args, self.payloads = self.size, b"", ()
        if self.gated is not None and len(self.gated.args) > most_bytes:
            self.gated_left_out, self.gated.args = len(self.gated.args), b""

    @property
    def history(self) -> dict[str, int]:
        """Event counts of this generation so far.

        Since the last kick: ``reserves``: how often it was reserved; ``failures``: counted attempts that did not
        succeed, with the ``crashes`` among them. In all: ``timeouts``: how often its time was over while it was held
        (its time limit, or its lease); ``releases``: how often it was put back uncounted (requested, at a shutdown, or
        lost before it began); ``buries`` and ``kicks``.
        """
        job, counts = self.job, asdict(self.job.counts)
        if self.state != "morgue":  # a morgue record has the sum
            counts["releases"] += max(0, job.reserves - job.failures - (self.state == "reserved"))
        return {"reserves": job.reserves, "failures": job.failures, "crashes": job.crashes, **counts}

    @property
    def created_ms(self) -> int | None:
        """Time at which this generation was scheduled; see :func:`~.job.created_ms`."""
        return created_ms(self.job.key)

    @property
    def error(self) -> dict[str, Any]:
        """Last error: ``class``, ``message`` and ``traceback``, as far as they were kept."""
        try:
            fields = json.loads(self.job.error) if self.job.error else {}
        except (ValueError, RecursionError):
            fields = {"message": self.job.error.decode(errors="replace")}
        return fields if isinstance(fields, dict) else {"message": str(fields)}


# -- decoding --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FreshJobs:
    """Jobs that nobody has reserved or changed since they were scheduled, field by field; the last six as in bodies.

    Attributes:
        first: the first of them; in all other fields they are like it.
    """

    first: JobView
    members: Sequence[bytes]
    moments: Sequence[bytes]
    payload_counts: Sequence[int]
    priorities: Sequence[int]
    merged: Sequence[bool]
    keys: Sequence[bytes]
    tasks: Sequence[str]
    options: Sequence[bytes]
    args: Sequence[bytes]


class Reply:
    """Jobs in a reply of ``read.lua``, decoded on request.

    Args:
        queue, shard: where it comes from.
        frame: the reply.
        buried: True if these are morgue records.
        place: w or r, if all jobs wait or are reserved.

    Attributes:
        more: True if jobs of the range are left.
        looked_at: how many of the requested members the reply covers.
        members: the names of the jobs in their index.
        moments: their due times, deadlines, or scores in the index, as Redis has them.
    """

    def __init__(self, queue: str, shard: int, frame: bytes, *, buried: bool, place: str = "") -> None:
        self.more, self.looked_at, self._now_ms, names, columns = unpack(frame)
        self._queue = queue
        self._shard = shard
        self._buried = buried
        self._tasks = names_of(names)
        members, bodies, moments, places, states, gates, counts, left_out, gated_left_out = columns
        self.members: Sequence[bytes] = members
        self.moments: Sequence[bytes] = moments
        self._rows = list(
            zip(
                members,
                bodies,
                moments,
                places or repeat(place.encode()),
                states or repeat(b""),
                gates or repeat(b""),
                counts or repeat(0),
                left_out or repeat(0),
                gated_left_out or repeat(0),
                strict=False,
            )
        )

    def views(self) -> list[JobView]:
        """Return the jobs."""
        return list(starmap(self._record if self._buried else self._live, self._rows))

    def waiting(self) -> tuple[FreshJobs | None, list[JobView]]:
        """Return the jobs of a place where all wait: fresh ones, which takes much less time, and the others."""
        fresh: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        for row in self._rows:
            _, body, _, _, state, gate, *_ = row
            (fresh if body and not state and not gate else others).append(row)
        try:
            bodies = [unpack_body(row[1], self._tasks) for row in fresh]
        except Undecodable:
            return None, self.views()
        jobs = None
        if fresh:
            members, _, moments, _, _, _, counts, *_ = zip(*fresh, strict=True)
            jobs = FreshJobs(self._live(*fresh[0]), members, moments, counts, *zip(*bodies, strict=True))
        return jobs, list(starmap(self._live, others))

    def _job_of(self, ident: bytes, body: bytes, state: State, due_us: float) -> tuple[Job, str]:
        job = job_of(self._queue, self._shard, ident.decode(errors="replace"), body, self._tasks, state, due_us)
        return job, job.broken

    def _live(
        self,
        ident: bytes,
        body: bytes | None,
        score: bytes,
        place: bytes,
        packed: bytes,
        gate: bytes,
        count: int,
        left_out: int,
        gated_left_out: int,
    ) -> JobView:
        """Return a live job."""
        problem, moment, reserved = "", float(score), place == b"r"
        try:
            state = unpack_state(packed)
            job, broken = self._job_of(ident, body or b"", state, state.get(b"due", 0) if reserved else moment)
        except _BROKEN as error:
            problem, state = f"the job's state cannot be read: {error}", {}
            job, broken = self._job_of(ident, body or b"", state, 0 if reserved else moment)
        view = JobView(
            job, "reserved" if reserved else "ready" if job.due_ms <= self._now_ms else "delayed", job.due_ms
        )
        view.read_ms, view.payload_count, view.broken = self._now_ms, count, broken or problem
        if reserved:
            view.deadline_ms = job.deadline_ms = int(max(-FARTHEST, min(moment, FARTHEST)))
            view.taken = len(held_digests(state))
        elif not place:
            view.state = ""
        if left_out:
            view.left_out, job.args = left_out, b""
        if gate:
            self._add_gated(view, ident, gate, gated_left_out)
        return view

    def _add_gated(self, view: JobView, ident: bytes, gate: bytes, left_out: int) -> None:
        due_us = struct.unpack_from("<d", gate)[0] if len(gate) >= 8 else NEVER
        view.gated, view.gated_broken = self._job_of(ident, gate[8:], {}, due_us)
        view.gated_due_ms, view.gated_left_out = view.gated.due_ms, left_out
        if left_out:
            view.gated.args = b""

    def _record(self, name: bytes, packed: bytes | None, *row: Any) -> JobView:
        """Return a job of the morgue (``lua/lib/grave.lua``)."""
        left_out: int = row[5]
        ident, key = split_name(name)
        try:
            stored = unpack(packed or b"")
            texts = [stored[text].decode(errors="replace") for text in (b"outcome", b"reason", b"error_class")]
            payloads = stored.get(b"payloads", [])  # their number, if they were left out
            count = payloads if isinstance(payloads, int) else len(payloads)
            whole = [unpack_payload(one) for one in payloads if len(one) > 2 * KEY_BYTES] if payloads != count else []
            job, broken = self._job_of(ident, stored[b"body"], stored, stored[b"due"])
            buried_us = max(-NEVER, min(stored[b"buried_at"], NEVER))
        except _BROKEN as error:
            job, _ = self._job_of(ident, packed or b"", {}, NEVER)
            job.key = key
            return JobView(job, "morgue", job.due_ms, broken=f"the morgue's record cannot be read: {error}")
        job.key = key
        view = JobView(job, "morgue", job.due_ms, read_ms=self._now_ms, left_out=left_out, broken=broken)
        view.buried_ms = int(buried_us // 1000)
        view.outcome, view.reason, view.error_class = texts
        if job.merged:
            view.payload_count, view.payloads = count, tuple(whole)
        if left_out:
            job.args = b""
        return view


def record_name(ident: bytes, key: bytes) -> bytes:
    """Return the name of the morgue record of a generation."""
    return ident + b"\0" + key


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Return id and key in the name of a morgue record."""
    return name[: -KEY_BYTES - 1], name[-KEY_BYTES:]
