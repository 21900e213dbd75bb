"""Pre-emption of a thread at each line of a function in turn, without a second thread and without luck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: lines after which a loop over all of them is believed to have no end
MOST_LINES = 200


class Line:
    """Moment just before one of the functions executes its ``number``-th line.

    Lines are counted as they are executed, from 1, over all calls of all functions; what these call is not counted.
    """

    def __init__(self, number: int, *functions: Callable[..., Any]) -> None:
        self.number = number
        #: True once the thread was pre-empted here; it stays False if the functions execute fewer lines
        self.reached = False
        self._codes = {function.__code__ for function in functions}
        self._executed = 0

    @contextmanager
    def preempted(self, act: Callable[[], object]) -> Iterator[None]:
        """Call ``act`` once in this block, as another thread could, when the line is reached."""

        def trace_calls(frame: FrameType, event: str, argument: object) -> Any:
            return trace_lines if frame.f_code in self._codes else None

        def trace_lines(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self._executed += 1
                if self._executed == self.number:
                    self.reached = True
                    code = frame.f_code
                    print(f"line {self.number}: {code.co_qualname}, {code.co_filename}:{frame.f_lineno}")
                    act()
            return trace_lines

        before = sys.gettrace()
        sys.settrace(trace_calls)
        try:
            yield
        finally:
            sys.settrace(before)
        if not self.reached:
            print(f"no line {self.number}: nothing was pre-empted")


def each_line(*functions: Callable[..., Any]) -> Iterator[Line]:
    """Yield every line that the functions execute, one a turn, and at last one that they do not reach.

    Each turn prepares a world of its own and runs the functions within :meth:`Line.preempted`. If a turn fails, the
    last line of its output says where the thread was pre-empted.

    Raises:
        AssertionError: the first turn executed none of the functions, or each one executes more lines than the last.
    """
    names = ", ".join(function.__qualname__ for function in functions)
    for number in range(1, MOST_LINES + 1):
        line = Line(number, *functions)
        yield line
        if not line.reached:
            assert number > 1, f"no thread was pre-empted: no line of {names} was executed"
            return
    raise AssertionError(f"{names}: over {MOST_LINES} lines; does each turn have a world of its own?")
