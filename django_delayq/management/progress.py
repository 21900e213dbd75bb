"""Progress of a long command on stderr: a bar on a terminal (extra ``[cli]``), else a line every ten seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from ..status.formatting import duration

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper
    from rich import progress as rich

#: seconds between two plain lines
LINE_SECONDS: Final = 10.0
_BAR_COLUMNS: Final = 20


class RawOutput:
    """Stream behind Django's wrapper, which prints stderr in red and ends each piece with a newline.

    Output to a closed terminal or pipe is dropped, because the operation continues.
    """

    def __init__(self, wrapper: OutputWrapper) -> None:
        self._stream: Any = wrapper._out

    def write(self, text: str) -> int:
        """Write a text without ending the line."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the output."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """Progress of an operation. May be updated from any thread.

    A context manager. Nothing is shown before the first update; without a terminal, nothing of a short operation.

    Args:
        name: name of the operation, which may be changed during it.
        unit: unit that is counted; it too.
        out: where it is shown; None = nowhere.
    """

    def __init__(
        self,
        name: str,
        unit: str = "jobs",
        out: OutputWrapper | None = None,
        *,
        no_color: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.unit = unit
        self.done = 0
        #: None = unknown
        self.total: int | None = None
        self._now = now
        self._started = now()
        #: moment and count of the last line; the rate is that since then
        self._line = (self._started, 0)
        self._out = None if out is None else RawOutput(out)
        self._bar = None if out is None else _bar(out, no_color=no_color)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Show the final state, with the rate of the whole operation."""
        if self._bar is not None:
            self._bar.stop()
        elif self._line[0] > self._started:
            self._line = self._started, 0
            self._print(self._now())

    def update(self, done: int, total: int | None = None) -> None:
        """Set the number done; ``total`` is kept until another one is passed."""
        with self._lock:
            self.done = done
            self.total = self.total if total is None else total
            now = self._now()
            if self._bar is not None:
                self._draw(self._bar)
            elif now - self._line[0] >= LINE_SECONDS:
                self._print(now)

    def part(self) -> Callable[[int, int], None]:
        """Return a callback for a part of the operation: its numbers are added to the number done so far."""
        before = self.done
        return lambda done, total: self.update(before + done, max(self.total or 0, before + total))

    def text(self) -> str:
        """Return percent, number, rate and the time left as text."""
        now, (since, before) = self._now(), self._line
        rate = max(0.0, (self.done - before) / (now - since)) if now > since else 0.0
        texts = [f"{self.done:,} {self.unit}", f"{rate:,.0f} {self.unit}/s", f"{duration(now - self._started)} so far"]
        if self.total is not None:
            left = max(0, self.total - self.done)
            share = self.done / self.total if left else 1.0
            texts[:1] = [f"{int(100 * share)} %", f"{self.done:,} of {self.total:,} {self.unit}"]
            if rate or not left:
                texts[-1] = f"{duration(left / rate if left else 0.0)} left"
        return ", ".join(texts)

    def _print(self, now: float) -> None:
        if self._out is not None:
            self._out.write(f"{self.name}: {self.text()}\n")
            self._out.flush()
        self._line = now, self.done

    def _draw(self, bar: rich.Progress) -> None:
        if not bar.tasks:
            bar.add_task(self.name, unit=self.unit, total=self.total)
            bar.start()
        bar.update(bar.tasks[0].id, completed=self.done, total=self.total, description=self.name, unit=self.unit)


def _bar(out: OutputWrapper, *, no_color: bool) -> rich.Progress | None:
    """Return a bar on this output; None if it is no terminal, or rich is not installed."""
    if not out.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return None
    try:
        from rich import console, progress
    except ImportError:
        return None
    screen = console.Console(
        file=RawOutput(out),  # type: ignore[arg-type] # delegates the rest
        force_terminal=True,
        no_color=no_color or None,  # None = as the variable NO_COLOR says
        markup=False,
        highlight=False,
    )
    # The cursor stays visible, so a process that is killed leaves nothing to restore.
    screen.show_cursor = lambda show=True: False  # type: ignore[method-assign]
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(_BAR_COLUMNS),
        progress.TaskProgressColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}", markup=False),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        console=screen,
        redirect_stdout=False,  # stdout is for results, and may be a pipe
        redirect_stderr=False,
    )
