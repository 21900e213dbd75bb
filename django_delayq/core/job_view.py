"""Snapshot of a job, and its decoding from the replies of ``lua/read.lua``. Broken jobs never raise an error here."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from .codec import decode_args, readable
from .job import KEY_BYTES, Generation, Job, Payload, Undecodable, created_ms
from .records.frames import (
    NEVER,
    State,
    held_digests,
    is_in_lane,
    job_of,
    names_of,
    unpack,
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


class Reply:
    """Jobs in a reply of ``read.lua``, decoded on request.

    Args:
        queue, shard: where it comes from.
        frame: the reply.
        buried: True if these are morgue records.

    Attributes:
        more: True if jobs of the range are left.
        looked_at: how many of the requested members the reply covers.
        tasks: number -> name of the tasks in the bodies.
        members: the names of the jobs in their index.
        bodies: the stored bodies, of the morgue the records; b"" = there is none.
        moments: their due times, deadlines, or scores in the index, as Redis has them.
        extras: member -> what else its job has; a waiting job that nobody has reserved or changed has nothing.
    """

    def __init__(self, queue: str, shard: int, frame: bytes, *, buried: bool = False) -> None:
        self._queue = queue
        self._shard = shard
        self._buried = buried
        self.members: Sequence[bytes]
        self.bodies: Sequence[bytes]
        self.moments: Sequence[bytes]
        self.more, self.looked_at, self._now_ms, tasks, self.members, self.bodies, self.moments, extras = unpack(frame)
        self.tasks = names_of(tasks)
        self.extras: dict[bytes, dict[bytes, Any]] = dict(extras)

    def views(self) -> list[JobView]:
        """Return the jobs."""
        return list(map(self.view, range(len(self.members))))

    def view(self, place: int) -> JobView:
        """Return one job."""
        member = self.members[place]
        extra = self.extras.get(member, {})
        left_out = extra.get(b"left_out", 0)
        if self._buried:
            view = self._record(member, self.bodies[place])
        else:
            view = self._live(member, self.bodies[place], float(self.moments[place]), extra)
        if left_out:
            view.left_out, view.job.args = left_out, b""
        return view

    def _job_of(self, ident: bytes, body: bytes, state: State, due_us: float) -> tuple[Job, str]:
        job = job_of(self._queue, self._shard, ident.decode(errors="replace"), body, self.tasks, state, due_us)
        return job, job.broken

    def _live(self, ident: bytes, body: bytes, moment: float, extra: Mapping[bytes, Any]) -> JobView:
        """Return a live job."""
        place = extra.get(b"place", b"w")
        problem, reserved = "", place == b"r"
        try:
            state = unpack_state(extra.get(b"state", b""))
            job, broken = self._job_of(ident, body, state, state.get(b"due", 0) if reserved else moment)
        except _BROKEN as error:
            problem, state = f"the job's state cannot be read: {error}", {}
            job, broken = self._job_of(ident, body, state, 0 if reserved else moment)
        where = ("reserved" if reserved else "ready" if job.due_ms <= self._now_ms else "delayed") if place else ""
        job.parked = where == "ready" and is_in_lane(body)
        view = JobView(job, where, job.due_ms, read_ms=self._now_ms, broken=broken or problem)
        view.payload_count = extra.get(b"payloads", 0)
        if reserved:
            view.deadline_ms = job.deadline_ms = int(max(-FARTHEST, min(moment, FARTHEST)))
            view.taken = len(held_digests(state))
        if gate := extra.get(b"gate"):
            due_us = struct.unpack_from("<d", gate)[0] if len(gate) >= 8 else NEVER
            view.gated, view.gated_broken = self._job_of(ident, gate[8:], {}, due_us)
            view.gated_due_ms, view.gated_left_out = view.gated.due_ms, extra.get(b"gated_left_out", 0)
            if view.gated_left_out:
                view.gated.args = b""
        return view

    def _record(self, name: bytes, packed: bytes) -> JobView:
        """Return a job of the morgue (``lua/lib/grave.lua``)."""
        ident, key = split_name(name)
        try:
            stored = unpack(packed)
            texts = [stored[text].decode(errors="replace") for text in (b"outcome", b"reason", b"error_class")]
            payloads = stored.get(b"payloads", [])  # their number, if they were left out
            count = payloads if isinstance(payloads, int) else len(payloads)
            whole = [unpack_payload(one) for one in payloads if len(one) > 2 * KEY_BYTES] if payloads != count else []
            job, broken = self._job_of(ident, stored[b"body"], stored, stored[b"due"])
            buried_us = max(-NEVER, min(stored[b"buried_at"], NEVER))
        except _BROKEN as error:
            job, _ = self._job_of(ident, packed, {}, NEVER)
            job.key = key
            return JobView(job, "morgue", job.due_ms, broken=f"the morgue's record cannot be read: {error}")
        job.key = key
        view = JobView(job, "morgue", job.due_ms, read_ms=self._now_ms, broken=broken)
        view.buried_ms = int(buried_us // 1000)
        view.outcome, view.reason, view.error_class = texts
        if job.merged:
            view.payload_count, view.payloads = count, tuple(whole)
        return view


def record_name(ident: bytes, key: bytes) -> bytes:
    """Return the name of the morgue record of a generation."""
    return ident + b"\0" + key


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Return id and key in the name of a morgue record."""
    return name[: -KEY_BYTES - 1], name[-KEY_BYTES:]
