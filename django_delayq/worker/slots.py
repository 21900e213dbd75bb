"""The slots: threads that run jobs, and the inbox from which they take them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from .hooks import Hooks
from .run import Run

logger = logging.getLogger(__name__)

#: slots whose runs are announced
MOST_SHOWN: Final = 64


class Slots:
    """``count`` threads at one inbox. A busy slot takes its next run without any lock or wait.

    ``wake`` decides how many idle slots begin: one is enough for a batch of tiny runs, where a second thread would only
    fight for the interpreter lock. A slot that is about to begin a run that is not tiny wakes the next one first.
    """

    def __init__(self, count: int, execute: Callable[[Run], None], hooks: Hooks, ended: Callable[[], None]) -> None:
        self.count = count
        self.inbox: deque[Run] = deque()
        #: finished runs, for the fetch loop to collect
        self.done: deque[Run] = deque()
        #: what each slot runs
        self.running: list[Run | None] = [None] * count
        #: wake one more before each run
        self.spread = True
        self._execute = execute
        self._hooks = hooks
        self._ended = ended
        self._idle: deque[int] = deque()
        self._bells = [threading.Lock() for _ in range(count)]
        self._closing = False
        self._threads = [
            threading.Thread(target=self._live, args=(slot,), name=f"delayq-slot-{slot}", daemon=True)
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
        """Slots that run nothing."""
        return self.running.count(None)

    def jobs(self) -> list[dict[str, Any]]:
        """What the slots run now, for those who look on (:meth:`Broker.workers`). The runs may end meanwhile."""
        found = []
        for slot, run in enumerate(self.running[:MOST_SHOWN]):
            if run is not None:
                began = run.started or time.monotonic()  # it was taken, and begins right now
                found.append(
                    {
                        "slot": slot,
                        "queue": run.job.queue,
                        "id": run.job.id,
                        "task": run.job.task,
                        "started_ms": int(began * 1000 + run.offset_ms),
                        "ids": len(run.parts),
                    }
                )
        return found

    def put(self, runs: list[Run], wake: int) -> None:
        """Hand in runs, and wake up to ``wake`` idle slots for them."""
        self.inbox.extend(runs)
        self.wake(wake)

    def wake(self, slots: int) -> None:
        """Wake up to so many idle slots."""
        for _ in range(slots):
            try:
                slot = self._idle.pop()  # the last to fall asleep has the warmest cache
            except IndexError:
                return
            self._bells[slot].release()

    def take_back(self) -> list[Run]:
        """Everything in the inbox that no slot has taken."""
        runs: list[Run] = []
        try:
            while True:
                runs.append(self.inbox.popleft())
        except IndexError:
            return runs

    def close(self, timeout: float) -> bool:
        """End the threads; False if one of them still runs a job after ``timeout`` seconds."""
        self._closing = True
        self.wake(self.count)
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _live(self, slot: int) -> None:
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
                run = take()
            except IndexError:
                if self._closing:
                    return
                self._rest(slot)
                continue
            running[slot] = run
            if self.spread and inbox and idle:
                self.wake(1)
            run.slot = slot
            execute(run)  # never raises
            running[slot] = None
            finish(run)
            ended()

    def _rest(self, slot: int) -> None:
        self._idle.append(slot)
        if self.inbox or self._closing:
            # Something came between the last look and lying down; whoever brought it may not have seen this slot.
            try:
                self._idle.remove(slot)
            except ValueError:
                self._bells[slot].acquire()  # it was seen: the bell has rung or is about to
            return
        self._bells[slot].acquire()
