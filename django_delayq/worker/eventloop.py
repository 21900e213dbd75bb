"""Event loop of a process: one thread in which all ``async def`` jobs run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import FrameType
from typing import Any

from .attempt import Attempt
from .record import frames_of_thread


class EventLoop:
    """Event loop that the first coroutine starts.

    The slot that took the job waits for its coroutine, so ``threads`` limits both kinds of jobs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], attempt: Attempt) -> Any:
        """Return the coroutine's result, or raise its exception. The time limit cancels the coroutine."""
        loop = self._ensure()
        context = contextvars.copy_context()
        answer: Future[Any] = Future()
        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            task = loop.create_task(coroutine, context=context)
            tasks.append(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                answer.set_exception(CancelledError().with_traceback(_trace_of_cancelled(task)))
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: tasks[0].cancel() if tasks else None)

        attempt.cancel, attempt.frames = cancel, lambda: self._frames(coroutine)
        loop.call_soon_threadsafe(begin)
        return answer.result()

    def _frames(self, coroutine: Any) -> list[FrameType]:
        """Return the frames in which a coroutine waits now, the innermost last."""
        frames = list(_awaited_frames(coroutine))
        thread = self._thread
        if getattr(coroutine, "cr_running", False) and thread is not None and thread.ident is not None:
            return frames_of_thread(thread.ident)  # it does not wait, it blocks the event loop
        return frames

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run_thread, args=(self._loop,), name="delayq-async", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _run_thread(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not loop.is_closed():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # asyncio raises these two out of the loop, although the task has stored them already. The loop
                # continues.
                continue
            return

    def close(self) -> None:
        """Stop the loop. Coroutines that still run are abandoned."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(2.0)
        if not thread.is_alive() and not asyncio.all_tasks(loop):
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frame of a coroutine, and those of the coroutines and generators that it awaits."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _trace_of_cancelled(task: asyncio.Task[Any]) -> Any:
    try:
        task.exception()
    except asyncio.CancelledError as error:
        return error.__traceback__
    return None
