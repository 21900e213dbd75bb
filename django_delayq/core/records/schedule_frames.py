"""Frames of the scripts that schedule jobs or change them by id: ids, generations, new jobs, payloads."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

from ..errors import InvalidJob
from ..job import KEY_BYTES, MAX_ID_BYTES, MAX_TASK_BYTES, Generation, NewJob, Payload, new_key
from .body import BODY_MERGED, BODY_OPTIONS, BODY_VERSION
from .frames import pack

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
    return hashlib.sha1(data).digest()[:16]  # noqa: S324 (no security in it)


def generation_of(new: NewJob) -> Generation:
    """Return the generation that a schedule call created or joined."""
    key = new.joined or new.key
    if new.payload is None:
        return Generation((key,))
    return Generation((key, new.payload.key), digest(new.payload.data))


def pack_generation(generation: Generation | None) -> tuple[bytes, bytes]:
    """Return keys and digest as the scripts take them (``lua/lib/generation.lua``); None = any live generation."""
    return (b"", b"") if generation is None else (b"".join(generation.keys), generation.digest)


def pack_named(ident: bytes, keys: bytes = b"", payload_digest: bytes = b"") -> bytes:
    """Return an entry of the scripts that change a list of jobs (``lua/lib/each.lua``).

    Args:
        ident: the id.
        keys, payload_digest: see :func:`pack_generation`.
    """
    return b"%c%b%c%b%c%b" % (len(ident), ident, len(keys), keys, len(payload_digest), payload_digest)


def pack_known(ident: str, key: bytes, payload_digest: bytes = b"") -> bytes:
    """Return an entry of ``known.lua``.

    Raises:
        InvalidJob: an invalid id, key or digest.
    """
    encoded = encode_id(ident)
    if len(key) != KEY_BYTES or len(payload_digest) not in (0, KEY_BYTES):
        raise InvalidJob(f"a key has 16 bytes, and so has a digest, not {len(key)} and {len(payload_digest)}")
    return b"".join((bytes((len(encoded),)), encoded, key, bytes((len(payload_digest),)), payload_digest))


def pack_deadline(not_after_ms: float | None) -> bytes:
    """Return the last argument of ``schedule.lua`` and ``cancel.lua``."""
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


def pack_id(ident: str) -> bytes:
    """Return an id with its length in front."""
    encoded = ident.encode()
    return bytes((len(encoded),)) + encoded


def bad_id(ident: bytes) -> InvalidJob:
    """Return the error for an invalid id."""
    if b"\0" in ident:
        # It terminates the id in the names of payloads and morgue records.
        return InvalidJob("an id may not contain a zero character; use another one")
    return InvalidJob(f"an id has 1 to 255 bytes, this one has {len(ident)}; use a shorter one")


def pack_body(job: NewJob) -> bytes:
    """Return the body of one generation (:mod:`.body`) without its task number, which the script puts behind byte 1."""
    flags = job.priority | (BODY_MERGED if job.payload is not None else 0) | (BODY_OPTIONS if job.options else 0)
    head = bytes((flags | BODY_VERSION << 5,))
    if job.options:
        return b"".join((head, job.key or new_key(), _U16.pack(len(job.options)), job.options, job.args))
    return b"".join((head, job.key or new_key(), job.args))


def pack_new(job: NewJob) -> bytes:
    """Return an entry of ``schedule.lua``.

    Raises:
        InvalidJob: an invalid id or limit, or payloads are to be merged and there is none.
    """
    return pack(fields_of(job))


def fields_of(job: NewJob) -> dict[str, Any]:
    """Return the fields of an entry of ``schedule.lua``; see :func:`pack_new`."""
    ident = encode_id(job.id)
    if job.payload is None and job.on_conflict == "merge":
        raise InvalidJob("only jobs with a payload can be merged; give one, or use on_conflict='replace'")
    task = job.task.encode()
    if len(task) > MAX_TASK_BYTES:
        raise InvalidJob(f"the name of a task has at most {MAX_TASK_BYTES} bytes, this one has {len(task)}")
    # What is no number must not reach the script, which would fail between its writes.
    fields: dict[str, Any] = {"id": ident, "task": task, "body": pack_body(job)}
    if job.due_ms is None:
        fields |= {"ms": int(job.delay_ms or 0), "is_delay": True}
    else:
        fields["ms"] = int(job.due_ms)
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
