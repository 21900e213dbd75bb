"""Slots: threads that run jobs, and the inbox that they take them from."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from .attempt import Attempt
from .hooks import Hooks
from .loop import join_threads

logger = logging.getLogger(__name__)

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
        jobs = []
        for slot, attempt in enumerate(self.running[:MOST_SHOWN]):
            if attempt is not None:
                began = attempt.started or time.monotonic()  # it was taken, and is about to begin
                jobs.append(
                    {
                        "slot": slot,
                        "queue": attempt.job.queue,
                        "id": attempt.job.id,
                        "task": attempt.job.task,
                        "started_ms": int(began * 1000 + attempt.offset_ms),
                        "ids": len(attempt.parts),
                    }
                )
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
        try:
            while True:
                attempts.append(self.inbox.popleft())
        except IndexError:
            return attempts

    def close(self, timeout: float) -> bool:
        """End the threads. Return False if one of them still runs a job ``timeout`` seconds later."""
        self._closing = True
        self.wake(self.count)
        return join_threads(self._threads, timeout)

    def _run_thread(self, slot: int) -> None:
        try:
            self._hooks.thread_start()
        except Exception:
            logger.exception("hook thread_start failed; the slot works without it")
        try:
            self._work(slot)
        finally:
            try:
                self._hooks.thread_end()
            except Exception:
                logger.exception("hook thread_end failed")

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
