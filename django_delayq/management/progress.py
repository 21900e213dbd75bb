"""Progress of a long command on stderr: a bar on a terminal (extra ``[cli]``), else a line every ten seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from ..status.formatting import duration
from .terminal import RawOutput, console_of, exit_on_sigterm

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper
    from rich.console import Console, RenderableType

#: seconds between two plain lines, and minimum seconds over which the rate is computed
LINE_SECONDS: Final = 10.0
_DRAWINGS_PER_SECOND: Final = 5
_BAR_COLUMNS: Final = 20


class Progress:
    """Progress of an operation that shows nothing; base of those that do. May be updated from any thread.

    A context manager. Nothing is shown before the first update.
    """

    def __init__(self, what: str, unit: str = "jobs", now: Callable[[], float] = time.monotonic) -> None:
        #: name of the operation, and the unit that is counted; may be changed meanwhile
        self.what = what
        self.unit = unit
        self.done = 0
        #: None = unknown
        self.total: int | None = None
        self._now = now
        self._began = now()
        #: two earlier moments and counts: the rate is that since the first
        self._marks = ((self._began, 0), (self._began, 0))
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Show the final state."""

    def update(self, done: int, total: int | None = None) -> None:
        """Set the number done; ``total`` is kept until another one is passed."""
        with self._lock:
            self.done = done
            self.total = self.total if total is None else total
            now = self._now()
            if now - self._marks[1][0] >= LINE_SECONDS:
                self._marks = (self._marks[1], (now, done))
            self._show(now)

    def part(self) -> Callable[[int, int], None]:
        """Return a callback for a part of the operation: its numbers are added to what is done already."""
        before = self.done
        return lambda done, of: self.update(before + done, max(self.total or 0, before + of))

    def text(self) -> str:
        """Return percent, number, rate and the time left as text."""
        now = self._now()
        (since, before), seconds = self._marks[0], now - self._began
        rate = max(0.0, (self.done - before) / (now - since)) if now > since else 0.0
        words = [f"{self.done:,} {self.unit}", f"{rate:,.0f} {self.unit}/s", f"{duration(seconds)} so far"]
        if self.total is not None:
            left = max(0, self.total - self.done)
            share = self.done / self.total if left else 1.0
            words[:1] = [f"{int(100 * share)} %", f"{self.done:,} of {self.total:,} {self.unit}"]
            if rate or not left:
                words[-1] = f"{duration(left / rate if left else 0.0)} left"
        return ", ".join(words)

    def _show(self, now: float) -> None:
        """Show the current state if it is time."""


class Lines(Progress):
    """Progress as plain lines, for logs and for terminals without rich. A short operation prints none."""

    def __init__(self, out: RawOutput, what: str, unit: str = "jobs", **more: Any) -> None:
        super().__init__(what, unit, **more)
        self._out = out
        self._shown = self._began
        self._printed = False

    def __exit__(self, *error: object) -> None:
        if self._printed:
            self._print()

    def _show(self, now: float) -> None:
        if now - self._shown >= LINE_SECONDS:
            self._shown, self._printed = now, True
            self._print()

    def _print(self) -> None:
        self._out.write(f"{self.what}: {self.text()}\n")
        self._out.flush()


class Bar(Progress):
    """Progress as a bar on a terminal. A thread of rich draws it."""

    def __init__(self, console: Console, what: str, unit: str = "jobs", **more: Any) -> None:
        super().__init__(what, unit, **more)
        self._console = console
        self._drawing = contextlib.ExitStack()
        self._begun = False

    def __exit__(self, *error: object) -> None:
        self._drawing.close()

    def _show(self, now: float) -> None:
        if self._begun:
            return
        from rich.live import Live

        self._begun = True
        # The cursor stays visible, so a process that is killed leaves nothing to restore.
        self._console.show_cursor = lambda show=True: False  # type: ignore[method-assign]
        self._drawing.enter_context(exit_on_sigterm())
        live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=_DRAWINGS_PER_SECOND,
            redirect_stdout=False,  # stdout is for results, and may be a pipe
            redirect_stderr=False,
        )
        self._drawing.enter_context(live)

    def _draw(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table

        text = self.text()
        cells: list[RenderableType] = [self.what, text]
        if len(self.what) + _BAR_COLUMNS + len(text) + 2 < self._console.width:
            cells.insert(1, ProgressBar(self.total, self.done, width=_BAR_COLUMNS))
        line = Table.grid(*(Column(no_wrap=True) for _ in cells), padding=(0, 1))
        line.add_row(*cells)
        return line


def progress(
    stderr: OutputWrapper, what: str, *, unit: str = "jobs", quiet: bool = False, no_color: bool = False
) -> Progress:
    """Return the progress display that fits the output.

    Args:
        quiet: show nothing.
    """
    if quiet:
        return Progress(what, unit)
    console = console_of(stderr, no_color=no_color)
    return Lines(RawOutput(stderr), what, unit) if console is None else Bar(console, what, unit)


@contextlib.contextmanager
def following(shown: Progress, look: Callable[[], tuple[int, int | None]], every: float = 1.0) -> Iterator[None]:
    """Update the progress from ``look``, which returns done and total, during the block and once more at its end.

    Exceptions of ``look`` are suppressed: a temporary failure to read a counter must not abort the operation.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every):
            once()

    def once() -> None:
        with contextlib.suppress(Exception):
            shown.update(*look())

    watcher = threading.Thread(target=watch, name="delayq-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        once()
