"""Due times of recurring tasks: pure functions of the clock, so that all processes on all machines agree.

A *tick* is one moment at which a task falls due, in Unix milliseconds. Ticks of ``every`` are the multiples of the
interval since 1970-01-01 UTC. Ticks of ``cron`` are those of Debian's cron in the task's time zone. Where the clock is
put forward, a fixed time that does not exist runs once, at the end of the gap. Where it is put back, a fixed time that
exists twice runs the first time only. Expressions with ``*`` (``*/5``) as their minutes or hours follow the elapsed
time: they run in both of the repeated hours and not in the missing one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_id, check_seconds, short
from ..core.options import TaskOptions
from ..core.task import Task

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
#: how far back the latest tick is searched; the rarest expressions ("29 February on a Monday") take 40 years
_LOOK_BACK: Final = tuple(timedelta(hours=hours) for hours in (3, 50, 24 * 40, 24 * 400, 24 * 366 * 9, 24 * 366 * 48))
_A_WINTER_DAY: Final = datetime(2024, 1, 1, tzinfo=UTC)


class Recurrence(Protocol):
    """Rule that gives the ticks of one recurring task."""

    @property
    def text(self) -> str:
        """Schedule as readable text; different schedules have different texts."""

    @property
    def zone(self) -> str:
        """Time zone that the schedule depends on, or an empty string."""

    def latest(self, ms: float) -> int | None:
        """Return the last tick at or before a moment; None if there was none in the last 48 years."""

    def following(self, ms: float) -> int | None:
        """Return the first tick after a moment; None if there is none in the next 50 years."""


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at the multiples of ``step_ms`` since 1970-01-01 UTC."""

    step_ms: int

    @property
    def text(self) -> str:
        """Schedule like ``every 10m``, in the largest unit that divides it."""
        for unit, ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if self.step_ms % ms == 0:
                return f"every {self.step_ms // ms}{unit}"
        return f"every {self.step_ms / 1000:.3f}s"

    @property
    def zone(self) -> str:
        """Empty string: intervals do not depend on a time zone."""
        return ""

    def latest(self, ms: float) -> int | None:
        """Return the last multiple at or before a moment."""
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
        """Return the last tick at or before a moment.

        Searches forwards from an earlier moment: in the hour that is repeated in autumn, a backwards search from
        "02:10" cannot detect that 02:30 has already occurred.
        """
        for span in _LOOK_BACK:
            latest_tick = None
            for tick in self._from(_moment(ms) - span):
                if tick > ms:
                    break
                latest_tick = tick
            if latest_tick is not None:
                return latest_tick
        return None

    def following(self, ms: float) -> int | None:
        """Return the first tick after a moment."""
        return next((tick for tick in self._from(_moment(ms)) if tick > ms), None)

    def _from(self, start: datetime) -> Iterator[int]:
        """Yield ticks from about ``start`` on. The first may lie before it, where the clock was put back."""
        fields = _NICKNAMES.get(self.text.lower(), self.text)
        for tick in CronSim(fields, start.astimezone(self._tz)):
            yield int(tick.timestamp()) * 1000


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)


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


def recurrence_of(options: TaskOptions, zone: str = "UTC") -> Recurrence | None:
    """Return the ticks that a task's options define; None if it does not recur.

    Args:
        zone: the time zone of cron expressions that name none.

    Raises:
        InvalidJob: the expression or the time zone cannot be used.
    """
    if options.every is not None:
        return Every(round(check_seconds("every", options.every) * 1000))
    if options.cron is not None:
        return Cron.parse(options.cron, options.timezone or zone)
    return None


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
    try:
        recurrence = recurrence_of(task.options, zone)
        if recurrence is not None:
            check_id(tick_id(task))
    except InvalidJob as error:
        raise Misconfigured(f"task {task.name}: {error}") from None
    return recurrence


def grace_ms(recurrence: Recurrence, tick: int) -> float:
    """Return how many milliseconds late a tick may fire without counting as missed."""
    following = recurrence.following(tick)
    return LONGEST_GRACE_MS if following is None else min(LONGEST_GRACE_MS, (following - tick) / 10)
