"""Run a campaign of idle processes: ``python -m tests.chaos.idle [--setups 20] [--seed N]``.

Each set-up draws queues, limits of queues, tasks and groups, shards and supervisors, and a few seconds of bursts,
refusals, pauses, changes of shards, starts and stops. Then it looks for due jobs that waited beside a free slot, and
for limits that did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.job import NewJob
from django_delayq.core.options import GROUP_LIMITS
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support import processes
from tests.support.redis_box import RedisBox

from .idle_history import Crew, Life, Limit, World
from .idle_worker import REFUSED_SECONDS, TASKS

ROOT = Path(__file__).resolve().parents[2]
#: s; of orders in each set-up
LENGTH = 8.0
#: s; after which the jobs of a set-up must have ended
DRAIN = 150.0
#: s; around an order within which its effect is not expected yet
MARGIN = 0.5
#: with their weights
GROUPS = {"x": 1, "y": 1, "z": 3}
#: what waits after a refusal
SCOPES = ("group", "task", "queue")


class Setup:
    """One set-up: queues, limits and supervisors, drawn by its dice."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self.dice = random.Random(f"{seed}-{number}")
        self.prefix = f"idle{seed}x{number}"
        self.url = url
        self.broker = Broker(connect(RedisConfig.parse(url)), prefix=self.prefix)
        self.queues = {f"q{one}": self.dice.randint(1, 3) for one in range(self.dice.randint(2, 4))}
        names = [*self.queues, TASKS[1]]
        self.limits = {name: limit for name in names if (limit := self._draw_limit())}
        #: groups, and what each allows
        self.groups = {
            name: self._draw_limit(in_processes=False) for name in [*GROUPS][: self.dice.choice([0, 1, 3, 3])]
        }
        self.supervisors: dict[subprocess.Popen[str], list[Crew]] = {}
        self.lives: dict[str, Life] = {}
        #: attempts that met a refusal
        self.refused: dict[str, Life] = {}
        self.pauses: dict[str, list[tuple[float, float]]] = {name: [] for name in self.queues}
        self.errors: list[str] = []

    def _draw_limit(self, *, in_processes: bool = True) -> dict[str, float]:
        total = {"total": self.dice.randint(2, 5)}
        local = {"local": self.dice.randint(1, 3)} if in_processes else {}
        rate = {"interval": self.dice.choice([0.02, 0.1, 0.25]), "burst": self.dice.randint(1, 5)}
        return self.dice.choice([{}, {}, total, total, local, {**total, **local}, rate, {**total, **rate}])

    def __str__(self) -> str:
        crews = [f"{len(crews)}x{crews[0].threads} {','.join(sorted(crews[0].queues))}" for crews in self._crews()]
        return f"queues {self.queues}, limits {self.limits}, groups {self.groups}, processes {'; '.join(crews)}"

    def _crews(self) -> list[list[Crew]]:
        return list(self.supervisors.values())

    # --- processes

    def start(self, queues: Sequence[str]) -> None:
        """Start a supervisor, and wait until all its processes serve."""
        count, threads = self.dice.randint(1, 2), self.dice.randint(1, 5)
        told = {
            "url": self.url,
            "prefix": self.prefix,
            "queues": sorted(queues),
            "processes": count,
            "threads": threads,
            "limits": self.limits,
        }
        process = processes.spawn(
            [sys.executable, "-m", "tests.chaos.idle_worker", "supervise"],
            env={"IDLE_SETUP": json.dumps(told), "PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", "")},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.supervisors[process] = []

        def serving() -> list[int]:
            return [one["pid"] for one in self.broker.workers() if processes.parent(one["pid"]) == process.pid]

        pids = processes.wait_until(lambda: len(found := serving()) >= count and found, 30, "its processes")
        since = time.time() + MARGIN
        self.supervisors[process] = [Crew(pid, frozenset(queues), threads, since) for pid in pids]

    def stop(self, process: subprocess.Popen[str]) -> None:
        """Stop a supervisor as a deploy does."""
        for crew in self.supervisors[process]:
            crew.until = min(crew.until, time.time())
        process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        for process in self.supervisors:
            pids = processes.children(process.pid) if process.poll() is None else []
            processes.end(process, sig=signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes.wait_until(lambda pids=pids: not any(map(processes.alive, pids)), 10, "the end of its processes")  # type: ignore[misc]
        self.broker.connection.close()

    # --- orders

    def run(self) -> World:
        """Draw and carry out the orders, wait for the end of all jobs, and return what happened."""
        for name, shards in self.queues.items():
            self.broker.queue(name, shards=shards)
        self.start(list(self.queues))
        for _ in range(self.dice.randint(0, 2)):
            some = self.dice.sample(list(self.queues), self.dice.randint(1, len(self.queues)))
            self.start(self.dice.choice([list(self.queues), some]))
        time.sleep(self.dice.uniform(0.5, 2.0))
        began = time.monotonic()
        for at, order in sorted(self._orders(), key=lambda one: one[0]):
            time.sleep(max(0.0, began + at - time.monotonic()))
            order()
        self._await_end()
        drawn = self.limits | {f"{queue}:{group}": it for queue in self.queues for group, it in self.groups.items()}
        limits: dict[str, Any] = {name: Limit(**limit) for name, limit in drawn.items()}  # type: ignore[arg-type]
        lives = [*self.lives.values(), *self.refused.values()]
        return World(list(itertools.chain(*self._crews())), lives, limits, self.pauses)

    def _orders(self) -> Iterator[tuple[float, Callable[[], None]]]:
        dice, names = self.dice, list(self.queues)
        for _ in range(dice.randint(1, 4)):
            queue, count, seconds = dice.choice(names), dice.randint(1, 6), dice.uniform(2.5, 4.5)
            yield dice.uniform(0.0, 4.0), lambda q=queue, n=count, s=seconds: self._burst(q, n, s)
        for _ in range(dice.randint(20, 60)):
            queue, delay = dice.choice(names), dice.choice([0.0, 0.0, dice.uniform(0.2, 4.0)])
            yield dice.uniform(0.0, LENGTH), lambda q=queue, d=delay: self._put(q, dice.choice([0.01, 0.1, 0.5]), d)
        if dice.random() < 0.3:
            queue, count = dice.choice(names), dice.randint(50, 150)
            yield dice.uniform(0.0, 4.0), lambda q=queue, n=count: self._burst(q, n, 0.05)
        if dice.random() < 0.4:
            queue, at = dice.choice(names), dice.uniform(0.0, 5.0)
            began: list[float] = []
            yield at, lambda q=queue: (began.append(time.time()), self.broker.pause(q, "out"))  # type: ignore[func-returns-value]
            yield at + dice.uniform(0.5, 3.0), lambda q=queue: self._resume(q, began[0])
        if dice.random() < 0.4:
            queue, shards = dice.choice(names), dice.randint(1, 4)
            yield dice.uniform(0.0, LENGTH), lambda q=queue, n=shards: self.broker.reshard(q, n)  # type: ignore[misc]
        if dice.random() < 0.4:
            yield dice.uniform(2.0, 6.0), lambda: self.start(names)
            yield dice.uniform(6.0, LENGTH), lambda: self.stop(next(iter(self.supervisors)))

    def _resume(self, queue: str, began: float) -> None:
        self.broker.resume(queue, "out")
        self.pauses[queue].append((began, time.time()))

    def _burst(self, queue: str, count: int, seconds: float) -> None:
        for _ in range(count):
            self._put(queue, seconds, 0.0)

    def _put(self, queue: str, seconds: float, delay: float) -> None:
        ident, task = f"{self.prefix}-{len(self.lives)}", self.dice.choice(TASKS)
        group = self.dice.choice(["", *self.groups])
        limit = self.groups.get(group)
        numbers = limit and [
            limit.get("total", 0),
            limit.get("interval", 0) * 1e6,
            limit.get("burst", 0),
            GROUPS[group],
        ]
        refused = self.dice.choice(SCOPES) if self.dice.random() < 0.03 else ""
        job = NewJob(
            ident,
            task,
            encode_args((seconds, refused), {}),
            delay_ms=int(delay * 1000),
            priority=self.dice.choice([0, 4, 4, 4, 7]),
            options=json.dumps({GROUP_LIMITS: numbers}, separators=(",", ":")).encode() if numbers else b"",
            group=group,
        )
        self.broker.queue(queue).schedule(job)
        named = f"{queue}:{group}" if group else ""
        self.lives[ident] = Life(ident, queue, task, time.time() + delay, group=named)

    def _await_end(self) -> None:
        until = time.monotonic() + DRAIN
        while time.monotonic() < until and len(self._read_trace()) < len(self.lives):
            time.sleep(0.2)
        if missing := len(self.lives) - len(self._read_trace()):
            self.errors.append(f"{missing} jobs did not end within {DRAIN:g} s")

    def _read_trace(self) -> list[str]:
        """Read what the tasks recorded. Return the ids of the jobs that have ended."""
        ended = []
        for line in self.broker.client.lrange(f"trace:{self.prefix}", 0, -1):
            word, ident, pid, at, scope = line.decode().split(":")
            life = self.lives[ident]
            if word == "start":
                life.start, life.pid = float(at), int(pid)
            elif word == "refused":
                self._note_refusal(life, float(at), scope)
            else:
                life.end = float(at)
                ended.append(ident)
        return ended

    def _note_refusal(self, life: Life, at: float, scope: str) -> None:
        """Record an attempt that met a refusal: its job, and those of the scope if that has limits, wait."""
        if life.id in self.refused:
            return
        self.refused[life.id] = replace(life, id=f"{life.id} (refused)", end=at)
        life.due = at + REFUSED_SECONDS
        name = {"group": life.group, "task": life.task, "queue": life.queue}[scope]
        if name and (name == life.group or name in self.limits):
            self.pauses.setdefault(name, []).append((at, at + REFUSED_SECONDS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.idle", description=__doc__.splitlines()[0])
    parser.add_argument("--setups", type=int, default=20, help="number of set-ups (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of everything that is drawn")
    options = parser.parse_args(arguments)
    broken = 0
    with RedisBox() as box:
        for number in range(options.setups):
            with contextlib.closing(Setup(box.url, number, options.seed)) as setup:
                world: Any = setup.run()
                found = [*setup.errors, *world.violations()]
                slowest = max((life.start - life.due for life in world.lives), default=0.0)
                print(f"{number}: {setup}, {len(world.lives)} jobs, latest start {slowest:.1f} s", flush=True)
            for sentence in found[:5]:
                print("BROKEN", sentence, file=sys.stderr, flush=True)
            broken += bool(found)
    print(
        f"seed {options.seed}: {broken} of {options.setups} set-ups left due jobs beside a free slot, or broke a limit"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
