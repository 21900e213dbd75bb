"""Stage of the demos: a folder with a Redis and a database, the shop's programs, and one terminal for their output.

Only the standard library is imported until the required packages have been checked, so that missing ones are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HOST = "127.0.0.1"
COLOURS = {"demo": "1", "redis": "31", "web": "36", "worker": "33", "customers": "35", "spark": "36"}
LOUD = {"CANCELLED": "1;97;41", "PAID": "1;30;42"}
NEEDED = ("django", "redis", "rest_framework", "drf_spectacular", "django_redis", "django_delayq")

#: ends the programs when the demo has ended, however it ended: its pipe closes then. As the last user of the embedded
#: Redis it also stops that: a demo that was killed uses it until its process is gone, and a program that a signal ends
#: does not stop it. A line is the id of a process that began, or that has ended.
WATCHDOG = """
import contextlib, os, signal, sys, time
from django_delayq.embedded import ensure
signal.signal(signal.SIGINT, signal.SIG_IGN)
ensure(sys.argv[1])
alive = set()
for line in sys.stdin:
    alive ^= {line.strip()}
while "end" not in alive and os.getppid() == int(sys.argv[2]):
    time.sleep(0.01)
signal.alarm(30)
for pid in alive - {"end"}:
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGTERM)
        while True:
            os.kill(int(pid), 0)
            time.sleep(0.01)
"""


class Failed(Exception):
    """Error that ends a demo; the message says what to do or to look at."""


def check_packages(needed: Sequence[str], command: str, extra: str) -> None:
    """Raise Failed if this Python is too old, or lacks packages, which the ``make`` command or the extra installs."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is also started by older ones, to say so
        raise Failed(f"Python 3.11 or newer is needed: make {command} PYTHON=python3.12")
    if importlib.util.find_spec("django_delayq") is None:  # a clone that is not installed
        sys.path.insert(0, str(ROOT))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        how = f"`make {command}` creates an environment with all packages; by hand: pip install '.[{extra}]'"
        raise Failed(f"{sys.executable} lacks: {', '.join(missing)}.\n{how}")


def interrupt(*_: object) -> NoReturn:
    """End the demo as Ctrl-C does (signal handler)."""
    raise KeyboardInterrupt


