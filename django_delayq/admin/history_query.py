"""Query of the history page, parsed from a URL and written into one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _

from ..history.periods import NAMED, USUAL, Period, SeriesQuery, named
from ..models.history import NAME_LENGTH

_LONGEST: Final = 40
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Parsed query.

    Attributes:
        name: of the period, one of :data:`NAMED`; "" if ``since`` and ``until`` are given.
        since: as entered by the user.
        until: as entered by the user; "" = now.
        period: the resulting period.
        problem: why a period other than the requested one is shown.
    """

    queue: str
    task: str
    name: str
    since: str
    until: str
    period: Period
    problem: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> HistoryQuery:
        """Return the query of a URL; an invalid period is reported in ``problem``."""
        queue, task = (query.get(name, "").replace("\0", "")[:NAME_LENGTH] for name in ("queue", "task"))
        since, until = (query.get(name, "").strip()[:_LONGEST] for name in ("from", "to"))
        name = query.get("period", "")
        name = name if name in NAMED else USUAL
        if not (since or until):
            return cls(queue, task, name, "", "", named(name))
        try:
            return cls(queue, task, "", since, until, _between(since, until))
        except ValueError as error:
            problem = _("This period cannot be shown: %(error)s. The last 24 hours are shown instead.") % {
                "error": error
            }
            return cls(queue, task, USUAL, since, until, named(USUAL), problem)

    @property
    def series(self) -> SeriesQuery:
        """Row filter of the query."""
        return SeriesQuery(self.queue, self.task, self.period)

    def urlencode(self, **other: Any) -> str:
        """Return the query string of the same page with some parameters replaced, without a question mark."""
        parameters = {"queue": self.queue, "task": self.task, "period": "" if self.name == USUAL else self.name}
        if not self.name:
            parameters |= {"from": self.since, "to": self.until}
        return urlencode({name: value for name, value in {**parameters, **other}.items() if value})


def _between(since: str, until: str) -> Period:
    now = datetime.now(UTC)
    end = _moment(until, end=True) if until else now
    start = _moment(since) if since else end - _DAY
    return Period.between(start, end)


def _moment(text: str, *, end: bool = False) -> datetime:
    """Return a moment in the current time zone; a date alone is the start of its day, or its end.

    Raises:
        ValueError: it is not a date.
    """
    try:
        day = parse_date(text)
        moment = parse_datetime(text) if day is None or len(text) > 10 else None
        if moment is None and day is not None:
            moment = datetime.combine(day + _DAY if end else day, time())
        if moment is not None:
            return moment if timezone.is_aware(moment) else timezone.make_aware(moment, timezone.get_current_timezone())
    except (ValueError, OverflowError):
        pass
    raise ValueError(_("“%(text)s” is neither a date nor a date with a time") % {"text": text})
