"""The registry of workers: who lives and does what, and what somebody tells one of them.

A worker hears what it was told with its next announcement. It is told again with each one until it says that it has
done so, because a reply may get lost; the worker does it once.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidJob
from .records.keys import dump_key, tasks_key, told_key, workers_key
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker

#: what a worker can be told
WORDS: Final = ("stop", "drain", "dump")
#: seconds for which stacks are kept
DUMP_KEPT: Final = 600
MOST_DUMP_BYTES: Final = 64 * 1024
#: a worker that was not heard of for so long, or for three heartbeats, is not counted on to run a job
ALIVE_MS: Final = 15_000
_CUT: Final = b"\n... (cut here)"
#: workers whose tasks are read in one call
_READ_TOGETHER: Final = 16
#: where there may be one: escaped, or as bytes
_SURROGATE: Final = re.compile(rb"\\u[dD]|\xed")


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """One of ``WORDS`` that somebody told a worker; ``id`` is that of the call that did so."""

    word: str
    id: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to an announcement: Redis's time in ms, and what the worker was told and has not done yet."""

    now_ms: float
    told: tuple[WorkerCommand, ...] = ()


def announce(
    broker: Broker, name: str, info: dict[str, Any], done: Sequence[str] | None, tasks: Iterable[str] | None
) -> tuple[Heard, str]:
    """See :meth:`Broker.announce`; also how often the registry of queues was changed."""
    names = (workers_key(broker.prefix), broker.queues_key, told_key(broker.prefix), tasks_key(broker.prefix))
    keys = tuple(name.encode() for name in names)
    said = json.dumps(info, separators=(",", ":"))
    ids = "*" if done is None else " ".join(done)
    known = b"" if tasks is None else pack_tasks(tasks)
    now_ms, changes, *told = broker.scripts.call("announce", keys, name, said, ids, known).decode().split(" ")
    return Heard(float(now_ms), tuple([WorkerCommand(*one.split(":")) for one in told])), changes


def forget(broker: Broker, name: str) -> None:
    """See :meth:`Broker.forget`. The registry first: from then on nobody can tell it anything."""
    with clear_errors():
        broker.client.hdel(workers_key(broker.prefix), name)
        broker.client.hdel(told_key(broker.prefix), *(f"{word}:{name}" for word in WORDS))
        broker.client.hdel(tasks_key(broker.prefix), name)


def pack_tasks(names: Iterable[str]) -> bytes:
    """Return names of tasks as they are stored: a zero character in front of each, and one at the end."""
    return "".join(["\0", *(f"{name}\0" for name in names)]).encode()


def is_among(task: str, packed: bytes | None) -> bool:
    """Return True if a task is among the packed names."""
    return f"\0{task}\0".encode() in (packed or b"")


def is_alive(worker: Mapping[str, Any], now_ms: float, *, least_ms: float = ALIVE_MS) -> bool:
    """Return True if a worker announced itself within ``least_ms``, or three of its heartbeats if they take longer."""
    heartbeat = worker.get("heartbeat_ms")  # an older release does not say
    patience = 3 * heartbeat if type(heartbeat) is int else 0
    return bool(now_ms - worker["seen_ms"] < max(least_ms, patience))


def runs_jobs_of(worker: Mapping[str, Any], queue: str, now_ms: float) -> bool:
    """Return True if a worker is alive and reserves jobs from a queue. It may be of another release."""
    queues = worker.get("queues")
    serves = worker.get("all_queues") is True or (isinstance(queues, list) and queue in queues)
    busy = bool(worker.get("threads")) and not worker.get("stopping")
    return serves and busy and is_alive(worker, now_ms)


def knows_task(broker: Broker, queue: str, task: str, now_ms: float) -> bool:
    """See :meth:`Broker.knows_task`."""
    names = [worker["name"] for worker in broker.workers() if runs_jobs_of(worker, queue, now_ms)]
    with clear_errors():
        for start in range(0, len(names), _READ_TOGETHER):
            some = names[start : start + _READ_TOGETHER]
            if any(is_among(task, packed) for packed in broker.client.hmget(tasks_key(broker.prefix), some)):
                return True
    return False


def read(broker: Broker) -> list[dict[str, Any]]:
    """See :meth:`Broker.workers`."""
    with clear_errors():
        said = broker.client.hgetall(workers_key(broker.prefix))
    found = []
    for name, words in sorted(said.items()):
        seen, _, info = words.partition(b":")
        found.append({**_said(info), "name": name.decode(errors="replace"), "seen_ms": int(seen)})
    return found


def _said(stored: bytes) -> dict[str, Any]:
    """Return a worker's announcement as text and numbers that every page, response and log can carry.

    Half of a surrogate pair (of a job's id, or a host's name) is valid JSON and no text: nothing can encode it.
    """
    try:
        said = json.loads(stored, parse_constant=lambda _: None)
        if _SURROGATE.search(stored):
            said = json.loads(json.dumps(said, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def check_word(word: str) -> None:
    """Refuses what a worker does not understand."""
    if word not in WORDS:
        raise InvalidJob(f"a worker cannot be told {word!r}; what it understands: {', '.join(WORDS)}")


def tell(broker: Broker, name: str, word: str) -> bool:
    """See :meth:`Broker.tell_worker`."""
    check_word(word)
    keys = (workers_key(broker.prefix).encode(), told_key(broker.prefix).encode())
    return bool(broker.scripts.call("tell", keys, name, word, secrets.token_hex(8)))


def keep_dump(broker: Broker, name: str, text: str, now_ms: float) -> None:
    """See :meth:`Broker.keep_dump`."""
    with clear_errors():
        broker.client.set(dump_key(broker.prefix, name), b"%d:%b" % (int(now_ms), cut(text)), ex=DUMP_KEPT)


def cut(text: str) -> bytes:
    """At most ``MOST_DUMP_BYTES`` of it."""
    encoded = text.encode(errors="replace")
    if len(encoded) > MOST_DUMP_BYTES:
        encoded = encoded[: MOST_DUMP_BYTES - len(_CUT)].decode(errors="ignore").encode() + _CUT
    return encoded


def dump_of(broker: Broker, name: str) -> tuple[float, str] | None:
    """See :meth:`Broker.dump_of`."""
    with clear_errors():
        stored = broker.client.get(dump_key(broker.prefix, name))
    if stored is None:
        return None
    at, _, text = stored.partition(b":")
    return float(at), text.decode(errors="replace")
