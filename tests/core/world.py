"""Reading of all data from Redis, key by key, into plain Python for whole comparisons."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import NoScriptError

from django_delayq.core import Broker, Payload, Queue
from tests.support.core_stored import (
    DUE_KEYS,
    held_digests,
    job_of,
    unpack,
    unpack_body,
    unpack_fields,
    unpack_marks,
    unpack_payload,
    unpack_state,
)

from .model_values import Content

#: what may differ between two equal worlds: time seen, replies remembered, statistics, wake tokens
BOOKKEEPING = ("reply", "window", "count", "event", "meta", "task")

_SETS = (*DUE_KEYS, "lease", "order", "failed", "failures", "morgue")
_HASHES = ("body", "state", "gate", "payload", "grave", "count", "task", "marks", "meta")

#: one round trip with a reply of what is there; a pipeline costs more than all the rest of a step of a random history
_READ = """
local found = {}
for place, key in ipairs(KEYS) do
  local is_set = place <= tonumber(ARGV[1])
  local all = is_set and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or redis.call('HGETALL', key)
  found[place] = all[1] and all or false
end
return found
"""
_SHA = hashlib.sha1(_READ.encode(), usedforsecurity=False).hexdigest()


def _read(queue: Queue, number: int) -> Iterator[list[bytes]]:
    """Yield the members of a shard's sorted sets, each with its score, and the fields of its hashes with the values."""
    names, client = queue.shard(number).names, queue.deployment.client
    keys = [names[name] for name in (*_SETS, *_HASHES)]
    try:
        found = client.evalsha(_SHA, len(keys), *keys, len(_SETS))
    except NoScriptError:
        found = client.eval(_READ, len(keys), *keys, len(_SETS))
    return (each or [] for each in found)


def read_world(queue: Queue, number: int) -> dict[str, Any]:
    """Read one shard in the form of ``ModelShard.world()``."""
    found = [list(zip(flat[::2], flat[1::2], strict=True)) for flat in _read(queue, number)]
    *dues, lease, order, failed, failures, morgue = (
        [(i, float(score)) for i, score in one] for one in found[: len(_SETS)]
    )
    body, state, gate, payload, grave, count, task, settled, meta = map(dict, found[len(_SETS) :])
    tasks = {struct.unpack("<H", name[1:])[0]: value.decode() for name, value in task.items() if name[:1] == b"\0"}
    of_id = dict(failures)
    known = set(body) | {member[:-34] for member, _ in order}
    assert not {*state, *gate, *(name[:-18] for name in payload)} - known, "records of ids that do not live"
    assert len(payload) == len(order)
    return {
        "waiting": [(p, i.decode(), s // 1000) for p, found in enumerate(dues) for i, s in found],
        "reserved": [(deadline, i.decode()) for i, deadline in lease],
        "lives": {
            i.decode(): _live(i, packed, state.get(i, b""), gate.get(i), order, payload, tasks)
            for i, packed in body.items()
        },
        "failed": [(i.decode(), int(of_id[i]), s // 1000) for i, s in failed],
        "morgue": [((name[:-17].decode(), name[-16:]), s // 1000) for name, s in morgue],
        "graves": {(name[:-17].decode(), name[-16:]): _grave(record, tasks) for name, record in grave.items()},
        "marks": {mark.key: mark.end for mark in unpack_marks(b"".join(key + mark for key, mark in settled.items()))},
        "counters": {name.decode(): int(value) for name, value in count.items()},
        "token": int(meta.get(b"token", 0)),
        "hold_ms": int(meta.get(b"hold", 0)),
    }


def _content(packed: bytes, tasks: dict[int, str]) -> Content:
    priority, merged, key, task, options, args = unpack_body(packed, tasks)
    laned = bool(packed[0] & 64)
    group = packed[20 : 20 + packed[19]].decode() if laned else ""
    return Content(key, task, merged, args, options, priority, laned, group)


def _live(
    ident: bytes, body: bytes, packed: bytes, gate: bytes | None, order: Any, payloads: Any, tasks: dict[int, str]
) -> dict[str, Any]:
    state = unpack_state(packed)
    job = job_of("", 0, "", body, tasks, state, 0)
    waiting: list[Payload] = []
    running: list[Payload] = []
    for member, _ in order:
        if member[:-34] == ident:
            digest, slot = member[-17:-1], member[-1:]
            flies = digest in held_digests(state) and slot == b"0"
            (running if flies else waiting).append(unpack_payload(payloads[ident + b"\0" + digest + slot]))
    return {
        "content": _content(body, tasks),
        "failures": job.failures,
        "reserves": job.reserves,
        "crashes": job.crashes,
        "counts": job.counts,
        "own_crashes": job.own_crashes,
        "quarantined": job.quarantined,
        "flags": job.flags,
        "failed_at_ms": job.failed_at_ms,
        "error": job.error,
        "postponed": (job.postponed_for, job.postponed_at_ms),
        "token": job.token,
        "worker": job.worker,
        "old_due_ms": state.get(b"due", 0) // 1000 if job.token else 0,
        "gate": (struct.unpack("<d", gate[:8])[0] // 1000, _content(gate[8:], tasks)) if gate else None,
        "waiting": waiting,
        "running": running,
    }


def _grave(record: bytes, tasks: dict[int, str]) -> dict[str, Any]:
    stored = unpack_fields(record)
    job = job_of("", 0, "", stored["body"], tasks, unpack(record), 0)
    return {
        "content": _content(stored["body"], tasks),
        "due_ms": stored["due"] // 1000,
        "buried_ms": stored["buried_at"] // 1000,
        "failures": job.failures,
        "reserves": job.reserves,
        "crashes": job.crashes,
        "counts": job.counts,
        "outcome": stored["outcome"].decode(),
        "reason": stored["reason"].decode(),
        "error_class": stored["error_class"].decode(),
        "error": stored["error"],
        "payloads": [unpack_payload(payload) for payload in stored.get("payloads", ())],
    }


def raw(broker: Broker) -> dict[str, Any]:
    """Return every key of the deployment with its content, except bookkeeping, to prove that nothing changed."""
    client, found = broker.client, {}
    for key in sorted(client.scan_iter(f"{broker.prefix}:*")):
        name = key.decode()
        if not name.endswith(BOOKKEEPING) and ":wake:" not in name:
            kind = client.type(key)
            found[name] = (
                client.zrange(key, 0, -1, withscores=True)
                if kind == b"zset"
                else client.hgetall(key)
                if kind == b"hash"
                else client.dump(key)
            )
    return found


@contextmanager
def unchanged(broker: Broker) -> Iterator[None]:
    """Assert that the block does not change the data of any job."""
    before = raw(broker)
    yield
    assert raw(broker) == before
