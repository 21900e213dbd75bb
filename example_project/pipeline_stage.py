"""Environment of the pipeline demo: its folder, Redis, database, commands and workers."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_parts import CannotStart, Folder, Process, Terminal, Watchdog

from django_delayq.core import Broker, Counts, RedisConfig, connect
from django_delayq.core.errors import Misconfigured
from django_delayq.embedded import EmbeddedRedis

HERE = Path(__file__).resolve().parent
#: seconds without a finished job after which the workers count as stuck
PATIENCE = 120
LOOK = 0.2
TELL = 5.0


class Failed(Exception):
    """Error for a step that failed; the message says what to look at."""


def typed(arguments: Sequence[str]) -> str:
    """Return a command of the project as a user would type it."""
    words = (f'"{word}"' if "'" in word and not set(word) & set('"$`!\\') else shlex.quote(word) for word in arguments)
    return " ".join(("manage.py", *words))


class Stage:
    """Redis and database of the demo, and the programs that use them. All of them end with the block."""

    def __init__(self, options: argparse.Namespace, out: Terminal) -> None:
        self.options = options
        self.out = out
        self._own = Folder(options.folder)
        self.folder = self._own.path
        self.results = self.folder / "results"
        self.mailbox = self.folder / "mailbox"
        self.took: list[tuple[str, float]] = []
        self._parts: list[Process] = []
        self._watchdog: Watchdog | None = None
        self._redis = EmbeddedRedis(self.folder / "redis", appendfsync="no")
        self._broker: Broker | None = None

    # start and end

    def __enter__(self) -> Stage:
        if self.options.look and not (self.folder / "shop.sqlite3").exists():
            raise CannotStart(f"There is no story in {self.folder} yet. First: make demo-pipeline")
        self._own.take(empty=not self.options.look)
        self._watchdog = Watchdog()
        try:
            self._redis.start()
        except Misconfigured as error:
            self._watchdog.close()
            raise CannotStart(str(error)) from error
        self._redis_pid = self._redis.pid
        self._watchdog.report("+", self._redis_pid)
        self.env = self._environment()
        self.out.line("demo", f"folder {self.folder}, Redis on {self._redis.socket_path}")
        return self

    def __exit__(self, *_: object) -> None:
        """End the commands first, then the workers, then Redis; a second Ctrl-C kills them."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end_at_once)
        for part in reversed(self._parts):
            part.end(30)
        if self._broker is not None:
            self._broker.connection.close()
        self._redis.stop()
        if self._watchdog is not None:
            self._watchdog.report("-", self._redis_pid)
            self._watchdog.close()

    def _end_at_once(self, *_: object) -> None:
        for part in self._parts:
            part.kill()

    def _environment(self) -> dict[str, str]:
        """Return the environment of every program of the demo: the shop's settings, pointed to this folder."""
        mine = {
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "PYTHONUNBUFFERED": "1",
            "SHOP_REDIS_URL": self._redis.url,
            "SHOP_DB": str(self.folder / "shop.sqlite3"),
            "SHOP_HISTORY": str(self.folder / "history"),
            "SHOP_MAILBOX": str(self.mailbox),
            # All events wait in Redis until the history reads them. Some jobs have three attempts.
            "SHOP_EVENTS_CAP": str(max(100_000, self.options.customers)),
        }
        return {**os.environ, **mine}

    # steps

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce and time one step of the demo."""
        number = len(self.took) + 1
        self.out.plain("\n" + self.out.paint(f"{number}. {title}", "1"))
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        self.took.append((title, seconds))
        self.out.plain(f"   {seconds:.1f} s")

    def say(self, text: str) -> None:
        """Print a line."""
        self.out.line("demo", text)

    def manage(self, *arguments: str, speaker: str = "demo", **env: str) -> dict[str, Any]:
        """Run a command of the project to its end, as a user would, and show its output.

        Returns:
            Its last line, if that is a JSON object.

        Raises:
            Failed: it did not succeed.
        """
        self.say(f"$ {typed(arguments)}")
        part = self.start(speaker, *arguments, **env)
        part.print_output(from_start=True)
        code = part.wait()
        self._parts.remove(part)
        if code:
            raise Failed(f"`manage.py {arguments[0]}` ended with exit code {code}; its output is above.")
        try:
            found = json.loads(part.last)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def start(self, name: str, *arguments: str, log: Path | None = None, **env: str) -> Process:
        """Start a command in the background; it ends with the stage at the latest."""
        command = [sys.executable, "manage.py", *arguments]
        part = Process(name, command, HERE, {**self.env, **env}, self.out, self._watchdog, log=log)
        self._parts.append(part)
        return part

    def stop(self, part: Process) -> None:
        """End a command started by :meth:`start`, as Ctrl-C would."""
        part.end(30)
        self._parts.remove(part)

    # state of Redis

    def counts(self, queue: str) -> Counts:
        """Return the number of jobs of a queue by state, and the core's own counters."""
        if self._broker is None:
            self._broker = Broker(connect(RedisConfig.parse(self._redis.url)), prefix="shop")
        return self._broker.inspector.counts(queue)

    def drain(self, queue: str, worker: Process) -> float:
        """Wait until a queue has no waiting or running jobs, and print the progress; return the seconds.

        Raises:
            Failed: the worker ended, or no job was finished for a while.
        """
        begin = moved = told = time.monotonic()
        first = before = self.counts(queue).counters.get("acked", 0)
        while True:
            counts = self.counts(queue)
            now, done = time.monotonic(), counts.counters.get("acked", 0)
            left = counts.ready + counts.delayed + counts.reserved + counts.gated
            if not left:
                return now - begin
            moved = now if done > before else moved
            before = done
            if worker.popen.poll() is not None or now - moved > PATIENCE:
                raise Failed(
                    f"The workers make no progress ({left:,} jobs are left). Their output is in {self.folder}."
                )
            if now - told >= TELL:
                self.say(f"{done - first:,} done, {left:,} left, {(done - first) / (now - begin):,.0f} a second")
                told = now
            time.sleep(LOOK)  # other processes: there is no event to wait for
