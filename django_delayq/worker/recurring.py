"""Recurring work: the dispatcher's duty that schedules a job at each tick of each recurring task.

Every dispatcher does it for every recurring task, without coordination. The ticks are a pure function of Redis's clock,
and the script that schedules a job records the tick: the first dispatcher schedules it, and the others get the reply
that it was done. The job's id is fixed for each task. So at most one attempt of a task runs and at most one job waits:
a tick that meets a waiting job is merged into that job, and one that meets a running job waits for its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core.builder import JobBuilder
from ..core.errors import InvalidJob
from ..core.inputs import short
from ..core.registry import recurring_pauses, resume_recurring
from ..core.task import Registry, Task
from ..core.times import datetime_of
from .changes import Changes
from .parts import Parts
from .recurrence import Recurrence, check_recurring, grace_ms, tick_id

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.outcomes import ScheduleOutcome
    from ..core.queue import Queue

logger = logging.getLogger(__name__)

#: longest rest, and how long the difference between Redis's clock and ours is trusted (seconds)
LONGEST_REST_SECONDS: Final = 60.0
#: time until a queue that accepts no jobs (paused, full), or a task that is paused or whose tick failed, is retried
_RETRY_MS: Final = 5_000.0
#: a recorded tick further ahead of the clock than this means that the clock was put back
_CLOCK_BACK_MS: Final = 60_000
#: longest time that scheduling the job of one tick takes on a cluster, in seconds
_FIRE_SECONDS: Final = 1.0
#: seconds added to each rest: waking a little late costs less than waking too early and once more
_MARGIN_SECONDS: Final = 0.0005


@dataclass(slots=True)
class Work:
    """State of one recurring task in this process. Times are Redis's, Unix ms."""

    task: Task
    recurrence: Recurrence
    #: fixed id of its jobs
    id: str
    #: the last tick that needs no firing any more; None = not read from Redis yet
    done: int | None = None
    #: when to check this task next
    check_at: float = 0.0

    @property
    def schedule(self) -> str:
        """Text that identifies the schedule across processes."""
        return f"{self.recurrence.text} {self.recurrence.zone}".rstrip()


def works_of(registry: Registry, zone: str = "UTC") -> list[Work]:
    """Return the recurring tasks of a registry.

    Args:
        registry: the tasks.
        zone: the time zone of cron expressions that name none.

    Raises:
        Misconfigured: a task cannot recur as its options say.
    """
    recurrences = [(task, check_recurring(task, zone)) for task in registry]
    return [Work(task, recurrence, tick_id(task)) for task, recurrence in recurrences if recurrence is not None]


def work_of(registry: Registry, name: str) -> Work:
    """Return a recurring task by its name or by an alias.

    Raises:
        InvalidJob: there is no such task in this process; the message lists those that there are.
    """
    works = {work.task.name: work for work in works_of(registry)}
    task = registry.get(name)
    if task is None or task.name not in works:
        known = ", ".join(sorted(works)) or "none"
        raise InvalidJob(f"{short(name)} is no recurring task of this project; these are: {known}")
    return works[task.name]


def resume(broker: Broker, registry: Registry, name: str) -> str:
    """End the pause of a recurring task, also of one that was renamed or removed since, and return the task's name.

    Raises:
        InvalidJob: there is neither such a task nor such a pause.
    """
    try:
        names = work_of(registry, name).task.names
    except InvalidJob:
        if name not in recurring_pauses(broker):
            raise
        names = (name,)
    resume_recurring(broker, *names)
    return names[0]


def run_now(broker: Broker, work: Work) -> ScheduleOutcome:
    """Schedule a run of a recurring task for now, beside its ticks; at most one is active, and at most one waits.

    Raises:
        QueuePaused, QueueFull, TaskMismatch: the queue takes no job, or another task has its id.
    """
    new = JobBuilder(work.task).build_tick(work.id, int(broker.now_ms()))
    return broker.queue(work.task.options.queue).schedule(new)


class ServerClock:
    """Redis's clock, read once a minute and extrapolated with this machine's monotonic clock."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._offset_ms = 0.0
        self._read_at: float | None = None

    def __call__(self) -> float:
        """Return Redis's time, Unix ms."""
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= LONGEST_REST_SECONDS:
            server_ms = self._broker.now_ms()
            replied_at = time.monotonic()
            self._offset_ms = server_ms - (now + replied_at) * 500
            self._read_at = now = replied_at
        return now * 1000 + self._offset_ms

    def forget(self) -> None:
        """Read the clock again at the next use, because the server may have been replaced."""
        self._read_at = None


