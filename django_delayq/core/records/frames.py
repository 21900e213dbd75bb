"""Calls, replies and stored records of jobs, as the scripts read and write them.

Nearly all are MessagePack, in the form of Redis's library ``cmsgpack``: it knows one type of bytes, so texts come back
as bytes, and a map leaves out what has its default. Packed by hand are the body, since each job has one, and the
records of payloads, since they are kept in order.
"""

from __future__ import annotations

import hashlib
import struct
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import msgpack

from ..errors import InvalidJob
from ..job import (
    DEFAULT_PRIORITY,
    DURABLE,
    KEY_BYTES,
    MAX_ID_BYTES,
    MAX_TASK_BYTES,
    POSTPONED,
    STARTED,
    STOPPING,
    UNCLEAR,
    UNRENEWED,
    Generation,
    Job,
    JobCounts,
    NewJob,
    Payload,
    Undecodable,
    is_durable,
    new_key,
)
from ..outcomes import Batch, CompletionMark, End, Offer, Settlement, Tick


def packer() -> Callable[[Any], bytes]:
    """Return a function of one thread that returns values in MessagePack; to make it takes as long as to call it."""
    return cast(Callable[[Any], bytes], msgpack.Packer(use_bin_type=False).pack)


def pack(value: Any) -> bytes:
    """Return a value in MessagePack."""
    return packer()(value)


def unpack(packed: bytes) -> Any:
    """Return a value from MessagePack: texts are bytes, lists are tuples."""
    return msgpack.unpackb(packed, raw=True, strict_map_key=False, use_list=False)


def unpack_fields(packed: bytes) -> dict[str, Any]:
    """Return a map by the names of its fields; b"" is an empty one."""
    return named(unpack(packed)) if packed else {}


def named(fields: dict[bytes, Any]) -> dict[str, Any]:
    """Return a map that lies in another value by the names of its fields; the scripts pack an empty one as a list."""
    return {name.decode(): value for name, value in dict(fields).items()}


# -- bodies ------------------------------------------------------------------------------------------------------------

# Body of a job, the part that is fixed when it is scheduled. As stored: priority (3 bits), merged (8), options (16),
# version (32), in a lane (64), quarantine (128) u8 | number of the task in its shard u16 | key 16 bytes | [in a lane:
# length of the group u8 | group] | [options length u16 | options JSON] | arguments to the end. The name of the task
# would cost more than all the rest, so the shard stores each name once.
BODY_VERSION: Final = 1
#: bits of byte 1
BODY_MERGED: Final = 8
BODY_OPTIONS: Final = 16
_IN_LANE: Final = 64
_QUARANTINE: Final = 128
_HEAD: Final = 19


def unpack_body(body: bytes, tasks: Mapping[int, str]) -> tuple[int, bool, bytes, str, bytes, bytes]:
    """Return ``(priority, merged, key, task, options JSON, args)`` of a stored body.

    Args:
        body: the stored bytes.
        tasks: number -> name of the tasks of the shard.

    Raises:
        Undecodable: the bytes are not a body of a supported version.
    """
    if len(body) < _HEAD:
        raise Undecodable(f"a body of {len(body)} bytes is too short to be one")
    flags = body[0]
    if flags >> 5 & 1 != BODY_VERSION:
        raise Undecodable(f"body version {flags >> 5 & 1} is not known here; was it written by a newer release?")
    task = tasks.get(body[1] | body[2] << 8)
    if task is None:
        raise Undecodable("the body's task has no name in its shard")
    begin = _HEAD + 1 + len(_group_in(body)) if flags & _IN_LANE else _HEAD
    if not flags & BODY_OPTIONS:
        return flags & 7, bool(flags & BODY_MERGED), body[3:_HEAD], task, b"", body[begin:]
    end = begin + 2 + int.from_bytes(body[begin : begin + 2], "little")
    if end > len(body):
        raise Undecodable("the body is cut off inside its options")
    return flags & 7, bool(flags & BODY_MERGED), body[3:_HEAD], task, body[begin + 2 : end], body[end:]


def _group_in(body: bytes) -> bytes:
    """Return the group in the body of a job that is in a lane."""
    return body[_HEAD + 1 : _HEAD + 1 + body[_HEAD]] if len(body) > _HEAD else b""


# -- jobs to schedule, ids and generations -----------------------------------------------------------------------------

