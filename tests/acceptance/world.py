"""The world of an acceptance test: a key prefix, its workers as real processes, and what their tasks leave behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from django_delayq.core import Counts, JobView, fsck
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import NewJob, Payload, new_id, new_key
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
#: s; what a slow machine may need for anything that has no bound of its own
PATIENCE = 40.0
#: pause between two looks at a condition: most of them ask Redis
POLL_SECONDS = 0.02
T = TypeVar("T")
_worlds = itertools.count(1)


def until(condition: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    return processes.wait_until(condition, timeout, what, pause=POLL_SECONDS)


class Node:
    """One ``manage.py delayq_worker`` (or dispatcher): a supervisor and its children."""

    def __init__(self, mill: Mill, process: subprocess.Popen[str], output: Path) -> None:
        self.mill = mill
        self.process = process
        self.pid = process.pid
        self.output = output

    def children(self) -> list[int]:
        """The living processes that do the work."""
        return processes.children(self.pid)

    def serving(self) -> list[int]:
        """Those children that have announced themselves."""
        announced = {worker["pid"] for worker in self.mill.broker.workers()}
        return sorted(pid for pid in announced if processes.parent(pid) == self.pid)

    def wait_ready(self, count: int) -> Node:
        try:
            until(lambda: self.process.poll() is not None or len(self.serving()) >= count, f"{count} serving processes")
            assert self.process.poll() is None
        except AssertionError as error:
            error.add_note(f"it said:\n{self.said}")
            raise
        return self

    @property
    def said(self) -> str:
        """Output of the process on stdout and stderr."""
        return self.output.read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """A signal to the supervisor; (exit code, seconds until the exit)."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.wait(), time.monotonic() - began

    def wait(self, timeout: float = PATIENCE) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        """As if its machine lost power: nobody is left to tidy up."""
        os.kill(self.pid, signal.SIGSTOP)
        pids = self.children()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)
        until(lambda: not any(map(processes.alive, pids)), "the end of all its processes")

    def close(self) -> None:
        pids = self.children() if self.process.poll() is None else []
        processes.end(self.process, sig=signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Mill:
    """A deployment of its own. ``with Mill(url, folder, lease=1.5) as mill: mill.start()``."""

    def __init__(self, url: str, folder: Path, *, lease: float = 15.0, database: str = "sqlite", **delayq: Any) -> None:
        self.url = url
        self.folder = folder
        self.prefix = f"mill{next(_worlds)}"
        self.log = folder / "mill.log"
        self.log.touch()
        self.broker = Broker(connect(RedisConfig.parse(url)), prefix=self.prefix, lease_ms=int(lease * 1000))
        self.delayq = {"LEASE": lease, **delayq}
        self.delayq["WORKER"] = {"grace": 5.0, **self.delayq.get("WORKER", {})}
        self.database = database
        self.nodes: list[Node] = []
        self._read_to = 0
        self._lines: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def __enter__(self) -> Mill:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close()
        self.broker.connection.close()

    # --- processes

    def env(self, **more: str) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "DELAYQ_TEST_URL": self.url,
            "DELAYQ_TEST_PREFIX": self.prefix,
            "DELAYQ_TEST_DB": self.database,
            "MILL_DELAYQ": json.dumps(self.delayq),
            "MILL_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
            "PYTHONUNBUFFERED": "1",
            **more,
        }

    def begin(self, *options: object, command: str = "delayq_worker", **env: str) -> Node:
        """Start a worker and do not wait for it."""
        output = self.folder / f"node-{len(self.nodes)}.log"
        with output.open("w") as file:
            process = processes.spawn(
                [sys.executable, "-m", "django", command, *map(str, options)],
                env=self.env(**env),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        node = Node(self, process, output)
        self.nodes.append(node)
        return node

    def start(self, *options: object, queues: str = "default", command: str = "delayq_worker", **env: str) -> Node:
        """Start a worker; returns when all its processes serve."""
        told = list(map(str, options))
        count = int(told[told.index("--processes") + 1]) if "--processes" in told else 1
        return self.begin(*told, "--queues", queues, command=command, **env).wait_ready(count)

    # --- jobs

    def job(self, task: str, *args: Any, id: str = "", **options: Any) -> NewJob:
        name = task if "." in task else f"mill.{task}"
        return NewJob(id or new_id(), name, encode_args(args, {}), **options)

    def put(self, task: str, *args: Any, queue: str = "default", **options: Any) -> str:
        """Schedule one job; returns its id."""
        job = self.job(task, *args, **options)
        self.broker.queue(queue).schedule(job)
        return job.id

    def portion(self, task: str, id: str, payload: Any, score: float, **options: Any) -> NewJob:
        """A job of a merged task: one payload for an id."""
        merged = {"on_conflict": "merge", "due_policy": "keep", **options}
        return NewJob(id, f"mill.{task}", payload=Payload(encode(payload), str(score), new_key()), **merged)

    def add(self, task: str, id: str, payload: Any, score: float = 1, *, queue: str, **options: Any) -> str:
        """Schedule one payload of a merged task; returns the outcome."""
        return self.broker.queue(queue).schedule(self.portion(task, id, payload, score, **options))

    def put_many(self, task: str, count: int, *args: Any, queue: str = "default", **options: Any) -> list[str]:
        jobs = [self.job(task, *args, **options) for _ in range(count)]
        self.broker.queue(queue).schedule_many(jobs)
        return [job.id for job in jobs]

    def counts(self, queue: str = "default") -> Counts:
        return self.broker.inspector.counts(queue)

    def view(self, ident: str, queue: str = "default") -> JobView | None:
        return self.broker.inspector.get(queue, ident)

    def buried(self, ident: str, queue: str = "default") -> JobView:
        """The job, once it lies in the morgue."""
        until(lambda: self.broker.inspector.graves(queue, ident), f"{ident} in the morgue")
        view = self.view(ident, queue)
        assert view is not None
        return view

    def wait_empty(self, queue: str = "default", timeout: float = PATIENCE) -> None:
        """Until no job waits or runs (some may be in the morgue)."""

        def empty() -> bool:
            counts = self.counts(queue)
            return counts.ready + counts.delayed + counts.reserved + counts.gated == 0

        until(empty, f"an empty queue {queue}", timeout)

    # --- the trace

    def lines(self, event: str = "", id: str = "") -> list[dict[str, Any]]:
        """Return the lines that the tasks have written so far."""
        with self.log.open("rb") as file:
            file.seek(self._read_to)
            fresh, _, _ = file.read().rpartition(b"\n")
        if fresh:
            self._read_to += len(fresh) + 1
            for line in map(_read_line, fresh.split(b"\n")):
                self._lines[""].append(line)
                self._lines[line["event"]].append(line)
        return [line for line in self._lines[event] if id in ("", line.get("id"))]

    def starts(self, id: str = "") -> list[dict[str, Any]]:
        return self.lines("start", id)

    def wait_starts(self, id: str, count: int = 1, timeout: float = PATIENCE) -> list[dict[str, Any]]:
        until(lambda: len(self.starts(id)) >= count, f"start {count} of {id}", timeout)
        return self.starts(id)

    def wait_ended(self, ids: Iterable[str], timeout: float = PATIENCE) -> None:
        wanted = set(ids)
        until(lambda: wanted <= {line["id"] for line in self.lines("end")}, f"the end of {len(wanted)} jobs", timeout)

    def starts_by_id(self) -> Counter[str]:
        return Counter(line["id"] for line in self.starts())

    # --- checks

    def check(self) -> None:
        """Assert that no job started early and that the data model is intact; runs after every test."""
        early = [line for line in self.starts() if line["at"] < line["due"] - 0.0005]
        assert not early, f"started before they were due: {early[:3]}"
        fsck.assert_invariants(self.broker)

    def gate(self, name: str = "gate") -> Path:
        """A file that tasks wait for; ``touch()`` opens it."""
        return self.folder / name


def _read_line(line: bytes) -> dict[str, Any]:
    """One line of the trace. A process that was killed in the middle of a write leaves the beginning of one behind."""
    found: dict[str, Any] = json.loads(line[line.rindex(b'{"event"') :])
    return found
