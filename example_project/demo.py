#!/usr/bin/env python
"""The demo: the example shop with its Redis, web server, worker and customers, in one terminal.

    make demo                      (or: python example_project/demo.py)
    make demo PORT=8001            when port 8000 is taken

Everything it writes is in ``.demo/`` beside the project: the SQLite database and the Redis data. Stop it with Ctrl-C,
start it again, and the orders that were waiting are cancelled as if nothing had been.

Standard library only up to the point where the needed packages are known to be there, so that what is missing is named.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from demo_parts import ROOT, CannotStart, Folder, Process, Terminal, Watchdog, check_packages, check_python

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
NEEDED = ("django", "redis", "rest_framework", "drf_spectacular", "django_delayq")
HOW = "`make demo` makes an environment with everything in it; by hand: pip install '.[demo,embedded]'"


# --- what must be there ----------------------------------------------------------------------------------------------
def check_port(port: int) -> None:
    if _free(port):
        return
    other = next((n for n in range(port + 1, min(port + 100, 65536)) if _free(n)), None)
    hint = f"Choose another one: make demo PORT={other}" if other else "Choose another one: make demo PORT=…"
    raise CannotStart(f"Port {port} on {HOST} is taken by another program.\n{hint}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


# --- the demo --------------------------------------------------------------------------------------------------------
class Demo:
    """All parts, started in order, stopped in the reverse one."""

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
        self.asked_to_stop = False
        self.wishes: queue.SimpleQueue[str] = queue.SimpleQueue()  # put() is safe in a signal handler

    # start

    def run(self) -> int:
        """Run until Ctrl-C, or for ``--seconds``. Returns the exit code."""
        check_python()
        check_packages(NEEDED, HOW)
        check_port(self.options.port)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._own.take(empty=self.options.reset)
        try:
            self._start()
            ended_well = self._stay()
            return self._finish(ended_well)
        finally:
            self._stop()

    def _on_signal(self, *_: object) -> None:
        """The first one asks for an orderly end; the second one does not wait for it."""
        if self.asked_to_stop:
            for part in self.parts:
                part.kill()
        self.asked_to_stop = True
        self.wishes.put("stop")

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
        self._part("worker", "delayq_worker").speak(from_start=True)
        web.speak(from_start=not self._web_answers(web))
        if not self.wishes.empty():
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
            customers.speak(from_start=True)
        self._welcome()

    def _start_redis(self) -> None:
        self.redis.start()
        self.redis_pid = self.redis.pid
        self.watchdog.tell("+", self.redis_pid)

    def _environment(self) -> dict[str, str]:
        wait = self.options.cancel_after
        mine = {
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "PYTHONUNBUFFERED": "1",
            "SHOP_REDIS_URL": self.redis.url,
            "SHOP_DB": str(self.folder / "shop.sqlite3"),
            "SHOP_HISTORY": str(self.folder / "history"),
            "SHOP_SECRET_KEY": self._secret("secret-key"),
            "SHOP_API_TOKEN": self._secret("api-token"),
            "SHOP_CANCEL_AFTER": str(wait),
        }
        defaults = {
            "SHOP_REMIND_BEFORE": str(wait * 0.4),
            "SHOP_RESTOCK_AFTER": "20",
            "SHOP_WAREHOUSE_AFTER": str(wait * 0.4),
            "SHOP_REPORT_EVERY": "20",
            "SHOP_CAMPAIGN_SPREAD": "12",
        }
        return {**defaults, **os.environ, **mine}

    def _secret(self, name: str) -> str:
        """Forty random characters, the same in every run."""
        file = self.folder / name
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(20))
        return file.read_text()

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
        threading.Thread(target=self._tell_end, args=(part,), daemon=True).start()
        return part

    def _tell_end(self, part: Process) -> None:
        part.popen.wait()
        self.wishes.put(f"ended {part.name}")

    def _web_answers(self, web: Process) -> bool:
        """Wait for the first page. False if a part ended, or somebody pressed Ctrl-C, meanwhile."""
        deadline = time.monotonic() + 60
        while self.wishes.empty():
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
                web.speak(from_start=True)
                raise CannotStart("The web server does not answer; what it said is above.")
            time.sleep(0.05)  # another process: there is nothing to wait on
        return False

    def _welcome(self) -> None:
        at = f"http://{HOST}:{self.options.port}"
        bold = lambda text: self.out.paint(text, "1")  # noqa: E731
        self.out.plain(
            f"""
  {bold("Slow Goods is open.")}

    Shop           {bold(at + "/")}
    What happens   {bold(at + "/what-happens/")}
    Admin          {bold(at + "/admin/")}   login admin, password admin
    Dashboard      {bold(at + "/admin/django_delayq/dashboard/")}
    HTTP API       {bold(at + "/delayq/v1/queues")}   Authorization: Token {self.env["SHOP_API_TOKEN"]}

  An order that nobody pays is cancelled after {bold(f"{self.options.cancel_after:g} s")}. Ctrl-C stops everything.
