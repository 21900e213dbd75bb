"""Output to terminals and pipes: unwrapped output, and a clean exit if the reader ends first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper


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