class Stage:
    """Redis and database in a folder that one process holds at a time, and the programs that use them.

    All of them end with the block.

    Args:
        options: of the command line: ``folder``, ``port``.
        empty: delete the files of an earlier demo first.
        appendfsync: see the documentation of Redis.
    """

    def __init__(self, options: argparse.Namespace, *, empty: bool, appendfsync: str = "everysec") -> None:
        from django_delayq.embedded import EmbeddedRedis

        self.options = options
        self.folder: Path = options.folder.resolve()
        self.parts: list[Part] = []
        self.redis = EmbeddedRedis(self.folder / "redis", appendfsync=appendfsync)
        self._empty = empty
        self._has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._writing = threading.Lock()

    def __enter__(self) -> Stage:
        from django_delayq.core.errors import Misconfigured

        self._take_folder()
        try:
            self.redis.start()
        except Misconfigured as error:
            raise Failed(str(error)) from error
        watch, pipe = [sys.executable, "-c", WATCHDOG, str(self.redis.directory), str(os.getpid())], subprocess.PIPE
        self.watchdog = subprocess.Popen(watch, stdin=pipe, text=True, bufsize=1, start_new_session=True)
        self.line("demo", f"folder {self.folder}, Redis on {self.redis.socket_path}")
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "PYTHONUNBUFFERED": "1",
            "SHOP_REDIS_URL": self.redis.url,
            "SHOP_DB": str(self.folder / "shop.sqlite3"),
            "SHOP_HISTORY": str(self.folder / "history"),
            "SHOP_SECRET_KEY": self._secret("secret-key"),
            "SHOP_API_TOKEN": self._secret("api-token"),
        }
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.redis.release()
        self.watchdog.communicate("end\n")

    def _take_folder(self) -> None:
        import fcntl

        lock = self.folder / "lock"
        if self._empty and self.folder.exists() and any(self.folder.iterdir()) and not lock.exists():
            raise Failed(f"{self.folder} is no folder of this demo, and will not be emptied. Name another one.")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held = lock.open("w")  # until this process ends
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"Another demo is running in {self.folder}. Stop it first (Ctrl-C there).") from None
        for path in [path for path in self.folder.iterdir() if self._empty and path != lock]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _secret(self, name: str) -> str:
        """Return forty random characters, the same in every run of the demo."""
        file = self.folder / name
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(20))
        return file.read_text()

    # -- the terminal ------------------------------------------------------------------------------------------------

    def paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._has_colour and code else text

    def line(self, origin: str, text: str) -> None:
        """Print a line with the time and its origin."""
        for word, code in LOUD.items():
            text = text.replace(word, self.paint(word, code))
        head = f"{time.strftime('%H:%M:%S')} {origin:<9} │"
        self.plain(f"{self.paint(head, COLOURS.get(origin, ''))} {text}")

    def plain(self, text: str) -> None:
        with self._writing, contextlib.suppress(OSError):  # the terminal may be gone
            print(text, flush=True)

    # -- programs ----------------------------------------------------------------------------------------------------

    def start(self, name: str, *arguments: str, log: Path | None = None, **env: str) -> Part:
        """Start a command of the project in the background; its output goes to the terminal, or to a file."""
        part = Part(self, name, arguments, log, env)
        self.parts.append(part)
        return part

    def manage(self, command: str, most: int, speaker: str = "demo") -> None:
        """Run a command of the project to its end, as a user would type it, and show the last lines of its output.

        Raises:
            Failed: it did not succeed; then all its output is shown.
        """
        arguments, log = shlex.split(command), self.folder / "command.log"
        self.line("demo", f"$ {shlex.join(('manage.py', *arguments))}")
        log.unlink(missing_ok=True)
        part = self.start("command", *arguments, log=log)
        code = part.wait()
        self.end(part)
        output = [line for line in log.read_text().splitlines() if line.strip()]
        for line in output if code else output[max(0, len(output) - most) :]:
            self.line(speaker, line)
        if code:
            raise Failed(f"`manage.py {arguments[0]}` ended with exit code {code}; its output is above.")

    def serve(self) -> Part:
        """Start the web server, and wait for its first page."""
        web = self.start("web", "runserver", "--noreload", f"{HOST}:{self.options.port}")
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), urlopen(f"http://{HOST}:{self.options.port}/", timeout=5):
                return web
            if web.poll() is not None or time.monotonic() > until:
                raise Failed("The web server does not respond; its output is above. Another port: --port 8001")
            time.sleep(0.1)  # another process: there is no event to wait for

    def end(self, part: Part) -> None:
        """End a program as Ctrl-C would."""
        part.end()
        self.parts.remove(part)

    def stop(self) -> None:
        """End all programs, the last one first; a second Ctrl-C kills them."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: [part.kill_all() for part in self.parts])
        while self.parts:
            self.end(self.parts[-1])


class Part(subprocess.Popen[str]):
    """Program of a demo, in a session of its own: Ctrl-C reaches only the demo, which ends its programs in order."""

    def __init__(self, stage: Stage, name: str, command: Sequence[str], log: Path | None, env: dict[str, str]) -> None:
        self.stage, self.name = stage, name
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
        options |= {"env": {**stage.env, **env}, "cwd": HERE, "text": True, "errors": "replace"}
        with contextlib.nullcontext(subprocess.PIPE) if log is None else log.open("a") as where:
            super().__init__([sys.executable, "manage.py", *command], stdout=where, **options)
        self._report()
        self._reader = threading.Thread(target=self._print, daemon=True)
        self._reader.start()

    def _report(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(self.pid, file=self.stage.watchdog.stdin)

    def _print(self) -> None:
        for line in self.stdout or ():
            if line.strip():
                self.stage.line(self.name, line.rstrip())

    def end(self) -> None:
        """Terminate it if it still runs, and wait until all its output was printed."""
        self.terminate()
        try:
            self.wait(30)
        except subprocess.TimeoutExpired:
            self.kill_all()
        self.wait()
        self._reader.join(5)
        self._report()

    def kill_all(self) -> None:
        """Kill it and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
