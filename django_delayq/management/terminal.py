"""Output to terminals and pipes: rich's console if it is installed, unwrapped output, and clean exits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper
    from rich.console import Console


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


def console_of(wrapper: OutputWrapper, *, no_color: bool = False) -> Console | None:
    """Return a console that draws on this output; None if it is no terminal, or rich is not installed."""
    if not wrapper.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(
        file=RawOutput(wrapper),  # type: ignore[arg-type] # delegates the rest
        force_terminal=True,
        no_color=no_color or None,  # None = as the variable NO_COLOR says
        markup=False,
        emoji=False,
        highlight=False,
    )


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit during the block, so that the terminal is restored; keep an existing handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def exit_on_closed_pipe() -> Iterator[None]:
    """Exit without a traceback if the block writes to a closed pipe, as in ``delayq_status | head``.

    The exit code is that of programs which SIGPIPE ends. Python ignores this signal.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # it is None if the program was started without it
                sys.stdout.flush()
    except BrokenPipeError:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:  # the interpreter's last flush must not fail as well
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        sys.exit(128 + signal.SIGPIPE)
