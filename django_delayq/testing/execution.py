"""Execution of jobs in the thread of a test."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from ..core.task import registry
from ..runtime import wiring
from ..settings.conf import Conf
from ..worker.attempt import Attempt
from ..worker.execution import Execution
from ..worker.hooks import Hooks
from ..worker.slots import EventLoop

if TYPE_CHECKING:
    from .faults import Faults


class _CallersLoop(EventLoop):
    """Event loop that runs coroutines in the calling thread.

    Their ``sync_to_async`` code also runs in this thread, so that it works in the transaction of the test.
    """

    def run(self, coroutine: Coroutine[Any, Any, Any], run: Attempt) -> Any:
        async def outcome() -> Any:
            return await coroutine

        return async_to_sync(outcome)()


class RecordingExecution(Execution):
    """Execution of the worker that also records the exceptions of handlers."""

    def __init__(self, hooks: Hooks, settings: Conf, faults: Faults) -> None:
        super().__init__(registry, hooks, wiring.make_middlewares(settings), loop=_CallersLoop())
        self._faults = faults
        self._inner = self._call
        self._call = self._recorded_call
        self.raised: list[BaseException] = []

    def _recorded_call(self, attempt: Attempt) -> Any:
        try:
            return self._inner(attempt)
        except BaseException as error:
            self.raised.append(error)
            raise

    def _call_handler(self, attempt: Attempt) -> Any:
        self._faults.raise_next(attempt)
        return super()._call_handler(attempt)
