#!/usr/bin/env python
"""Demo: the example shop with its Redis, web server, worker and customers, in one terminal.

    make demo                      (or: python example_project/demo.py)
    make demo PORT=8001            when port 8000 is taken

All files are in ``.demo/`` beside the project: the SQLite database and the Redis data. Stop it with Ctrl-C and start it
again: the waiting orders are still cancelled.

Only the standard library is imported until the required packages have been checked, so that missing ones are reported.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from demo_options import parse
from demo_parts import (
    HOST,
    CannotStart,
    Folder,
    Process,
    Terminal,
    Watchdog,
    check_packages,
    check_port,
    check_python,
)
from demo_texts import summary, welcome

HERE = Path(__file__).resolve().parent
NEEDED = ("django", "redis", "rest_framework", "drf_spectacular", "django_redis", "django_delayq")
HOW = "`make demo` creates an environment with all packages; by hand: pip install '.[demo,embedded]'"


# --- the demo --------------------------------------------------------------------------------------------------------
class Demo:
    """All parts of the demo, started in order and stopped in reverse order."""

    def __init__(self, options: argparse.Namespace, out: Terminal) -> None:
        self.options = options
        self.out = out
        self._own = Folder(options.folder)
        self.folder = self._own.path
        self.started_at = 0.0
        self.parts: list[Process] = []
        self.redis: Any = None
        self.redis_pid = 0
        self.watchdog: Any = None
        self.is_stopping = False
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()  # put() is safe in a signal handler

    # start

    def run(self) -> int:
        """Run until Ctrl-C, or for ``--seconds``; return the exit code."""
        check_python()
        check_packages(NEEDED, HOW)
        check_port(self.options.port)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._own.take(empty=self.options.reset)
        try:
            self._start()
            ended_well = self._wait()
            return self._finish(ended_well)
        finally:
            self._stop()

    def _on_signal(self, *_: object) -> None:
        """Request an orderly end; on the second signal kill the parts."""
        if self.is_stopping:
            for part in self.parts:
                part.kill()
        self.is_stopping = True
        self.events.put("stop")

    def _start(self) -> None:
        from django_delayq.core.errors import Misconfigured
        from django_delayq.embedded import EmbeddedRedis

        self.watchdog = Watchdog()
        self.out.line("demo", f"folder {self.folder}")
        self.redis = EmbeddedRedis(self.folder / "redis")
        try:
            self._start_redis()
        except Misconfigured as error:
            raise CannotStart(str(error)) from error
        self.out.line("redis", f"listens on {self.redis.socket_path}, writes every second to {self.redis.directory}")
        self.env = self._environment()
        self._manage("migrate", "--verbosity", "0")
        self._manage("shop_seed", "--demo-user")
        self.started_at = time.time()
        web = self._part("web", "runserver", "--noreload", f"{HOST}:{self.options.port}")
        self._part("worker", "delayq_worker").print_output(from_start=True)
        web.print_output(from_start=not self._web_answers(web))
        if not self.events.empty():
            return
        if self.options.rate > 0:
            customers = self._part(
                "customers",
                "shop_traffic",
                "--rate",
                str(self.options.rate),
                "--pay",
                str(self.options.pay),
                "--seconds",
                str(self.options.seconds or self.options.traffic_seconds),
            )
            customers.print_output(from_start=True)
        self.out.plain(welcome(self.options, self.env["SHOP_API_TOKEN"], self.out))

    def _start_redis(self) -> None:
        self.redis.start()
        self.redis_pid = self.redis.pid
        self.watchdog.report("+", self.redis_pid)

    def _environment(self) -> dict[str, str]:
        wait = self.options.cancel_after
        own = {
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "PYTHONUNBUFFERED": "1",
            "SHOP_REDIS_URL": self.redis.url,
            "SHOP_DB": str(self.folder / "shop.sqlite3"),
            "SHOP_HISTORY": str(self.folder / "history"),
            "SHOP_SECRET_KEY": self._own.secret("secret-key"),
            "SHOP_API_TOKEN": self._own.secret("api-token"),
            "SHOP_CANCEL_AFTER": str(wait),
        }
        defaults = {
            "SHOP_REMIND_BEFORE": str(wait * 0.4),
            "SHOP_RESTOCK_AFTER": "20",
            "SHOP_WAREHOUSE_AFTER": str(wait * 0.4),
            "SHOP_REPORT_EVERY": "20",
            "SHOP_CAMPAIGN_SPREAD": "12",
        }
        return {**defaults, **os.environ, **own}

    def _manage(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            env=self.env,
            cwd=HERE,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if done.returncode:
            raise CannotStart(f"`manage.py {' '.join(arguments)}` failed:\n{done.stdout.strip()}")
        for line in done.stdout.splitlines():
            self.out.line("demo", line)

    def _part(self, name: str, *arguments: str) -> Process:
        part = Process(name, [sys.executable, "manage.py", *arguments], HERE, self.env, self.out, self.watchdog)
        self.parts.append(part)
        threading.Thread(target=self._report_end, args=(part,), daemon=True).start()
        return part

    def _report_end(self, part: Process) -> None:
        part.popen.wait()
        self.events.put(f"ended {part.name}")

    def _web_answers(self, web: Process) -> bool:
        """Wait for the first page; return False if a part ended or Ctrl-C was pressed first."""
        deadline = time.monotonic() + 60
        while self.events.empty():
            connection = http.client.HTTPConnection(HOST, self.options.port, timeout=5)
            try:
                connection.request("GET", "/")
                if connection.getresponse().status == 200:
                    return True
            except OSError:
                pass
            finally:
                connection.close()
            if time.monotonic() > deadline:
                web.print_output(from_start=True)
                raise CannotStart("The web server does not respond; its output is above.")
            time.sleep(0.05)  # another process: there is no event to wait for
        return False

    # run

    def _wait(self) -> bool:
        """Wait for the end of the demo; return True if all parts were alive until then."""
        end = time.monotonic() + self.options.seconds if self.options.seconds else None
        while True:
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                return True
            try:
                event = self.events.get(timeout=left)
            except queue.Empty:
                self._keep_redis()
                continue
            if event == "stop":
                return True
            name = event.split()[1]
            code = next(part.popen.returncode for part in self.parts if part.name == name)
            if name == "customers" and code == 0:
                self.out.line("demo", "the customers have left; the shop stays open")
                continue
            self.out.line("demo", f"the {name} ended unexpectedly (exit code {code}); its output is above")
            return False

    def _keep_redis(self) -> None:
        """Restart Redis on its data if it has ended, so that a user may try its loss; the worker reconnects."""
        if not self.redis.running:
            self.out.line("redis", "has ended; restarting it on its data")
            self.watchdog.report("-", self.redis_pid)
            self._start_redis()

    # stop

    def _finish(self, ended_well: bool) -> int:
        self.out.plain("")
        self.out.line("demo", "stopping …")
        self._stop_parts()
        done = subprocess.run(
            [sys.executable, "manage.py", "shop_summary", "--json", "--since", str(self.started_at)],
            env=self.env,
            cwd=HERE,
            text=True,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=False,
        )
        if done.returncode:
            return 1
        counts = json.loads(done.stdout.splitlines()[-1])
        (self.folder / "summary.json").write_text(json.dumps(counts))
        if not ended_well:
            return 1
        self.out.plain(summary(counts))
        if self.options.seconds and not counts["cancelled_by_worker"]:
            self.out.line("demo", "no order was cancelled in this time: see the output of the worker above")
            return 1
        return 0

    def _stop_parts(self) -> None:
        """Stop customers, web server and worker in this order, so that no part produces for one that has ended."""
        order = ("customers", "web", "worker")
        for part in sorted(self.parts, key=lambda part: order.index(part.name)):
            part.end(15)
        self.parts.clear()

    def _stop(self) -> None:
        self._stop_parts()
        if self.redis is not None:
            self.redis.stop()
            self.watchdog.report("-", self.redis_pid)
        if self.watchdog is not None:
            self.watchdog.close()


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    colour = sys.stdout.isatty() and not options.no_colour and not os.environ.get("NO_COLOR")
    try:
        return Demo(options, Terminal(colour)).run()
    except CannotStart as error:
        print(f"\n{error}\n", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
