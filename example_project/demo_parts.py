"""What the demo is made of: child processes, and one terminal that shows the lines of all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

COLOURS = {"demo": "1", "redis": "31", "web": "36", "worker": "33", "customers": "35"}
LOUD = {"CANCELLED": "1;97;41", "PAID": "1;30;42"}

# Ends our processes if this one is killed without a chance to do it itself: its pipe closes then.
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


class Terminal:
    """Lines of several processes, each with the time and its origin."""

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
        with self._lock, contextlib.suppress(OSError):  # nobody reads any more
            print(text, flush=True)


class Process:
    """One part of the demo: a child whose lines go to the terminal, once it has been told to :meth:`speak`."""

    def __init__(
        self, name: str, command: list[str], cwd: Path, env: dict[str, str], out: Terminal, watchdog: Watchdog
    ) -> None:
        self.name = name
        self._out = out
        self._silent: list[str] | None = []
        self._lock = threading.Lock()
        self._watchdog = watchdog
        # A session of its own: Ctrl-C reaches only the demo, which then ends the parts in the right order.
        self.popen = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", bufsize=1, start_new_session=True,
        )  # fmt: skip
        watchdog.tell("+", self.popen.pid)
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()

    def _pump(self) -> None:
        for line in self.popen.stdout or ():
            with self._lock:
                if self._silent is not None:
                    self._silent.append(line.rstrip())
                elif line.strip():
                    self._out.line(self.name, line.rstrip())

    def speak(self, *, from_start: bool) -> None:
        """Show its lines from now on; ``from_start``: the earlier ones too."""
        with self._lock:
            earlier, self._silent = self._silent, None
            for line in (earlier or ()) if from_start else ():
                self._out.line(self.name, line)

    def end(self, patience: float) -> None:
        """TERM, wait up to ``patience`` seconds, KILL as the last resort."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()
                self.popen.wait()
        self._reader.join(2)
        self._watchdog.tell("-", self.popen.pid)

    def kill(self) -> None:
        """End it and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)


class Watchdog:
    """Ends what we started, should this process be killed."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-c", WATCHDOG], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def tell(self, sign: str, pid: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(f"{sign}{pid}\n")
            self._popen.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.wait(10)
