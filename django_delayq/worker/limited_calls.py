"""Calls of the project's code where no slot runs it: in a thread that is left behind if one of them hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from .record import frames_of_thread, printed_traceback, stack_text

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")
_Calls: TypeAlias = "SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]"


class HangingCall(Exception):
    """Error of a call that did not end in time; its text is the stack of it."""


class LimitedCalls:
    """Calls in one thread, which the first call starts. A context manager, at whose end the thread ends.

    Args:
        name: of the thread.
        begin: called first in the thread.
        end: called last.
    """

    def __init__(self, name: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._name = name
        self._begin = begin
        self._end = end
        self._calls: _Calls = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LimitedCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(1.0)

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Return ``function()``, or raise its exception.

        Raises:
            HangingCall: it took longer than this. It is left behind with its thread, and the next call gets another.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._calls.put((function, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():  # the function raised it, or has returned a moment ago
                return answer.result()
            stack = printed_traceback(stack_text(frames_of_thread(self._thread.ident or 0)), "it hangs here")
            self._calls.put(None)
            self._calls, self._thread = SimpleQueue(), None
            raise HangingCall(stack) from None

    def _run_thread(self, calls: _Calls) -> None:
        try:
            self._begin()
        except Exception:
            logger.exception("the preparation of the thread %s failed; calls are made without it", self._name)
        try:
            while (entry := calls.get()) is not None:
                function, answer = entry
                try:
                    answer.set_result(function())
                except BaseException as error:
                    answer.set_exception(error)
        finally:
            self._end()
