"""Registry of workers: their heartbeats and states, and the commands that operators send to them.

A worker receives its pending commands in the reply to each announcement. A command is repeated until the worker
confirms it, because a reply may get lost; the worker carries it out once.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidJob
from .inputs import check_queue_name
from .records.keys import choices_key, commands_key, dump_key, tasks_key, workers_key
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker

#: words of the commands
COMMANDS: Final = ("stop", "drain", "dump")
#: words of the commands that concern a queue
WATCH: Final = "watch"
IGNORE: Final = "ignore"
CHOICES: Final = (WATCH, IGNORE)
#: seconds after a program's last announcement for which its choices of queues are kept (``lua/announce.lua``)
CHOICES_KEPT: Final = 86_400
#: seconds for which stacks are kept
DUMP_KEPT: Final = 600
MOST_DUMP_BYTES: Final = 64 * 1024
#: a worker without an announcement for this long, or for three of its heartbeats, is not expected to run a job
ALIVE_MS: Final = 15_000
_CUT: Final = b"\n... (cut here)"
#: workers whose tasks are read in one call
_READ_TOGETHER: Final = 16
#: where half of a surrogate pair may be: escaped, or as bytes
_SURROGATE: Final = re.compile(rb"\\u[dD]|\xed")


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """Command for a worker: one of ``COMMANDS``. ``id`` is that of the call that sent it."""

    word: str
    id: str


@dataclass(frozen=True, slots=True)
class AnnouncementReply:
    """Reply to a worker's announcement.

    Redis's time in ms, the commands that the worker has not confirmed yet, and the queues that operators added to its
    program ("watch") or took from it ("ignore").
    """

    now_ms: float
    commands: tuple[WorkerCommand, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)


def announce(
    broker: Broker, name: str, info: dict[str, Any], done: Sequence[str] | None, tasks: Iterable[str] | None
) -> tuple[AnnouncementReply, str]:
    """Announce a worker (:meth:`Broker.announce`); return the reply and the registry's change counter."""
    prefix = broker.prefix
    names = (workers_key(prefix), broker.queues_key, commands_key(prefix), tasks_key(prefix))
    keys = tuple(key.encode() for key in (*names, choices_key(prefix, _program_of(info, name))))
    description = json.dumps(info, separators=(",", ":"))
    confirmed = "*" if done is None else " ".join(done)
    packed = b"" if tasks is None else pack_tasks(tasks)
    reply: bytes = broker.scripts.call("announce", keys, name, description, confirmed, packed)
    now_ms, changes, *words = reply.decode().split(" ")
    pairs = [one.split(":") for one in words]
    commands = tuple([WorkerCommand(word, ident) for word, ident in pairs if word in COMMANDS])
    choices = {queue: word for word, queue in pairs if word in CHOICES}
    return AnnouncementReply(float(now_ms), commands, choices), changes


def _program_of(worker: Mapping[str, Any], name: str) -> str:
    """Return the program that a worker process belongs to: all processes of one supervisor have the same."""
    return str(worker.get("program") or name)


def choices_of(broker: Broker, program: str) -> dict[str, str]:
    """Return the queues that operators added to a program ("watch") or took from it ("ignore")."""
    with clear_errors():
        stored: dict[bytes, bytes] = broker.client.hgetall(choices_key(broker.prefix, program))
    return {queue.decode(): word.decode() for queue, word in stored.items()}


def forget(broker: Broker, name: str) -> None:
    """Remove a worker (:meth:`Broker.forget`): first from the registry, so that no further command is accepted."""
    with clear_errors():
        broker.client.hdel(workers_key(broker.prefix), name)
        broker.client.hdel(commands_key(broker.prefix), *(f"{word}:{name}" for word in COMMANDS))
        broker.client.hdel(tasks_key(broker.prefix), name)


def pack_tasks(names: Iterable[str]) -> bytes:
    """Return names of tasks as they are stored: a zero character in front of each, and one at the end."""
    return "".join(["\0", *(f"{name}\0" for name in names)]).encode()


def is_among(task: str, packed: bytes | None) -> bool:
    """Return True if a task is among the packed names."""
    return f"\0{task}\0".encode() in (packed or b"")


def is_alive(worker: Mapping[str, Any], now_ms: float, *, least_ms: float = ALIVE_MS) -> bool:
    """Return True if a worker announced itself within ``least_ms``, or three of its heartbeats if they take longer."""
    heartbeat = worker.get("heartbeat_ms")  # missing in the announcement of an older release
    allowed_ms = 3 * heartbeat if type(heartbeat) is int else 0
    # What is announced far in the future was announced before the clock was put back, and not since.
    return bool(abs(now_ms - worker["seen_ms"]) < max(least_ms, allowed_ms))