class RecurringTicker:
    """Duty that fires the ticks of all recurring tasks. Without any it sends no command.

    Args:
        registry: the tasks; read once, at construction.
        zone: the time zone of cron expressions that name none.
        clock: returns Redis's time in Unix ms.
        changes: reports that Redis has lost data, perhaps a tick that was fired.

    Raises:
        Misconfigured: a task cannot recur as its options say.
    """

    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        zone: str = "UTC",
        *,
        clock: Callable[[], float] | None = None,
        changes: Changes | None = None,
    ) -> None:
        self._broker = broker
        self._changes = changes or Changes()
        self._server_clock = ServerClock(broker)
        self._clock = clock or self._server_clock
        self._parts = Parts("recurring-ticker", broker)
        self.works = works_of(registry, zone)

    def attach(self, ring: Callable[[], None]) -> None:
        """Subscribe ``ring``, which wakes this duty's loop."""
        self._changes.subscribe(ring)

    def run(self) -> float:
        """Fire due ticks.

        Returns:
            Seconds until the next tick, at most a minute.
        """
        if not self.works:
            return LONGEST_REST_SECONDS
        if self._changes.take("lost"):
            self._forget_ticks()
        try:
            for work in self.works:
                now_ms = self._clock()
                if now_ms >= work.check_at or self._went_back(work, now_ms):
                    self._check_or_postpone(work, now_ms)
            rest = (min(work.check_at for work in self.works) - self._clock()) / 1000
        except Exception:
            self._server_clock.forget()
            raise
        return min(LONGEST_REST_SECONDS, max(0.0, rest + _MARGIN_SECONDS))

    def _forget_ticks(self) -> None:
        """Read from Redis again which ticks are done: it may have lost one with its job."""
        self._server_clock.forget()
        for work in self.works:
            work.done, work.check_at = None, 0.0

    @staticmethod
    def _went_back(work: Work, now_ms: float) -> bool:
        return work.done is not None and work.done > now_ms + _CLOCK_BACK_MS

    def _check_or_postpone(self, work: Work, now_ms: float) -> None:
        if not self._parts.attempt(work.task.name, partial(self._check, work, now_ms)):
            work.check_at = now_ms + _RETRY_MS

    def _check(self, work: Work, now_ms: float) -> None:
        queue = self._broker.queue(work.task.options.queue)
        if work.done is None or self._went_back(work, now_ms):
            work.done = queue.first_sight(work.id, work.schedule)
        tick = work.recurrence.latest(now_ms)
        following = work.recurrence.following(now_ms)
        work.check_at = float("inf") if following is None else following
        if tick is None or tick <= work.done:
            return
        if not recurring_pauses(self._broker).keys().isdisjoint(work.task.names):
            work.check_at = min(work.check_at, now_ms + _RETRY_MS)
            return
        late_ms = now_ms - tick
        missed = late_ms > grace_ms(work.recurrence, tick)
        if missed and work.task.options.missed == "skip":
            # False if another process skipped it, or this one before a restart
            if queue.skip_tick(work.id, work.schedule, tick):
                logger.info("%s: the tick of %s was missed and is skipped", work.task.name, _text_of(tick))
        elif not self._fire(queue, work, tick):
            work.check_at = min(work.check_at, now_ms + _RETRY_MS)
            return
        elif missed:
            logger.info("%s: the tick of %s was fired %.0f s late", work.task.name, _text_of(tick), late_ms / 1000)
        work.done = tick

    def _fire(self, queue: Queue, work: Work, tick: int) -> bool:
        """Return True if the tick is done, whichever process fired it."""
        # Other tasks wait meanwhile, perhaps on nodes that can be reached.
        with self._broker.connection.limited(_FIRE_SECONDS):
            outcome = queue.schedule_tick(JobBuilder(work.task).build_tick(work.id, tick), tick)
        if outcome in ("paused", "full", "closed"):
            logger.info("%s: queue %s is %s; the tick of %s waits", work.task.name, queue.name, outcome, _text_of(tick))
            return False
        if outcome == "taken":
            logger.error(
                "%s: a job of another task lives under the id %r in queue %s, so the tick of %s is lost; "
                "cancel that job",
                work.task.name,
                work.id,
                queue.name,
                _text_of(tick),
            )
        return True


def _text_of(ms: int) -> str:
    return datetime_of(ms).isoformat(timespec="seconds")
