"""Recurring work: the dispatcher's duty that schedules a job at each tick of each recurring task.

Every dispatcher does it for every recurring task, without coordination. The ticks are a pure function of Redis's clock,
and the script that schedules a job records the tick: the first dispatcher schedules it, and the others get the reply
that it was done. The job's id is fixed for each task. So at most one attempt of a task runs and at most one job waits:
a tick that meets a waiting job is merged into that job, and one that meets a running job waits for its end.

A *tick* is one moment at which a task falls due, in Unix milliseconds. Ticks of ``every`` are the multiples of the
interval since 1970-01-01 UTC. Ticks of ``cron`` are those of Debian's cron in the task's time zone. Where the clock is
put forward, a fixed time that does not exist runs once, at the end of the gap. Where it is put back, a fixed time that
exists twice runs the first time only. Expressions with ``*`` (``*/5``) as their minutes or hours follow the elapsed
time: they run in both of the repeated hours and not in the missing one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim

from ..core.builder import JobBuilder
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_id, check_seconds, short
from ..core.registry import recurring_pauses, resume_recurring
from ..core.task import Registry, Task
from ..core.times import datetime_of
from .loop import Changes, Parts

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.outcomes import ScheduleOutcome
    from ..core.queue import Queue

logger = logging.getLogger(__name__)

#: longest rest in seconds
LONGEST_REST_SECONDS: Final = 60.0
#: time until a queue that accepts no jobs (paused, full), or a task that is paused or whose tick failed, is retried
_RETRY_MS: Final = 5_000.0
#: a recorded tick further ahead of the clock than this means that the clock was put back
_CLOCK_BACK_MS: Final = 60_000
#: longest time that scheduling the job of one tick takes on a cluster, in seconds
_FIRE_SECONDS: Final = 1.0
#: seconds added to each rest: waking a little late costs less than waking too early and once more
_MARGIN_SECONDS: Final = 0.0005
#: a tick is in time if it fires late by at most a tenth of the time to the next tick, and by at most this
LONGEST_GRACE_MS: Final = 60_000
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_A_WINTER_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at the multiples of ``step_ms`` since 1970-01-01 UTC."""

    #: intervals do not depend on a time zone
    zone: ClassVar = ""
    step_ms: int

    @property
    def text(self) -> str:
        """Schedule like ``every 10m``, in the largest unit that divides it; another text for each schedule."""
        for unit, ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if self.step_ms % ms == 0:
                return f"every {self.step_ms // ms}{unit}"
        return f"every {self.step_ms / 1000:.3f}s"

    def latest(self, ms: float) -> int | None:
        """Return the last multiple at or before a moment, Unix ms."""
        return int(ms // self.step_ms) * self.step_ms

    def following(self, ms: float) -> int | None:
        """Return the first multiple after a moment."""
        return int(ms // self.step_ms + 1) * self.step_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks of a cron expression of five fields in a time zone."""

    text: str
    zone: str
    _tz: tzinfo = field(repr=False, compare=False)

    @classmethod
    def parse(cls, expression: str, zone: str) -> Cron:
        """Return the ticks of an expression like ``*/5 * * * *`` or ``@daily``.

        Raises:
            InvalidJob: the expression or the zone cannot be read, or no moment ever matches.
        """
        words = expression.split()
        text = " ".join(words)
        fields = _NICKNAMES.get(text.lower(), text)
        if len(fields.split()) != 5:
            hint = " (for seconds, use every=)" if len(words) == 6 else ""
            raise InvalidJob(
                f"cron {short(expression)} must have five fields{hint}: minute, hour, day of month, month and day of "
                f"week; or be one of {', '.join(_NICKNAMES)}"
            )
        made = cls(text, zone, _zone_of(zone))
        try:
            first = next(CronSim(fields, _A_WINTER_DAY), None)
        except Exception as error:  # besides its own errors it raises those that malformed numbers cause
            raise InvalidJob(f"cron {short(expression)} cannot be read: {str(error) or type(error).__name__}") from None
        if first is None:
            raise InvalidJob(f"cron {short(expression)} never comes true; correct its day or its month")
        return made

    def latest(self, ms: float) -> int | None:
        """Return the last tick at or before a moment; None if there was none in the last 50 years.

        In the hour that is repeated in autumn, the ticks of the first one whose minute is still to come are not found.
        """
        return next((tick for tick in self._ticks(ms + 60_000, reverse=True) if tick <= ms), None)

    def following(self, ms: float) -> int | None:
        """Return the first tick after a moment; None if there is none in the next 50 years."""
        return next((tick for tick in self._ticks(ms) if tick > ms), None)

    def _ticks(self, ms: float, *, reverse: bool = False) -> Iterator[int]:
        """Yield ticks from about a moment on. The first may lie before it, where the clock was put back."""
        fields = _NICKNAMES.get(self.text.lower(), self.text)
        for tick in CronSim(fields, datetime.fromtimestamp(ms // 1000, self._tz), reverse):
            yield int(tick.timestamp()) * 1000


Recurrence: TypeAlias = Every | Cron


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise InvalidJob(
            f'time zone {short(name)} is not known here; give a name like "Europe/Berlin" '
            "(a system without time zones needs the package tzdata)"
        ) from None


def tick_id(task: Task) -> str:
    """Return the id of the one job that a recurring task has at a time."""
    return f"recurring:{task.name}"


def check_recurring(task: Task, zone: str = "UTC") -> Recurrence | None:
    """Return the ticks of a task that can recur; None if it does not.

    Args:
        zone: the time zone of cron expressions that name none.

    Raises:
        Misconfigured: its cron expression cannot be read, or its name is too long.
    """
    options = task.options
    try:
        if options.every is not None or options.cron is not None:
            check_id(tick_id(task))
        if options.every is not None:
            return Every(round(check_seconds("every", options.every) * 1000))
        return None if options.cron is None else Cron.parse(options.cron, options.timezone or zone)
    except InvalidJob as error:
        raise Misconfigured(f"task {task.name}: {error}") from None


def grace_ms(recurrence: Recurrence, tick: int) -> float:
    """Return how many milliseconds late a tick may fire without counting as missed."""
    following = recurrence.following(tick)
    return LONGEST_GRACE_MS if following is None else min(LONGEST_GRACE_MS, (following - tick) / 10)


# --- the duty


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


@dataclass(eq=False, repr=False)
class RecurringTicker:
    """Duty that fires the ticks of all recurring tasks. Without any it sends no command.

    Raises:
        Misconfigured: a task cannot recur as its options say.
    """

    _broker: Broker
    #: the tasks; read once, at construction
    registry: Registry
    #: time zone of cron expressions that name none
    zone: str = "UTC"
    _: KW_ONLY
    #: reports that Redis has lost data, perhaps a tick that was fired
    changes: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        self._parts = Parts("recurring-ticker", self._broker)
        self._losses = self.changes.reader("lost")
        self.works = works_of(self.registry, self.zone)

    def attach(self, ring: Callable[[], None]) -> None:
        """Let a loss of data end the rest of the loop."""
        self._losses.ring = ring

    def run(self) -> float:
        """Fire due ticks.

        Returns:
            Seconds until the next tick, at most a minute.
        """
        if not self.works:
            return LONGEST_REST_SECONDS
        if self._losses.take("lost"):
            for work in self.works:  # Redis may have lost a tick with its job
                work.done, work.check_at = None, 0.0
        asked_at = time.monotonic()
        now_ms = self._broker.now_ms()
        read_at = (asked_at + time.monotonic()) / 2
        for work in self.works:
            is_due = now_ms >= work.check_at or self._went_back(work, now_ms)
            if is_due and not self._parts.attempt(work.task.name, partial(self._check, work, now_ms)):
                work.check_at = now_ms + _RETRY_MS
        rest = (min(work.check_at for work in self.works) - now_ms) / 1000 - (time.monotonic() - read_at)
        return min(LONGEST_REST_SECONDS, max(0.0, rest + _MARGIN_SECONDS))

    @staticmethod
    def _went_back(work: Work, now_ms: float) -> bool:
        return work.done is not None and work.done > now_ms + _CLOCK_BACK_MS

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
            text = "%s: a job of another task lives under the id %r in queue %s, so the tick of %s is lost; cancel it"
            logger.error(text, work.task.name, work.id, queue.name, _text_of(tick))
        return True


def _text_of(ms: int) -> str:
    return datetime_of(ms).isoformat(timespec="seconds")