def runs_jobs_of(worker: Mapping[str, Any], queue: str, now_ms: float) -> bool:
    """Return True if a worker is alive and reserves jobs from a queue. It may be of another release."""
    queues = worker.get("queues")
    serves = worker.get("all_queues") is True or (isinstance(queues, list) and queue in queues)
    serves = serves and queue not in (worker.get("ignored") or ())
    busy = bool(worker.get("threads")) and not worker.get("stopping")
    return serves and busy and is_alive(worker, now_ms)


def knows_task(broker: Broker, queue: str, task: str, now_ms: float) -> bool:
    """Return True if a live worker of a queue can run a task; see :meth:`Broker.knows_task`."""
    names = [worker["name"] for worker in broker.workers() if runs_jobs_of(worker, queue, now_ms)]
    with clear_errors():
        for start in range(0, len(names), _READ_TOGETHER):
            chunk = names[start : start + _READ_TOGETHER]
            if any(is_among(task, packed) for packed in broker.client.hmget(tasks_key(broker.prefix), chunk)):
                return True
    return False


def read(broker: Broker) -> list[dict[str, Any]]:
    """Return the registered workers by name; see :meth:`Broker.workers`."""
    with clear_errors():
        stored = broker.client.hgetall(workers_key(broker.prefix))
    workers = []
    for name, announcement in sorted(stored.items()):
        seen_ms, _, description = announcement.partition(b":")
        workers.append({**_decode(description), "name": name.decode(errors="replace"), "seen_ms": int(seen_ms)})
    return workers


def _decode(stored: bytes) -> dict[str, Any]:
    """Return a worker's description as text and numbers that every page, response and log can carry.

    Half of a surrogate pair (in a job's id, or a host's name) is valid JSON, but no encoding can write it.
    """
    try:
        description = json.loads(stored, parse_constant=lambda _: None)
        if _SURROGATE.search(stored):
            description = json.loads(json.dumps(description, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return description if isinstance(description, dict) else {}


def send_command(broker: Broker, name: str, word: str, queue: str = "") -> bool:
    """Send a command to a worker; see :meth:`Broker.tell_worker`."""
    if word in CHOICES:
        return _choose(broker, name, word, queue)
    if word not in COMMANDS:
        raise InvalidJob(f"{word!r} is no command of a worker; use one of {', '.join((*COMMANDS, *CHOICES))}")
    if queue:
        raise InvalidJob(f"the command {word!r} concerns the whole worker; leave out the queue")
    keys = (workers_key(broker.prefix).encode(), commands_key(broker.prefix).encode())
    return bool(broker.scripts.call("command", keys, name, word, secrets.token_hex(8)))


def _choose(broker: Broker, name: str, word: str, queue: str) -> bool:
    """Store which queue the program of a worker is to serve from now on, or no longer."""
    if not queue:
        raise InvalidJob(f"the command {word!r} needs the name of a queue: tell_worker(name, {word!r}, queue)")
    registered = broker.require_queue(check_queue_name(queue))
    if word == WATCH and registered.kind != "python":
        raise InvalidJob(
            f"queue {queue!r} is of kind {registered.kind!r}, which workers leave to others; use "
            f"django_delayq.Queue({queue!r}).reserve()"
        )
    worker = next((worker for worker in read(broker) if worker["name"] == name), None)
    if worker is None:
        return False
    key = choices_key(broker.prefix, _program_of(worker, name))
    with clear_errors():
        broker.client.hset(key, queue, word)
        broker.client.expire(key, CHOICES_KEPT)
    return True


def keep_dump(broker: Broker, name: str, text: str, now_ms: float) -> None:
    """Store a worker's stacks; see :meth:`Broker.keep_dump`."""
    with clear_errors():
        broker.client.set(dump_key(broker.prefix, name), b"%d:%b" % (int(now_ms), cut(text)), ex=DUMP_KEPT)


def cut(text: str) -> bytes:
    """Return the text as bytes, cut to ``MOST_DUMP_BYTES``."""
    encoded = text.encode(errors="replace")
    if len(encoded) > MOST_DUMP_BYTES:
        encoded = encoded[: MOST_DUMP_BYTES - len(_CUT)].decode(errors="ignore").encode() + _CUT
    return encoded


def dump_of(broker: Broker, name: str) -> tuple[float, str] | None:
    """Return the time and the text of a worker's stacks; see :meth:`Broker.dump_of`."""
    with clear_errors():
        stored = broker.client.get(dump_key(broker.prefix, name))
    if stored is None:
        return None
    at, _, text = stored.partition(b":")
    return float(at), text.decode(errors="replace")
