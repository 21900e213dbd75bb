"""Snapshot of a job, decoded from the replies of the inspector's scripts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..codec import decode_args, readable
from ..job import Generation, Job, Payload, Undecodable, created_ms
from ..records.fields import take_u32, unpack_names
from ..records.morgue_records import split_name, unpack_records
from ..records.reserve_frames import State, job_of, unpack_counts, unpack_state
from ..records.schedule_frames import unpack_payload

_PLACES: Final = ("", "waiting", "reserved")
#: number of payloads, bytes left out of the body, and of the gated one
_SIZES: Final = struct.Struct("<III")


@dataclass(slots=True)
class JobView:
    """Job as read at one moment.

    ``state`` is delayed, ready, reserved or morgue (from :meth:`Inspector.get_generation` also gated); ``failed`` jobs
    also wait.
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
        return JobView(self.gated, "gated", self.gated.due_ms, left_out=self.gated_left_out)

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
        """Time at which this generation was scheduled; see :func:`~..job.created_ms`."""
        return created_ms(self.job.key)

    @property
    def error(self) -> dict[str, Any]:
        """Last error: ``class``, ``message`` and ``traceback``, as far as they were kept."""
        try:
            fields = json.loads(self.job.error) if self.job.error else {}
        except (ValueError, RecursionError):
            fields = {"message": self.job.error.decode(errors="replace")}
        return fields if isinstance(fields, dict) else {"message": str(fields)}


def unpack_views(queue: str, shard: int, idents: Sequence[str], frame: bytes) -> list[JobView | None]:
    """Return the views in a reply of ``view.lua``, for all ids or the first of them: None for one that is not live."""
    (now_ms,) = struct.unpack_from("<d", frame)
    tasks, at = unpack_names(frame, 8)
    views: list[JobView | None] = []
    while at < len(frame):
        ident = idents[len(views)]
        place, when = struct.unpack_from("<Bd", frame, at)
        packed, at = take_u32(frame, at + 9)
        body, at = take_u32(frame, at)
        gate, at = take_u32(frame, at)
        payloads, left_out, gated_left_out = _SIZES.unpack_from(frame, at)
        at += _SIZES.size
        if not place:
            views.append(None)
            continue
        state = unpack_state(packed)
        reserved = _PLACES[place] == "reserved"
        due_us = state.due_us if reserved else when
        job, _ = job_of(queue, shard, ident, body, tasks, state, due_us)
        job.deadline_ms = int(when) if reserved else 0
        seen = "reserved" if reserved else "ready" if job.due_ms <= now_ms else "delayed"
        behind = None
        if gate:
            behind, _ = job_of(queue, shard, ident, gate[8:], tasks, State(), struct.unpack_from("<d", gate)[0])
            behind.args = b"" if gated_left_out else behind.args
        if left_out:
            job.args = b""
        views.append(
            JobView(
                job,
                seen,
                job.due_ms,
                behind.due_ms if behind else None,
                payloads,
                job.deadline_ms or None,
                gated=behind,
                left_out=left_out,
                gated_left_out=gated_left_out,
            )
        )
    return views


def unpack_graves(queue: str, shard: int, frame: bytes) -> Iterator[JobView]:
    """Yield the morgue records in a reply of ``graves.lua``."""
    tasks, records = unpack_records(frame)
    for name, left_out, record in records:
        ident, key = split_name(name)
        state = State(
            failures=record.failures,
            reserves=record.reserves,
            crashes=record.crashes,
            error=record.error,
            counts=unpack_counts(record.counts, 0)[0],
        )
        job, _ = job_of(queue, shard, ident.decode(), record.body, tasks, state, record.due_us)
        job.key = key
        if left_out:
            job.args = b""
        payloads = tuple(_grave_payloads(record.payloads)) if job.merged else ()
        count = int.from_bytes(record.payloads[:4], "little") if job.merged and left_out else len(payloads)
        yield JobView(
            job,
            "morgue",
            job.due_ms,
            None,
            count,
            None,
            int(record.buried_us // 1000),
            record.outcome.decode(),
            record.reason.decode(errors="replace"),
            record.error_class.decode(errors="replace"),
            payloads,
            left_out=left_out,
        )


def _grave_payloads(frame: bytes) -> Iterator[Payload]:
    """Yield the payloads of a morgue record, which begin with their number."""
    for record in framed(frame[4:]):
        if len(record) > 32:
            yield unpack_payload(record)


def framed(frame: bytes) -> Iterator[bytes]:
    """Yield records that have 32-bit lengths in front."""
    at = 0
    while at < len(frame):
        record, at = take_u32(frame, at)
        yield record