#: most jobs of one shard in one call
CHUNK: Final = 250
CONFLICT: Final = {"merge": 0, "replace": 1, "ignore": 2, "error": 3}
DUE_POLICY: Final = {"keep": 0, "replace": 1, "earliest": 2, "latest": 3, "inherit": 4}
SCORE_POLICY: Final = {"min": 0, "max": 1, "first": 2, "last": 3}
PAYLOAD_POLICY: Final = {"all": 0, "last": 1, "first": 2}
_U16 = struct.Struct("<H")


def sortable(score: str) -> bytes:
    """Return eight bytes that sort like the number (IEEE 754, sign bit flipped, negatives inverted)."""
    bits = int.from_bytes(struct.pack(">d", float(score)), "big")
    return (bits ^ (0xFFFFFFFFFFFFFFFF if bits >> 63 else 1 << 63)).to_bytes(8, "big")


def digest(data: bytes) -> bytes:
    """Return the digest that makes two payloads equal: the first 16 bytes of their SHA-1 (available in Lua, too)."""
    return hashlib.sha1(data, usedforsecurity=False).digest()[:16]


def generation_of(new: NewJob) -> Generation:
    """Return the generation that a schedule call created or joined."""
    key = new.joined or new.key
    if new.payload is None:
        return Generation((key,))
    return Generation((key, new.payload.key), digest(new.payload.data))


def pack_generation(generation: Generation | None) -> tuple[bytes, bytes]:
    """Return keys and digest as the scripts take them (``lua/lib/generation.lua``); None = any live generation."""
    return (b"", b"") if generation is None else (b"".join(generation.keys), generation.digest)


def pack_known(ident: str, key: bytes, payload_digest: bytes = b"") -> bytes:
    """Return an entry of ``known.lua`` (``lua/lib/each.lua``).

    Raises:
        InvalidJob: an invalid id, key or digest.
    """
    encoded = encode_id(ident)
    if len(key) != KEY_BYTES or len(payload_digest) not in (0, KEY_BYTES):
        raise InvalidJob(f"a key has 16 bytes, and so has a digest, not {len(key)} and {len(payload_digest)}")
    return pack((encoded, key, payload_digest))


def pack_deadline(not_after_ms: float | None) -> bytes:
    """Return the argument of ``schedule.lua`` for the moment until which it may store jobs."""
    return b"" if not_after_ms is None else b"%d" % not_after_ms


def encode_id(ident: str) -> bytes:
    """Return an id as bytes.

    Raises:
        InvalidJob: an invalid id.
    """
    encoded = ident.encode()
    if not 0 < len(encoded) <= MAX_ID_BYTES or b"\0" in encoded:
        raise bad_id(encoded)
    return encoded


def bad_id(ident: bytes) -> InvalidJob:
    """Return the error for an invalid id."""
    if b"\0" in ident:
        # It terminates the id in the names of payloads and morgue records.
        return InvalidJob("an id may not contain a zero character; use another one")
    return InvalidJob(f"an id has 1 to 255 bytes, this one has {len(ident)}; use a shorter one")


def pack_body(job: NewJob) -> bytes:
    """Return the body of one generation without its task number, which the script puts behind byte 1."""
    flags = job.priority | BODY_VERSION << 5 | (BODY_MERGED if job.payload is not None else 0)
    group = options = b""
    if job.options:
        flags, options = flags | BODY_OPTIONS, _U16.pack(len(job.options)) + job.options
    if job.group:  # it waits in a lane from the beginning
        name = job.group.encode()
        flags, group = flags | _IN_LANE, bytes((len(name),)) + name
    return b"".join((bytes((flags,)), job.key or new_key(), group, options, job.args))


def pack_new(job: NewJob) -> bytes:
    """Return an entry of ``schedule.lua``.

    Raises:
        InvalidJob: an invalid id or limit, or payloads are to be merged and there is none.
    """
    return pack(entry_of(job))


def entry_of(job: NewJob) -> tuple[Any, ...] | dict[str, Any]:
    """Return an entry of ``schedule.lua``; see :func:`pack_new`. Of a usual job it is a list, which takes less time."""
    is_usual = job.payload is None and job.on_conflict == job.due_policy == "replace" and job.reset_retries
    return content_of(job) if is_usual else fields_of(job)


