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

    def __init__(self, name: str, unit: str = "jobs", now: Callable[[], float] = time.monotonic) -> None:
        #: name of the operation, and the unit that is counted; both may be changed during the operation
        self.name = name
        self.unit = unit
        self.done = 0
        #: None = unknown
        self.total: int | None = None
        self._now = now
        self._started = now()
        #: two earlier moments and counts: the rate is that since the first
        self._samples = ((self._started, 0), (self._started, 0))
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
            if now - self._samples[1][0] >= LINE_SECONDS:
                self._samples = (self._samples[1], (now, done))
            self._show(now)

    def part(self) -> Callable[[int, int], None]:
        """Return a callback for a part of the operation: its numbers are added to the number done so far."""
        before = self.done
        return lambda done, total: self.update(before + done, max(self.total or 0, before + total))

    def text(self) -> str:
        """Return percent, number, rate and the time left as text."""
        now = self._now()
        (since, before), seconds = self._samples[0], now - self._started
        rate = max(0.0, (self.done - before) / (now - since)) if now > since else 0.0
        texts = [f"{self.done:,} {self.unit}", f"{rate:,.0f} {self.unit}/s", f"{duration(seconds)} so far"]
        if self.total is not None:
            left = max(0, self.total - self.done)
            share = self.done / self.total if left else 1.0
            texts[:1] = [f"{int(100 * share)} %", f"{self.done:,} of {self.total:,} {self.unit}"]
            if rate or not left:
                texts[-1] = f"{duration(left / rate if left else 0.0)} left"
        return ", ".join(texts)

    def _show(self, now: float) -> None:
        """Show the current state if it is time."""


class Lines(Progress):
    """Progress as plain lines, for logs and for terminals without rich. A short operation prints none."""

    def __init__(self, out: RawOutput, name: str, unit: str = "jobs", **more: Any) -> None:
        super().__init__(name, unit, **more)
        self._out = out
        self._shown_at = self._started
        self._printed = False

    def __exit__(self, *error: object) -> None:
        if self._printed:
            self._print()

    def _show(self, now: float) -> None:
        if now - self._shown_at >= LINE_SECONDS:
            self._shown_at, self._printed = now, True
            self._print()

    def _print(self) -> None:
        self._out.write(f"{self.name}: {self.text()}\n")
        self._out.flush()


class Bar(Progress):
    """Progress as a bar on a terminal. A thread of rich draws it."""

    def __init__(self, console: Console, name: str, unit: str = "jobs", **more: Any) -> None:
        super().__init__(name, unit, **more)
        self._console = console
        self._display = contextlib.ExitStack()
        self._visible = False

    def __exit__(self, *error: object) -> None:
        self._display.close()

    def _show(self, now: float) -> None:
        if self._visible:
            return
        from rich.live import Live

        self._visible = True
        # The cursor stays visible, so a process that is killed leaves nothing to restore.
        self._console.show_cursor = lambda show=True: False  # type: ignore[method-assign]
        self._display.enter_context(exit_on_sigterm())
        live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=_DRAWINGS_PER_SECOND,
            redirect_stdout=False,  # stdout is for results, and may be a pipe
            redirect_stderr=False,
        )
        self._display.enter_context(live)

    def _draw(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table

        text = self.text()
        cells: list[RenderableType] = [self.name, text]
        if len(self.name) + _BAR_COLUMNS + len(text) + 2 < self._console.width:
            cells.insert(1, ProgressBar(self.total, self.done, width=_BAR_COLUMNS))
        line = Table.grid(*(Column(no_wrap=True) for _ in cells), padding=(0, 1))
        line.add_row(*cells)
        return line


def progress(
    stderr: OutputWrapper, name: str, *, unit: str = "jobs", quiet: bool = False, no_color: bool = False
) -> Progress:
    """Return the progress display that fits the output.

    Args:
        quiet: show nothing.
    """
    if quiet:
        return Progress(name, unit)
    console = console_of(stderr, no_color=no_color)
    return Lines(RawOutput(stderr), name, unit) if console is None else Bar(console, name, unit)


@contextlib.contextmanager
def follow(progress: Progress, read: Callable[[], tuple[int, int | None]], every: float = 1.0) -> Iterator[None]:
    """Update the progress from ``read``, which returns done and total, during the block and once more at its end.

    Exceptions of ``read`` are suppressed: a temporary failure to read a counter must not abort the operation.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every):
            update()

    def update() -> None:
        with contextlib.suppress(Exception):
            progress.update(*read())

    follower = threading.Thread(target=repeat, name="delayq-progress", daemon=True)
    follower.start()
    try:
        yield
    finally:
        over.set()
        follower.join()
        update()