"""
        )

    # run

    def _stay(self) -> bool:
        """Wait until somebody wants the demo to end. Returns whether all parts were alive until then."""
        end = time.monotonic() + self.options.seconds if self.options.seconds else None
        while True:
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                return True
            try:
                wish = self.wishes.get(timeout=left)
            except queue.Empty:
                self._keep_redis()
                continue
            if wish == "stop":
                return True
            name = wish.split()[1]
            code = next(part.popen.returncode for part in self.parts if part.name == name)
            if name == "customers" and code == 0:
                self.out.line("demo", "the customers went home; the shop stays open")
                continue
            self.out.line("demo", f"the {name} ended by itself (exit code {code}); what it said is above")
            return False

    def _keep_redis(self) -> None:
        """Somebody may try what happens when Redis dies: it comes back with its data, and the worker goes on."""
        if not self.redis.running:
            self.out.line("redis", "is gone; starting it again on its data")
            self.watchdog.tell("-", self.redis_pid)
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
        self._tell(counts)
        if self.options.seconds and not counts["cancelled_by_worker"]:
            self.out.line("demo", "no order was cancelled in this time: something is wrong")
            return 1
        return 0

    def _tell(self, counts: dict[str, float]) -> None:
        late = ""
        if counts["latest_s"] is not None:
            late = f", each {counts['earliest_s']:.2f} to {counts['latest_s']:.2f} s after its time"
        self.out.plain(
            f"""
  orders placed           {counts["placed"]}
    paid                  {counts["paid"]}
    cancelled by worker   {counts["cancelled_by_worker"]}{late}
    still open            {counts["waiting"]} (their jobs are kept: run the demo again)
  payment checks          {counts["payment_checks"]}, up to {counts["most_checks"]} for one payment
  payments refused        {counts["refused"]}
  calls to the warehouse  {counts["warehouse_calls"]}
  messages to customers   {counts["messages"]}
"""
        )

    def _stop_parts(self) -> None:
        """Customers, then the web server, then the worker: nobody produces for a part that is gone."""
        order = ("customers", "web", "worker")
        for part in sorted(self.parts, key=lambda part: order.index(part.name)):
            part.end(15)
        self.parts.clear()

    def _stop(self) -> None:
        self._stop_parts()
        if self.redis is not None:
            self.redis.stop()
            self.watchdog.tell("-", self.redis_pid)
        if self.watchdog is not None:
            self.watchdog.close()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The example shop, alive, in one terminal.")
    port = os.environ.get("DELAYQ_DEMO_PORT") or "8000"
    parser.add_argument("--port", type=_port, default=port, help="web server (default 8000, or DELAYQ_DEMO_PORT)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="for the data (default .demo)")
    parser.add_argument("--reset", action="store_true", help="begin with an empty folder")
    parser.add_argument("--seconds", type=float, help="end by itself; exit code 1 if no order was cancelled meanwhile")
    parser.add_argument("--cancel-after", type=float, default=20, help="seconds until an unpaid order is cancelled")
    parser.add_argument("--rate", type=float, default=0.4, help="orders per second by generated customers; 0 = none")
    parser.add_argument("--pay", type=float, default=0.6, help="share of these orders that get paid")
    parser.add_argument("--traffic-seconds", type=float, default=3600, help="the customers go home after so long")
    parser.add_argument("--no-colour", action="store_true", help="plain text (also: NO_COLOR=1, or no terminal)")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; it is a number from 1 to 65535")
    return int(text)


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
