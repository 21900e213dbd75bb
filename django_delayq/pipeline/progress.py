"""Progress of a long operation: a line redrawn on a terminal, or a periodic line in a log."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

#: seconds between two drawings on a terminal
ON_TERMINAL: Final = 0.2
#: seconds between two lines in a log
IN_LOG: Final = 10.0
#: seconds over which the current rate is computed
WINDOW: Final = 10.0
_BAR: Final = 20


class Screen(Protocol):
    """Text output for progress."""

    def write(self, text: str, /) -> object:
        """Append a text without ending the line."""
        ...

    def flush(self) -> object:
        """Flush the output."""
        ...

    def isatty(self) -> bool:
        """Return True if it is a terminal."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """State of an operation at one moment."""

    rows: int
    #: rows in all; None = unknown
    total: int | None
    #: current rows per second
    rate: float
    #: seconds since the start
    seconds: float

    @property
    def share(self) -> float | None:
        """Fraction done, from 0 to 1."""
        if self.total is None:
            return None
        return min(1.0, self.rows / self.total) if self.total > 0 else 1.0

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None = unknown."""
        if self.total is None or (self.rate <= 0 and self.rows < self.total):
            return None
        return max(0, self.total - self.rows) / self.rate if self.rate > 0 else 0.0


def draw(what: str, point: Point, width: int | None = None, unit: str = "rows") -> str:
    """Return one line, no wider than ``width`` columns: what, the bar, percent, rows, rows per second, the time left.

    Args:
        width: width of the terminal; None = no terminal, so no bar.
        unit: the unit that is counted, if not rows.
    """
    words = [f"{point.rows:,} {unit}" if point.total is None else f"{point.rows:,} of {point.total:,} {unit}"]
    if point.share is not None:
        words.insert(0, f"{int(100 * point.share)} %")
    words.append(f"{point.rate:,.0f} {unit}/s")
    words.append(f"{clock(point.left)} left" if point.left is not None else f"{clock(point.seconds)} so far")
    line = f"{what}: {', '.join(words)}"
    if width is None:
        return line
    if point.share is not None and len(line) + _BAR + 2 < width:
        done = round(_BAR * point.share)
        line = f"{what}: {'█' * done}{'·' * (_BAR - done)}  {', '.join(words)}"
    return line[: max(1, width - 1)]


def clock(seconds: float) -> str:
    """Format seconds as 7s, 2:05, 1:02:05 or 3d 4h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 2 * 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


class Progress:
    """Progress display of an operation; may be updated from any thread, at any rate.

    Args:
        what: short name of the operation.
        stream: the output; stderr by default.
        now: a clock in seconds.
        quiet: show nothing.
        unit: the unit that is counted, if not rows.
    """

    def __init__(
        self,
        what: str,
        *,
        stream: Screen | None = None,
        now: Callable[[], float] = time.monotonic,
        quiet: bool = False,
        unit: str = "rows",
    ) -> None:
        #: may be changed during the operation
        self.what = what
        self.unit = unit
        self.rows = 0
        self.total: int | None = None
        self._stream: Screen = sys.stderr if stream is None else stream
        self._now = now
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._began = self._shown = now()
        self._seen = deque([(self._began, 0)])
        self._drawn = 0
        self._lock = threading.Lock()

    def update(self, rows: int, total: int | None = None) -> None:
        """Set the number of rows done; ``total`` is kept until another one is passed."""
        with self._lock:
            self.rows = rows
            self.total = self.total if total is None else total
            now = self._now()
            self._seen.append((now, rows))
            # The last point older than the window stays: without it a slow operation would have no rate.
            while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
                self._seen.popleft()
            if now - self._shown >= (ON_TERMINAL if self._terminal else IN_LOG):
                self._show(now)

    def point(self) -> Point:
        """Return the current state."""
        return self._point(self._now())

    def end(self) -> None:
        """Show the final state and end the line. In a log, only if progress was logged before."""
        with self._lock:
            if self._terminal or self._drawn:
                self._show(self._now())
            if self._terminal and self._drawn:
                self._write("\n")

    def note(self, text: str) -> None:
        """Print a line that is not overwritten."""
        with self._lock:
            if self._terminal and self._drawn:
                self._write("\r\x1b[K")
            self._write(f"{text}\n")

    def _point(self, now: float) -> Point:
        (before, rows), whole = self._seen[0], now - self._began
        lately = now - before
        rate = (self.rows - rows) / lately if lately > 0 else 0.0
        return Point(self.rows, self.total, max(0.0, rate), whole)

    def _show(self, now: float) -> None:
        self._shown = now
        self._drawn += 1
        point = self._point(now)
        if self._terminal:
            self._write(f"\r\x1b[K{draw(self.what, point, shutil.get_terminal_size().columns, self.unit)}")
        else:
            self._write(f"{draw(self.what, point, unit=self.unit)}\n")

    def _write(self, text: str) -> None:
        if self._quiet:
            return
        # The reader of the stream may be gone; the operation continues.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


@contextlib.contextmanager
def following(progress: Progress, look: Callable[[], tuple[int, int | None]], every: float = 1.0) -> Iterator[Progress]:
    """Poll ``look`` for rows and total during the block, and once more at its end.

    Exceptions of ``look`` are suppressed: a temporary failure to read a counter must not abort the operation.
    """
    done = threading.Event()

    def once() -> None:
        with contextlib.suppress(Exception):
            progress.update(*look())

    def watch() -> None:
        while not done.wait(every):
            once()

    watcher = threading.Thread(target=watch, name="delayq-progress", daemon=True)
    watcher.start()
    try:
        yield progress
    finally:
        done.set()
        watcher.join()
        once()
        progress.end()
