"""Parts of the demos: requirement checks, a folder, child processes, and one terminal for the output of all of them.

Standard library only, so that a Python without the required packages still reports what is missing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
COLOURS = {"demo": "1", "redis": "31", "web": "36", "worker": "33", "customers": "35", "spark": "36"}
LOUD = {"CANCELLED": "1;97;41", "PAID": "1;30;42"}

# Ends the child processes if this one is killed: its pipe closes then.
WATCHDOG = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for pid in alive:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        pass
"""


class CannotStart(Exception):
    """Error that prevents the demo from running; the message says what to do."""


# --- checks ----------------------------------------------------------------------------------------------------------
def check_python() -> None:
    if os.name != "posix":
        raise CannotStart("The demo needs Linux, macOS or another Unix (on Windows: WSL).")
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is also started by older ones, to say so
        raise CannotStart(
            f"Python 3.11 or newer is needed; this is {sys.version.split()[0]} ({sys.executable}).\n"
            "Install a newer one and name it: make demo PYTHON=python3.12"
        )


def check_packages(needed: Sequence[str], how: str) -> None:
    """Check that all packages are installed.

    Args:
        needed: names to import.
        how: installation instructions.

    Raises:
        CannotStart: some are missing.
    """
    if importlib.util.find_spec("django_delayq") is None and (ROOT / "django_delayq").is_dir():
        # A clone that is not installed, run by a Python with all other packages.
        sys.path.insert(0, str(ROOT))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotStart(f"{sys.executable} lacks: {', '.join(missing)}.\n{how}")


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


class Folder:
    """Folder of a demo, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def take(self, *, empty: bool) -> None:
        """Lock the folder until this process ends; ``empty``: delete the files of an earlier demo first.

        Raises:
            CannotStart: another demo runs in it, or it does not belong to a demo.
        """
        if empty and self.path.exists() and any(self.path.iterdir()):
            if not (self.path / "lock").exists():
                raise CannotStart(f"{self.path} is no folder of this demo, and will not be emptied. Name another one.")
            self._lock()
            shutil.rmtree(self.path)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock()

    def secret(self, name: str) -> str:
        """Return forty random characters, the same in every run of the demo."""
        file = self.path / name
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(20))
        return file.read_text()

    def _lock(self) -> None:
        import fcntl  # not on Windows, which was rejected before

        self._held = open(self.path / "lock", "w")  # noqa: SIM115 - held until this process ends
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(f"Another demo is running in {self.path}. Stop it first (Ctrl-C there).") from None


# --- the terminal and the parts --------------------------------------------------------------------------------------
class Terminal:
    """Output of several processes, each line with the time and its origin."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour
        self._lock = threading.Lock()

    def paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour and code else text

    def line(self, origin: str, text: str) -> None:
        for word, code in LOUD.items():
            text = text.replace(word, self.paint(f" {word} ", code) if self.colour else word)
        head = self.paint(f"{time.strftime('%H:%M:%S')} {origin:<9} │", COLOURS.get(origin, ""))
        self.plain(f"{head} {text}")

    def plain(self, text: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # the terminal may be gone
            print(text, flush=True)


class Process:
    """Child process whose output goes to the terminal after :meth:`speak` was called.

    With ``log``, its output goes to that file instead.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        cwd: Path,
        env: dict[str, str],
        out: Terminal,
        watchdog: Watchdog,
        *,
        log: Path | None = None,
    ) -> None:
        self.name = name
        #: the last line of output that was not empty
        self.last = ""
        self._out = out
        self._silent: list[str] | None = []
        self._lock = threading.Lock()
        self._watchdog = watchdog
        # A session of its own: Ctrl-C reaches only the demo, which then ends the parts in the right order.
        with contextlib.nullcontext(subprocess.PIPE) if log is None else log.open("a") as where:
            self.popen = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=where,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                bufsize=1,
                start_new_session=True,
            )
        watchdog.report("+", self.popen.pid)
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()

    def _pump(self) -> None:
        for line in self.popen.stdout or ():
            with self._lock:
                self.last = line.strip() or self.last
                if self._silent is not None:
                    self._silent.append(line.rstrip())
                elif line.strip():
                    self._out.line(self.name, line.rstrip())

    def print_output(self, *, from_start: bool) -> None:
        """Show its output from now on; ``from_start``: the earlier output too."""
        with self._lock:
            earlier, self._silent = self._silent, None
            for line in (earlier or ()) if from_start else ():
                self._out.line(self.name, line)

    def wait(self) -> int:
        """Wait until it has ended and all output was shown; return its exit code."""
        code = self.popen.wait()
        self._reader.join(5)
        self._watchdog.report("-", self.popen.pid)
        return code

    def end(self, patience: float) -> None:
        """Send TERM, wait up to ``patience`` seconds, then send KILL."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()
                self.popen.wait()
        self._reader.join(2)
        self._watchdog.report("-", self.popen.pid)

    def kill(self) -> None:
        """Kill it and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)


class Watchdog:
    """Process that ends the children if this process is killed."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-c", WATCHDOG], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def report(self, sign: str, pid: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(f"{sign}{pid}\n")
            self._popen.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.wait(10)
