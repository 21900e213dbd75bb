"""Pre-emption of a thread at a line that the test chooses, without a second thread and without luck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def preempted(function: Callable[..., Any], line: int, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` once, as another thread could, just before ``function`` executes its ``line``-th line.

    Lines are counted as they are executed, from 1; what ``function`` calls is not counted. A function that executes
    fewer lines is not interrupted.
    """
    code, left = function.__code__, line

    def trace_calls(frame: FrameType, event: str, argument: object) -> Any:
        return trace_lines if frame.f_code is code else None

    def trace_lines(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                act()
        return trace_lines

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        yield
    finally:
        sys.settrace(before)
