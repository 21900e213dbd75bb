"""The cold path: what lies where. Nothing here changes a job.

A page is one shard-merged slice of an index, continued by a cursor that names the last entry seen, so paging through a
million jobs stays stable while others come and go.
"""

from __future__ import annotations

import base64
import heapq
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

from .errors import InvalidJob
from .frames import job_of, pack_id, take_u8, take_u16, take_u32, unpack_names, unpack_payload, unpack_state
from .job import PRIORITIES, Job, Payload, Undecodable, unpack_body
from .keys import SHARD_KEYS
from .scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue

_DUE_KEYS: Final = tuple(f"due.{priority}" for priority in range(PRIORITIES))
#: place -> by -> the indexes that hold it
INDEXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "waiting": {"due": _DUE_KEYS},
    "reserved": {"deadline": ("lease",)},
    "failed": {"updated": ("failed",), "failures": ("failures",)},
    "morgue": {"updated": ("morgue",), "id": ("morgue_id",)},
}
_PAGE: Final = 250
_PLACES: Final = ("", "waiting", "reserved")


@dataclass(slots=True)
class JobView:
    """A job as seen at one moment. ``state`` is delayed, ready, reserved or morgue; ``failed`` jobs also wait."""

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

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def error(self) -> dict[str, Any]:
        """The last error: ``class``, ``message`` and ``traceback``, as far as they were kept."""
        try:
            known = json.loads(self.job.error) if self.job.error else {}
        except ValueError:
            known = {"message": self.job.error.decode(errors="replace")}
        return known if isinstance(known, dict) else {"message": str(known)}


@dataclass(slots=True)
class Counts:
    """How many jobs of a queue lie where. ``failed`` jobs are also counted as delayed or ready."""

    queue: str
    now_ms: float = 0
    ready: int = 0
    delayed: int = 0
    reserved: int = 0
    gated: int = 0
    failed: int = 0
    morgue: int = 0
    oldest_due_ms: float | None = None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def lag_seconds(self) -> float:
        """How long the longest waiting ready job is overdue; 0 when nothing is due."""
        if self.oldest_due_ms is None:
            return 0.0
        return max(0.0, self.now_ms - self.oldest_due_ms) / 1000

    def add(self, answer: Sequence[Any]) -> None:
        """Adds what ``stats.lua`` says of one shard."""
        now_ms, ready, delayed, reserved, gated, failed, morgue, oldest, _deadline, _hold, *counters = answer
        self.now_ms = max(self.now_ms, float(now_ms))
        self.ready += ready
        self.delayed += delayed
        self.reserved += reserved
        self.gated += gated
        self.failed += failed
        self.morgue += morgue
        due_ms = float(oldest) // 1000
        if due_ms >= 0 and (self.oldest_due_ms is None or due_ms < self.oldest_due_ms):
            self.oldest_due_ms = due_ms
        for name, value in zip(counters[::2], counters[1::2], strict=True):
            self.counters[name.decode()] = self.counters.get(name.decode(), 0) + int(value)


@dataclass(slots=True)
class Page:
    """One page of jobs; ``cursor`` continues behind it, and is empty at the end."""

    jobs: list[JobView]
    cursor: str = ""


@dataclass(slots=True, order=True)
class _Entry:
    score: float
    member: bytes
    shard: int
    text: str = field(compare=False, default="")


