"""Registry of workers: their heartbeats and states, and the commands that operators send to them.

A worker receives its pending commands in the reply to each announcement. A command is repeated until the worker
confirms it, because a reply may get lost; the worker carries it out once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .deployment import Deployment
from .errors import InvalidJob
from .inputs import check_queue_name
from .redis.scripts import clear_errors
from .registry import QueueRegistry, ShardSet

#: words of the commands
COMMANDS: Final = ("stop", "drain", "dump")
#: words of the commands that concern a queue
WATCH: Final = "watch"
IGNORE: Final = "ignore"
CHOICES: Final = (WATCH, IGNORE)
#: seconds for which orders of operators are kept after a program's last announcement (``lua/announce.lua``)
ORDERS_KEPT: Final = 86_400
#: seconds for which stacks are kept
DUMP_KEPT: Final = 600
MOST_DUMP_BYTES: Final = 64 * 1024
#: a worker without an announcement for this long, or for three of its heartbeats, is not expected to run a job
ALIVE_MS: Final = 15_000
_CUT: Final = b"\n... (cut here)"


@dataclass(frozen=True, slots=True)
class AnnouncementReply:
    """Reply to a worker's announcement.

    Redis's time in ms, the commands that the worker has not confirmed yet (word -> id of the call that sent it), and
    the queues that operators added to its program ("watch") or took from it ("ignore").
    """

    now_ms: float
    commands: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)


class WorkerRegistry:
    """Workers of a deployment."""

    def __init__(self, queues: QueueRegistry[ShardSet]) -> None:
        self._queues = queues
        #: names of the limits that were set at run time, as of the last announcement; None = there was none yet
        self.own_limits: frozenset[str] | None = None
        self._deployment = queues.deployment
        #: change counter of the registry of queues, as of the last announcement
        self.changes = ""

    def announce(
        self, name: str, info: dict[str, Any], *, done: Sequence[str] | None = (), tasks: Iterable[str] | None = None
    ) -> AnnouncementReply:
        """Store a worker's heartbeat and state; return Redis's time and the pending commands for the worker.

        ``changes`` has another value afterwards if a queue was created, changed or deleted, or if Redis lost all of
        them.

        Args:
            done: ids of the commands that the worker has executed; None = the worker is new, so pending commands were
                meant for an earlier worker of its name and are dropped.
            tasks: names of the tasks that it can run; None = as announced before.
        """
        program = _program_of(info, name)
        keys = [
            self._deployment.key(one)
            for one in ("workers", "queues", "tasks", f"commands:{name}", _choices(program), "limits")
        ]
        # Half of a surrogate pair (in a job's id, or a host's name) is no text that every page and log can carry.
        description = json.dumps(info, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        confirmed = "*" if done is None else " ".join(done)
        known = b"" if tasks is None else "\0".join(["", *tasks, ""]).encode()
        now_ms, changes, commands, choices, limits = self._deployment.scripts.call(
            "announce", tuple(map(str.encode, keys)), name, description, confirmed, known
        )
        self.changes = changes.decode()
        self.own_limits = frozenset(limit.decode() for limit in limits)
        pending = dict(sorted(_pairs(commands), key=lambda pair: COMMANDS.index(pair[0])))
        return AnnouncementReply(float(now_ms), pending, dict(_pairs(choices)))

    def forget(self, name: str) -> None:
        """Remove a worker and its pending commands: first from the registry, so that it gets no further command."""
        client, key = self._deployment.client, self._deployment.key
        with clear_errors():
            client.hdel(key("workers"), name)
            client.delete(key(f"commands:{name}"))
            client.hdel(key("tasks"), name)

    def workers(self) -> list[dict[str, Any]]:
        """Return the last announced state of each worker, with ``name`` and ``seen_ms`` (Redis time).

        ``jobs`` lists what its threads ran then: at most 64 of ``slot``, ``queue``, ``id``, ``task``, ``started_ms``
        (Unix ms) and ``ids`` (number of jobs that this attempt handles together).
        """
        with clear_errors():
            stored = self._deployment.client.hgetall(self._deployment.key("workers"))
        workers = []
        for name, announcement in sorted(stored.items()):
            seen_ms, _, description = announcement.partition(b":")
            workers.append({**_decode(description), "name": name.decode(errors="replace"), "seen_ms": int(seen_ms)})
        return workers

    def knows_task(self, queue: str, task: str, now_ms: float) -> bool:
        """Return True if a live worker that reserves from a queue has announced that it can run a task.

        Args:
            now_ms: the time on Redis's clock.
        """
        names = [worker["name"] for worker in self.workers() if runs_jobs_of(worker, queue, now_ms)]
        with clear_errors():
            known = self._deployment.client.hmget(self._deployment.key("tasks"), names) if names else []
        return any(f"\0{task}\0".encode() in (packed or b"") for packed in known)

    def tell_worker(self, name: str, word: str, queue: str = "") -> bool:
        """Send a command to a worker, which receives it with its next announcement.

        Args:
            name: as returned by :meth:`workers`.
            word: stop (like SIGTERM to its program: all its processes end, with their grace period), drain (like
                SIGUSR1 to it: they finish the jobs that they hold), dump (the worker logs the stacks of its threads
                and keeps them for :meth:`dump_of`), watch or ignore (all processes of its program reserve from
                ``queue`` too, or no longer, until the program ends).
            queue: name of the queue, for watch and ignore.

        Returns:
            False if no such worker is registered.

        Raises:
            InvalidJob: an unknown command, no such queue, or one that workers do not reserve from.
        """
        if word in CHOICES:
            self._check_choice(word, queue)
        elif word not in COMMANDS:
            raise InvalidJob(f"{word!r} is no command of a worker; use one of {', '.join((*COMMANDS, *CHOICES))}")
        elif queue:
            raise InvalidJob(f"the command {word!r} concerns the whole worker; leave out the queue")
        worker = next((worker for worker in self.workers() if worker["name"] == name), None)
        if worker is None:
            return False
        if word in CHOICES:
            key, order = self._deployment.key(_choices(_program_of(worker, name))), (queue, word)
        else:
            key, order = self._deployment.key(f"commands:{name}"), (word, secrets.token_hex(8))
        self._deployment.scripts.call("command", (key.encode(),), *order, ORDERS_KEPT)
        return True

    def _check_choice(self, word: str, queue: str) -> None:
        if not queue:
            raise InvalidJob(f"the command {word!r} needs the name of a queue: tell_worker(name, {word!r}, queue)")
        registered = self._queues.require_queue(check_queue_name(queue))
        if word == WATCH and registered.kind != "python":
            raise InvalidJob(
                f"queue {queue!r} is of kind {registered.kind!r}, which workers leave to others; use "
                f"django_delayq.Queue({queue!r}).reserve()"
            )

    def keep_dump(self, name: str, text: str, now_ms: float) -> None:
        """Store a worker's stacks, taken at ``now_ms``, for 10 minutes; text beyond 64 KiB is cut off."""
        encoded = text.encode(errors="replace")
        if len(encoded) > MOST_DUMP_BYTES:
            encoded = encoded[: MOST_DUMP_BYTES - len(_CUT)].decode(errors="ignore").encode() + _CUT
        with clear_errors():
            stored = b"%d:%b" % (int(now_ms), encoded)
            self._deployment.client.set(self._deployment.key(f"dump:{name}"), stored, ex=DUMP_KEPT)

    def dump_of(self, name: str) -> tuple[float, str] | None:
        """Return the time (Unix ms) and the stacks of a worker's last "dump" command; None after 10 minutes."""
        with clear_errors():
            stored = self._deployment.client.get(self._deployment.key(f"dump:{name}"))
        if stored is None:
            return None
        at, _, text = stored.partition(b":")
        return float(at), text.decode(errors="replace")