def content_of(job: NewJob) -> tuple[bytes, bytes, bytes, bool, int]:
    """Return id, task, body, True if the next one is a delay, and the due time or delay (ms), as scripts take them.

    Raises:
        InvalidJob: an invalid id or a task's name that is too long.
    """
    ident, task = encode_id(job.id), job.task.encode()
    if len(task) > MAX_TASK_BYTES:
        raise InvalidJob(f"the name of a task has at most {MAX_TASK_BYTES} bytes, this one has {len(task)}")
    # What is no number must not reach the script, which would fail between its writes.
    if job.due_ms is None:
        return ident, task, pack_body(job), True, int(job.delay_ms or 0)
    return ident, task, pack_body(job), False, int(job.due_ms)


def fields_of(job: NewJob) -> dict[str, Any]:
    """Return the fields of an entry of ``schedule.lua`` by their names; see :func:`pack_new`."""
    if job.payload is None and job.on_conflict == "merge":
        raise InvalidJob("only jobs with a payload can be merged; give one, or use on_conflict='replace'")
    ident, task, body, is_delay, ms = content_of(job)
    fields: dict[str, Any] = {"id": ident, "task": task, "body": body, "ms": ms}
    if is_delay:
        fields["is_delay"] = True
    if job.on_conflict != "replace":
        fields["conflict"] = CONFLICT[job.on_conflict]
    if job.due_policy != "replace":
        fields["due_policy"] = DUE_POLICY[job.due_policy]
    if not job.reset_retries:
        fields["keeps_retries"] = True
    return fields if job.payload is None else fields | _merged_fields(job, job.payload)


def _merged_fields(job: NewJob, payload: Payload) -> dict[str, Any]:
    if not 0 < job.max_payloads <= 0xFFFFFFFF:
        raise InvalidJob(f"max_payloads is {job.max_payloads}; use 1 or more")
    return {
        "score_policy": SCORE_POLICY[job.score_policy],
        "score_is_now": not payload.score,
        "digest": digest(payload.data),
        "payload_policy": PAYLOAD_POLICY[job.payloads],
        "max_payloads": job.max_payloads,
        "record": pack_payload(payload),
    }


def pack_payload(payload: Payload) -> bytes:
    """Return a payload record without its arrival, which the script puts after the first eight bytes.

    Where there is no score the script fills in the time.
    """
    if len(payload.key) != KEY_BYTES:
        raise InvalidJob(f"the key of a payload has 16 bytes, this one has {len(payload.key)}; make it with new_key()")
    score = payload.score.encode()
    front = sortable(payload.score) if score else bytes(8)
    return b"".join((front, payload.key, bytes((len(score),)), score, payload.data))


def unpack_payload(record: bytes) -> Payload:
    """Return the payload of a stored record: sortable (8), arrival (8), key (16), score text, data."""
    end = 33 + record[32]
    return Payload(record[end:], record[33:end].decode(), record[16:32])


# -- reserved jobs -----------------------------------------------------------------------------------------------------

#: marks of a state -> flags of the job
_FLAGS: Final = {
    b"started": STARTED,
    b"unrenewed": UNRENEWED,
    b"stopping": STOPPING,
    b"unclear": UNCLEAR,
    b"postponed_at": POSTPONED,
}
_COUNTS: Final = (b"timeouts", b"releases", b"buries", b"kicks")
#: moments in a batch, in us: when the next job of those that are served is due, and the next one in quarantine
_NEXT: Final = ("next_due", "quarantined")
#: fields of a state (``lua/lib/state.lua``) by their names there; what is missing is 0 or empty
State: TypeAlias = Mapping[bytes, Any]