class Inspector:
    """Looks at the queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- counts ------------------------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        """How many jobs of a queue lie where; nothing anywhere for a queue that does not exist."""
        opened = self._broker.known_queue(queue)
        return self._count([opened])[0] if opened else Counts(queue)

    def all_counts(self) -> list[Counts]:
        """The same for every queue, in one round trip to each node."""
        return self._count(self._broker.queues())

    def _count(self, queues: Sequence[Queue]) -> list[Counts]:
        counts = {queue.name: Counts(queue.name) for queue in queues}
        calls = [(queue, number) for queue in queues for number in range(queue.shards)]
        for (queue, _), answer in zip(calls, self._stats(calls), strict=True):
            counts[queue.name].add(answer)
        return list(counts.values())

    def _stats(self, calls: Sequence[tuple[Queue, int]]) -> list[Any]:
        if self._broker.connection.cluster or len(calls) == 1:
            return [self._ask(queue, number, "stats") for queue, number in calls]
        answers: list[Any]
        with clear_errors():
            sha, _ = self._broker.scripts.loaded("stats")
            pipeline = self._broker.client.pipeline(transaction=False)
            for queue, number in calls:
                shard = queue.shard(number)
                pipeline.evalsha(sha, len(shard.keys), *shard.keys, b"", shard.constants)
            answers = pipeline.execute(raise_on_error=False)
        for place, (queue, number) in enumerate(calls):
            if isinstance(answers[place], NoScriptError):
                answers[place] = self._ask(queue, number, "stats")
            elif isinstance(answers[place], Exception):
                with clear_errors():
                    raise answers[place]
        return answers

    # -- jobs --------------------------------------------------------------------------------------------------------

    def get(self, queue: str, ident: str) -> JobView | None:
        """The live job of an id, else the one that was buried last, else None."""
        opened = self._broker.known_queue(queue)
        if opened is None:
            return None
        live = self._view(opened, opened.shard_of(ident), [ident])
        if live:
            return live[0]
        graves = self.graves(queue, ident)
        return max(graves, key=lambda view: view.buried_ms or 0, default=None)

    def graves(self, queue: str, ident: str) -> list[JobView]:
        """All records of an id in the morgue (up to 250)."""
        opened = self._broker.known_queue(queue)
        if opened is None:
            return []
        number = opened.shard_of(ident)
        return list(_unpack_graves(opened.name, number, self._ask(opened, number, "graves", b"", ident.encode())))

    def peek(self, queue: str, limit: int = 10) -> list[JobView]:
        """The jobs that come next, in the order of their due times."""
        return self.page(queue, "waiting", limit=limit).jobs

    def page(self, queue: str, place: str, by: str = "", *, cursor: str = "", limit: int = 100,
             reverse: bool = False) -> Page:  # fmt: skip
        """A page of jobs.

        Args:
            place: waiting (delayed and ready), reserved, failed or morgue.
            by: the order: due (waiting), deadline (reserved), updated or failures (failed), updated or id (morgue);
                the first of these when empty.
            cursor: ``Page.cursor`` of the page before.
            limit: 1 … 250.
            reverse: from the end.

        Raises:
            InvalidJob: an unknown place, order or cursor.
        """
        orders = INDEXES.get(place)
        if orders is None:
            raise InvalidJob(f"{place!r} is no place to page through; use one of {', '.join(INDEXES)}")
        names = orders.get(by or next(iter(orders)))
        if names is None:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        opened = self._broker.known_queue(queue)
        if opened is None:
            return Page([])
        limit = max(1, min(limit, _PAGE))
        entries = self._entries(opened, names, _unpack_cursor(cursor), limit, reverse)
        views = self._view_entries(opened, place, entries)
        return Page(views, _pack_cursor(entries[-1]) if len(entries) == limit else "")

    def _entries(self, queue: Queue, names: tuple[str, ...], after: _Entry | None, limit: int,
                 reverse: bool) -> list[_Entry]:  # fmt: skip
        """The first entries behind the cursor, over all shards and all indexes of the place.

        An id lies in one shard and one index only, so (score, member) names an entry of the whole queue.
        """
        found: list[_Entry] = []
        for number in range(queue.shards):
            for name in names:
                score, member = (after.text, after.member) if after else ("", b"")
                answer = self._ask(queue, number, "page", SHARD_KEYS.index(name) + 1, b"1" if reverse else b"0", limit,
                                   score, member)  # fmt: skip
                for entry, text in zip(answer[::2], answer[1::2], strict=True):
                    found.append(_Entry(float(text), entry, number, text.decode()))
        pick = heapq.nlargest if reverse else heapq.nsmallest
        return pick(limit, found)

    def _view_entries(self, queue: Queue, place: str, entries: Iterable[_Entry]) -> list[JobView]:
        members: dict[int, list[bytes]] = {}
        ordered = list(entries)
        for entry in ordered:
            members.setdefault(entry.shard, []).append(entry.member)
        views: dict[tuple[int, bytes], JobView] = {}
        for number, mine in members.items():
            if place == "morgue":
                frame = b"".join(len(grave).to_bytes(2, "little") + grave for grave in mine)
                for view in _unpack_graves(queue.name, number, self._ask(queue, number, "graves", frame, b"")):
                    views[number, view.id.encode() + b"\0" + view.job.key] = view
            else:
                for view in self._view(queue, number, [member.decode() for member in mine]):
                    views[number, view.id.encode()] = view
        # What was settled between the two looks is left out; the cursor goes on behind it all the same.
        return [views[place_of] for entry in ordered if (place_of := (entry.shard, entry.member)) in views]

    def _view(self, queue: Queue, number: int, idents: Sequence[str]) -> list[JobView]:
        frame = self._ask(queue, number, "view", b"".join(map(pack_id, idents)))
        return list(_unpack_views(queue.name, number, idents, frame))

    def _ask(self, queue: Queue, number: int, script: str, *args: object) -> Any:
        shard = queue.shard(number)
        return self._broker.scripts.call(script, shard.keys, b"", shard.constants, *args)


def _pack_cursor(entry: _Entry) -> str:
    raw = b"%d:%b:%b" % (entry.shard, entry.text.encode(), entry.member)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unpack_cursor(cursor: str) -> _Entry | None:
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        shard, text, member = raw.split(b":", 2)
        return _Entry(float(text), member, int(shard), text.decode())
    except ValueError:
        raise InvalidJob(f"{cursor[:40]!r} is not a cursor of this inspector; start again without one") from None


def _unpack_views(queue: str, shard: int, idents: Sequence[str], frame: bytes) -> Iterator[JobView]:
    (now_ms,) = struct.unpack_from("<d", frame)
    tasks, at = unpack_names(frame, 8)
    for ident in idents:
        place, when = struct.unpack_from("<Bd", frame, at)
        packed, at = take_u32(frame, at + 9)
        body, at = take_u32(frame, at)
        gate, at = take_u32(frame, at)
        (payloads,) = struct.unpack_from("<I", frame, at)
        at += 4
        if not place:
            continue
        state = unpack_state(packed)
        reserved = _PLACES[place] == "reserved"
        due_us = state.due_us if reserved else when
        job = job_of(queue, shard, ident, body, tasks, state, due_us)
        job.deadline_ms = int(when) if reserved else 0
        seen = "reserved" if reserved else "ready" if job.due_ms <= now_ms else "delayed"
        gated = int(struct.unpack_from("<d", gate)[0] // 1000) if gate else None
        yield JobView(job, seen, job.due_ms, gated, payloads, job.deadline_ms or None)


def _unpack_graves(queue: str, shard: int, frame: bytes) -> Iterator[JobView]:
    tasks, at = unpack_names(frame, 0)
    while at < len(frame):
        grave, at = take_u16(frame, at)
        record, at = take_u32(frame, at)
        ident, key = grave[:-17], grave[-16:]
        due_us, buried_us, failures, reserves, crashes = struct.unpack_from("<ddHHH", record)
        inner = 22
        outcome, inner = take_u8(record, inner)
        reason, inner = take_u8(record, inner)
        error_class, inner = take_u8(record, inner)
        error, inner = take_u16(record, inner)
        body, inner = take_u32(record, inner)
        job = _buried_job(queue, shard, ident.decode(), key, body, tasks)
        job.due_ms, job.failures, job.reserves, job.crashes = int(due_us // 1000), failures, reserves, crashes
        job.error = error
        payloads = tuple(_grave_payloads(record[inner:])) if job.merged else ()
        yield JobView(job, "morgue", job.due_ms, None, len(payloads), None, int(buried_us // 1000), outcome.decode(),
                      reason.decode(errors="replace"), error_class.decode(errors="replace"), payloads)  # fmt: skip


def _buried_job(queue: str, shard: int, ident: str, key: bytes, body: bytes, tasks: Mapping[int, str]) -> Job:
    try:
        priority, merged, _, task, options, args = unpack_body(body, tasks)
    except Undecodable:
        priority, merged, task, options, args = 0, False, "", b"", body
    return Job(queue, shard, ident, task, key, args, options, priority, 0, merged=merged)


def _grave_payloads(frame: bytes) -> Iterator[Payload]:
    (n,) = struct.unpack_from("<I", frame)
    at = 4
    for _ in range(n):
        record, at = take_u32(frame, at)
        if len(record) > 32:
            yield unpack_payload(record)