def _program_of(worker: Mapping[str, Any], name: str) -> str:
    """Return the program that a worker process belongs to: all processes of one supervisor have the same."""
    return str(worker.get("program") or name)


def _choices(program: str) -> str:
    return f"choices:{program}"


def _pairs(words: list[bytes]) -> Iterator[tuple[str, str]]:
    texts = map(bytes.decode, words)
    return zip(texts, texts, strict=True)


def choices_of(deployment: Deployment, program: str) -> dict[str, str]:
    """Return the queues that operators added to a program ("watch") or took from it ("ignore")."""
    with clear_errors():
        stored: dict[bytes, bytes] = deployment.client.hgetall(deployment.key(_choices(program)))
    return {queue.decode(): word.decode() for queue, word in stored.items()}


def is_alive(worker: Mapping[str, Any], now_ms: float, *, least_ms: float = ALIVE_MS) -> bool:
    """Return True if a worker announced itself within ``least_ms``, or three of its heartbeats if they take longer."""
    # What is announced far in the future was announced before the clock was put back, and not since.
    return bool(abs(now_ms - worker["seen_ms"]) < max(least_ms, 3 * worker.get("heartbeat_ms", 0)))


def runs_jobs_of(worker: Mapping[str, Any], queue: str, now_ms: float) -> bool:
    """Return True if a worker is alive and reserves jobs from a queue."""
    serves = worker.get("all_queues") or queue in worker.get("queues", ())
    busy = worker.get("threads") and not worker.get("stopping")
    return bool(serves and busy and queue not in worker.get("ignored", ())) and is_alive(worker, now_ms)


def _decode(stored: bytes) -> dict[str, Any]:
    try:
        description = json.loads(stored, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return description if isinstance(description, dict) else {}