def unpack_batch(frame: bytes, queue: str, shard: int, worker: str) -> Batch:
    """Return the content of a batch of ``lua/lib/reserve.lua``."""
    batch = unpack_fields(frame)
    tasks = names_of(batch["tasks"])
    jobs: list[Job] = []
    broken: list[Job] = []
    for ident, due, body, other in zip(batch["ids"], batch["dues"], batch["bodies"], batch["others"], strict=True):
        is_fresh = not other or isinstance(other, bytes)
        job = job_of(queue, shard, ident.decode(), body, tasks, {} if is_fresh else dict(other[0]), due)
        job.worker = worker
        if is_fresh:
            job.token, job.reserves, job.permit = batch["token"], 1, other or b""
        else:
            try:
                job.payloads = tuple(map(unpack_payload, other[1]))
            except (IndexError, ValueError) as problem:
                job.broken = f"a payload cannot be read: {problem}"
        (broken if job.broken else jobs).append(job)
    now_ms = batch["now"] / 1000
    next_due, quarantined = (batch[name] // 1000 - now_ms if name in batch else None for name in _NEXT)
    wait = None if next_due is None else max(0.0, next_due)
    found = Batch(jobs, broken, wait, now_ms, quarantine_due_ms=quarantined, moved=batch.get("moved", 0))
    found.offers = [Offer(lane, tasks[_code_in(lane)], *numbers) for lane, *numbers in batch.get("offers", ())]
    found.idle = [scope.decode() for scope in batch.get("idle", ())]
    found.passed_over = batch.get("passed_over", False)
    return found


def _code_in(lane: bytes) -> int:
    return int.from_bytes(lane[-3:-1], "little")


def names_of(tasks: dict[bytes, bytes]) -> dict[int, str]:
    """Return number -> name of the tasks in a reply."""
    return {int.from_bytes(code, "little"): name.decode() for code, name in dict(tasks).items()}


def unpack_state(packed: bytes) -> State:
    """Return the fields of a stored state, and its token; a job that nobody has reserved yet has none."""
    if not packed:
        return {}
    token, fields = unpack(b"\x92" + packed)  # two values one after another, read as a list
    return {**dict(fields), b"token": token}  # an empty map is an empty list in Lua


def held_digests(state: State) -> list[bytes]:
    """Return the digests of the payloads that the attempt of a merged job holds."""
    taken = state.get(b"taken", b"")
    return [taken[place + 16 : place + 32] for place in range(0, len(taken) - 31, 32)]


#: a moment beyond it is read as this one (µs), which no calendar has, so it is not taken for a moment
NEVER: Final = 2.0**60


def job_of(
    queue: str, shard: int, ident: str, body: bytes, tasks: Mapping[int, str], state: State, due_us: float
) -> Job:
    """Return a job from its stored records; one whose body cannot be read is broken, and has an empty task."""
    broken = ""
    try:
        priority, merged, key, task, options, args = unpack_body(body, tasks)
    except Undecodable as error:
        priority = body[0] & 7 if body else DEFAULT_PRIORITY  # under which the scripts file it
        broken, merged, key, task, options, args = str(error), False, body[3:19], "", b"", body
    due_ms = int(max(-NEVER, min(due_us, NEVER)) // 1000)
    job = Job(queue, shard, ident, task, key, args, options, priority, due_ms, merged=merged, broken=broken)
    if body and body[0] >> 5 & 1 == BODY_VERSION:
        job.quarantined = bool(body[0] & _QUARANTINE)
        job.group = _group_in(body).decode(errors="replace") if body[0] & _IN_LANE else ""
    if state:
        _add_state(job, state)
    return job


def is_in_lane(body: bytes) -> bool:
    """Return True if the job of a stored body waits in a lane whenever it waits (``lua/lib/lanes.lua``)."""
    return bool(body) and body[0] >> 5 & 1 == BODY_VERSION and bool(body[0] & _IN_LANE)


def _add_state(job: Job, state: State) -> None:
    get = state.get
    job.token, job.failures, job.reserves = get(b"token", 0), get(b"failures", 0), get(b"reserves", 0)
    job.crashes, job.own_crashes, job.error = get(b"crashes", 0), get(b"own_crashes", 0), get(b"error", b"")
    job.failed_at_ms, job.postponed_at_ms = get(b"failed_at", 0), get(b"postponed_at", 0)
    job.worker = get(b"worker", b"").decode(errors="replace")
    job.postponed_for = get(b"postponed_for", b"").decode(errors="replace")
    job.permit = get(b"permit", b"")
    job.flags = sum([flag for name, flag in _FLAGS.items() if name in state])
    job.counts = JobCounts(*[get(name, 0) for name in _COUNTS])


def unpack_begun(frame: bytes, queue: str, shard: int) -> list[Job]:
    """Return the jobs of ``begun.lua``; ``deadline_ms`` is the moment at which the attempt began."""
    names, entries = unpack(frame)
    tasks, jobs = names_of(names), []
    for ident, moment, body, fields, *payloads in entries:
        state = dict(fields)
        job = job_of(queue, shard, ident.decode(), body, tasks, state, state.get(b"due", 0))
        job.deadline_ms = int(moment)
        job.payloads = tuple(unpack_payload(record) for records in payloads for record in records)
        jobs.append(job)
    return jobs


# -- settlements -------------------------------------------------------------------------------------------------------


#: marks of a settlement, which its entry has if they are true
_MARKS: Final = ("quarantine", "own_crash", "oldest", "inherit", "unclear", "postpone", "began", "timed_out", "once")


def pack_settlements(settlements: Sequence[Settlement]) -> bytes:
    """Return the entries of ``settle.lua``: usual acks as columns, and what has more to say."""
    is_ack = [settlement.verb == "ack" for settlement in settlements]
    order = sorted(range(len(settlements)), key=lambda place: not is_ack[place])
    ordered, number = [settlements[place] for place in order], sum(is_ack)
    acks, others = ordered[:number], ordered[number:]
    fields = {
        "ids": [settlement.job.id for settlement in acks],
        "tokens": [settlement.job.token for settlement in acks],
        "events": [settlement.event and pack_attempt(settlement) for settlement in acks],
        "durable": [_durable(settlement.job) for settlement in acks],
        "others": list(map(_fields_of, others)),
    }
    return pack(fields | {"places": [place + 1 for place in order]} if acks and others else fields)


def _fields_of(settlement: Settlement) -> dict[str, Any]:
    job, verb = settlement.job, settlement.verb
    fields = {
        "id": job.id,
        "token": job.token,
        "event": settlement.event and pack_attempt(settlement),
        "durable": verb in ("ack", "ack_early") and _durable(job),
        "verb": verb,
        "outcome": settlement.outcome,
        # A handler's text may contain anything, lone surrogates too.
        "reason": settlement.reason.encode(errors="backslashreplace")[:255],
        "error_class": settlement.error_class.encode(errors="backslashreplace")[:255],
        "error": settlement.error[:65535],
        # What is no number must not reach the script, which would fail between its writes.
        "delay": None if settlement.delay_ms is None else int(settlement.delay_ms),
        "priority": None if settlement.priority is None else bytes((settlement.priority,)),
        "score_policy": SCORE_POLICY[settlement.score_policy] if job.merged else None,
    } | {mark: getattr(settlement, mark) for mark in _MARKS}
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != b""}


def _durable(job: Job) -> bytes | bool:
    return waits_for_end(job) and (job.merged or job.key)


def waits_for_end(job: Job) -> bool:
    """Return True if the end of this attempt is awaited outside Redis."""
    if job.merged:
        return any(payload.key >= DURABLE for payload in job.payloads)
    return job.key >= DURABLE


def pack_attempt(settlement: Settlement) -> bytes:
    """Return the event of an ended attempt: its words in the order of ``COLUMNS`` (:mod:`..events`)."""
    job = settlement.job
    return b"%b\0%b\0%b\0%b\0%d\0%d\0%d\0%d\0%b\0\0\0\0" % (
        settlement.outcome.encode(),
        job.id.encode(),
        _word(job.task),
        hexlify(job.key),
        job.due_ms,
        settlement.started_ms,
        settlement.run_ms,
        job.failures + 1,
        _word(settlement.error_class),
    )


@lru_cache(maxsize=1024)
def _word(text: str) -> bytes:
    return text.encode(errors="replace").replace(b"\0", b"?")[:255]


# -- ticks and completion marks ----------------------------------------------------------------------------------------

_MARK: Final = struct.Struct("<16sBd")
_ENDS: Final = ("", "done", "buried", "live")


def unpack_tick(frame: bytes) -> tuple[Tick, dict[str, Any]]:
    """Return the reply of ``tick.lua``, and the rules of the shard."""
    reply = unpack_fields(frame)
    rules, due_us = named(reply.pop("rules")), reply.pop("next_due", None)
    reply["run_id"] = reply["run_id"].decode()
    now_ms, next_due_ms = reply.pop("now") / 1000, None if due_us is None else due_us // 1000
    return Tick(now_ms, next_due_ms, reply.pop("deadline", None), **reply), rules


def is_mark(key: bytes, value: bytes) -> bool:
    """Return True if an entry of a shard's marks is well-formed."""
    return len(key + value) == _MARK.size and is_durable(key) and 0 < value[0] < len(_ENDS)


def pack_marks(marks: Iterable[CompletionMark]) -> bytes:
    """Return marks in the form that ``marks.lua`` takes."""
    return b"".join(_MARK.pack(mark.key, _ENDS.index(mark.end), mark.stamp) for mark in marks)


def unpack_marks(frame: bytes) -> list[CompletionMark]:
    """Return the marks in a reply of ``marks.lua``."""
    return [CompletionMark(key, cast(End, _ENDS[end]), int(stamp)) for key, end, stamp in _MARK.iter_unpack(frame)]
