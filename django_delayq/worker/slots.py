"""Threads for the project's code: slots with their inbox, the event loop for coroutines, and calls outside of slots."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .attempt import Attempt
from .loop import call_safely, join_threads
from .record import frames_of_thread, printed_traceback, stack_text

if TYPE_CHECKING:
    from .hooks import Hooks

logger = logging.getLogger(__name__)

T = TypeVar("T")
#: maximum number of slots whose jobs are announced
MOST_SHOWN: Final = 64


class Slots:
    """``count`` threads at one inbox. A busy slot takes its next attempt without any lock or wait.

    ``wake`` decides how many idle slots begin. One is enough for a batch of very short attempts, where a second thread
    would only compete for the interpreter lock. A slot that is about to begin a longer attempt wakes the next one
    first.
    """

    def __init__(self, count: int, execute: Callable[[Attempt], None], hooks: Hooks, ended: Callable[[], None]) -> None:
        self.count = count
        self.inbox: deque[Attempt] = deque()
        #: finished attempts, for the fetch loop to collect
        self.done: deque[Attempt] = deque()
        #: attempt in each slot
        self.running: list[Attempt | None] = [None] * count
        #: wake one more slot before each attempt
        self.spread = True
        self._execute = execute
        self._hooks = hooks
        self._ended = ended
        self._idle: deque[int] = deque()
        self._bells = [threading.Lock() for _ in range(count)]
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run_thread, args=(slot,), name=f"delayq-slot-{slot}", daemon=True)
            for slot in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for bell in self._bells:
            bell.acquire()
        for thread in self._threads:
            thread.start()

    @property
    def free(self) -> int:
        """Number of idle slots."""
        return self.running.count(None)

    def jobs(self) -> list[dict[str, Any]]:
        """Return what the slots run now, for display (:meth:`Broker.workers`). The attempts may end meanwhile."""
        jobs: list[dict[str, Any]] = []
        for slot, attempt in enumerate(self.running[:MOST_SHOWN]):
            if attempt is not None:
                job, began = attempt.job, attempt.started or time.monotonic()  # it was taken, and is about to begin
                jobs.append({"slot": slot, "queue": job.queue, "id": job.id, "task": job.task})
                jobs[-1] |= {"started_ms": int(began * 1000 + attempt.offset_ms), "ids": len(attempt.parts)}
        return jobs

    def put(self, attempts: list[Attempt], wake: int) -> None:
        """Add attempts to the inbox, and wake up to ``wake`` idle slots for them."""
        self.inbox.extend(attempts)
        self.wake(wake)

    def wake(self, slots: int) -> None:
        """Wake up to this many idle slots."""
        for _ in range(slots):
            try:
                slot = self._idle.pop()  # the last to fall asleep has the warmest cache
            except IndexError:
                return
            self._bells[slot].release()

    def take_back(self) -> list[Attempt]:
        """Remove and return everything in the inbox that no slot has taken."""
        attempts: list[Attempt] = []
        with suppress(IndexError):
            while True:
                attempts.append(self.inbox.popleft())
        return attempts

    def close(self, timeout: float) -> bool:
        """End the threads. Return False if one of them still runs a job ``timeout`` seconds later."""
        self._closing = True
        self.wake(self.count)
        return join_threads(self._threads, timeout)

    def _run_thread(self, slot: int) -> None:
        try:
            self._work(slot)
        finally:
            call_safely("the hook thread_end", self._hooks.thread_end)

    def _work(self, slot: int) -> None:
        take, finish = self.inbox.popleft, self.done.append
        inbox, idle, running, execute, ended = self.inbox, self._idle, self.running, self._execute, self._ended
        while True:
            try:
                attempt = take()
            except IndexError:
                if self._closing:
                    return
                self._rest(slot)
                continue
            running[slot] = attempt
            if self.spread and inbox and idle:
                self.wake(1)
            attempt.slot = slot
            execute(attempt)  # never raises
            running[slot] = None
            finish(attempt)
            ended()

    def _rest(self, slot: int) -> None:
        self._idle.append(slot)
        if self.inbox or self._closing:
            # An attempt arrived between the last check and the registration as idle; the caller of ``put`` may not have
            # seen this slot.
            try:
                self._idle.remove(slot)
            except ValueError:
                self._bells[slot].acquire()  # it was seen: the bell has rung or is about to
            return
        self._bells[slot].acquire()


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
        answer: Future[Any] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def perform() -> None:
            try:
                answer.set_result(await coroutine)
            except asyncio.CancelledError as error:
                answer.set_exception(CancelledError().with_traceback(error.__traceback__))
            except BaseException as error:  # SystemExit, for instance, would end the loop
                answer.set_exception(error)

        def cancel() -> None:
            # One turn of the loop later, because a task that is cancelled before it begins would never answer.
            loop.call_soon_threadsafe(lambda: [loop.call_soon(task.cancel) for task in tasks])

        attempt.cancel, attempt.frames = cancel, lambda: self._frames(coroutine)
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(perform())))
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
        while True:
            try:
                loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                # asyncio raises these two out of the loop, although the task has stored them already.
                continue
        if not asyncio.all_tasks(loop):
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def close(self) -> None:
        """Stop the loop. Coroutines that still run are abandoned."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(2.0)


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frame of a coroutine, and those of the coroutines and generators that it awaits."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


# -- calls outside of slots --------------------------------------------------------------------------------------------


class HangingCall(Exception):
    """Error of a call that did not end in time; its text is the stack of it."""


def call_limited(
    name: str,
    function: Callable[[], T],
    seconds: float,
    *,
    end: Callable[[], object] = lambda: None,
) -> T:
    """Return ``function()``, called in a thread of its own, or raise its exception.

    Args:
        name: of the thread.
        function: code of the project.
        seconds: its time limit.
        end: called last.

    Raises:
        HangingCall: it took longer than this, and is left behind with its thread.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            try:
                result = function()
            finally:
                call_safely("the hook thread_end", end)
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():  # the function raised it, or has returned a moment ago
            return answer.result()
        stack = stack_text(frames_of_thread(thread.ident or 0))
        raise HangingCall(printed_traceback(stack, "it hangs here")) from None
