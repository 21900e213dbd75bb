"""Clock of the in-memory broker, which moves only on request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from ..core.errors import InvalidJob, Misconfigured
from ..core.times import datetime_of, due_of

Moment = datetime | float


def ms_of_moment(moment: Moment) -> int:
    """Return the Unix ms of an aware ``datetime`` or of Unix seconds."""
    from django.conf import settings
    from django.utils import timezone

    zone = None if settings.USE_TZ else timezone.get_default_timezone()
    ms, _ = due_of(at=moment, zone=zone, allow_far=True)
    return ms or 0


def ms_of_delta(delta: timedelta | float) -> int:
    """Return the milliseconds of a ``timedelta`` or of seconds; negative ones are allowed."""
    if isinstance(delta, timedelta):
        return delta // timedelta(milliseconds=1)
    if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not math.isfinite(delta):
        raise InvalidJob(f"a time span must be a timedelta or a number of seconds, not {delta!r}")
    return round(delta * 1000)


class Clock:
    """Clock in whole milliseconds.

    It starts at the machine's time and does not advance by itself. Until it is frozen or moved, it catches up whenever
    a job is scheduled for a moment (``at=``), which the caller took from the machine's clock.

    Args:
        moment: the initial time, frozen.
        time_machine: keep the machine's clock at the same moment (``time_machine.travel``), so that ``timezone.now()``
            moves along.
    """

    def __init__(self, moment: Moment | None = None, *, time_machine: bool = False) -> None:
        self._stop: Callable[[], None] | None = None
        self._traveller: Any = None
        self._follows = moment is None
        #: called when the clock was set back
        self.on_set_back: Callable[[], None] = lambda: None
        self.us = _machine_us() if moment is None else ms_of_moment(moment) * 1000
        if time_machine:
            self._move_machine_clock()

    @property
    def now(self) -> datetime:
        """Current time (UTC)."""
        return datetime_of(self.us // 1000)

    @property
    def now_ms(self) -> int:
        """Current time, Unix ms."""
        return self.us // 1000

    def freeze(self, moment: Moment | None = None) -> datetime:
        """Set the clock; None = leave it unchanged. From now on only :meth:`travel` and ``run_due`` move it."""
        return self._set(self.us if moment is None else ms_of_moment(moment) * 1000)

    def travel(self, delta: timedelta | float) -> datetime:
        """Move the clock by a ``timedelta`` or by seconds."""
        return self._set(self.us + ms_of_delta(delta) * 1000)

    def reach(self, ms: int) -> None:
        """Advance the clock to at least ``ms``."""
        if ms * 1000 > self.us:
            self._set(ms * 1000)

    def catch_up(self) -> None:
        """Catch up with the machine's clock, unless the clock is frozen."""
        if self._follows:
            self.us = max(self.us, _machine_us())

    def _set(self, us: int) -> datetime:
        is_earlier = us < self.us
        self.us, self._follows = us, False
        if is_earlier:
            self.on_set_back()
        if self._traveller is not None:
            self._traveller.move_to(self.now)
        return self.now

    def _move_machine_clock(self) -> None:
        try:
            import time_machine
        except ImportError:
            raise Misconfigured(
                "time_machine=True moves timezone.now() along with the clock of the queue, and needs the package "
                "time-machine: pip install time-machine"
            ) from None
        self._follows = False
        travel = time_machine.travel(self.now, tick=False)
        self._traveller, self._stop = travel.start(), travel.stop

    def close(self) -> None:
        """Restore the machine's clock."""
        if self._stop is not None:
            self._stop()
        self._stop = self._traveller = None


def _machine_us() -> int:
    return math.ceil(time.time() * 1000) * 1000
