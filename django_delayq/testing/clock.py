"""Clock of the in-memory broker, which moves only on request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from ..core.errors import InvalidJob
from ..core.times import datetime_of, due_of

Moment = datetime | float


def ms_of_moment(moment: Moment) -> int:
    """Return the Unix ms of an aware ``datetime`` or of Unix seconds."""
    from django.conf import settings
    from django.utils import timezone

    zone = None if settings.USE_TZ else timezone.get_default_timezone()
    return due_of(at=moment, zone=zone, allow_far=True)[0] or 0


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

    Attributes:
        us: current time, Unix µs.
        on_set_back: called when the clock was set back.
    """

    def __init__(self, moment: Moment | None = None) -> None:
        self._follows = moment is None
        self.on_set_back: Callable[[], None] = lambda: None
        self.us = _machine_us() if moment is None else ms_of_moment(moment) * 1000

    @property
    def now(self) -> datetime:
        """Current time (UTC)."""
        return datetime_of(self.now_ms)

    @property
    def now_ms(self) -> int:
        """Current time, Unix ms."""
        return self.us // 1000

    def set(self, ms: int) -> datetime:
        """Set the clock, which follows the machine's no more; return the time."""
        is_earlier = ms < self.now_ms
        self.us, self._follows = ms * 1000, False
        if is_earlier:
            self.on_set_back()
        return self.now

    def catch_up(self) -> None:
        """Catch up with the machine's clock, unless the clock was set."""
        if self._follows:
            self.us = max(self.us, _machine_us())


def _machine_us() -> int:
    return math.ceil(time.time() * 1000) * 1000
