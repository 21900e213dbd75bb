"""Ended attempts as the event streams have them: jobs that finished recently, and the attempts of one job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from .. import connections
from ..core.attempt_outcome import AttemptOutcome
from ..core.events import Event, EventFilter, newest, parts
from ..settings.conf import conf
from .formatting import NOTHING, When, millis, moment
from .redis_pages import RedisPages

#: rows of a list
MOST: Final = 200
#: outcomes that can be chosen
OUTCOMES: Final = tuple(str(one) for one in AttemptOutcome if one is not AttemptOutcome.BULK)
_GOOD: Final = (AttemptOutcome.SUCCEEDED, AttemptOutcome.RELEASED, AttemptOutcome.CANCELLED)
_LONGEST_TEXT: Final = 255


@dataclass(frozen=True, slots=True)
class AttemptViewModel:
    """View model of an event, as of ``now_ms``."""

    event: Event
    now_ms: float
    url: str

    @property
    def ended(self) -> When | None:
        """Moment of the end."""
        return moment(parts(self.event.position)[1], self.now_ms)

    @property
    def is_bad(self) -> bool:
        """True if the attempt did not succeed."""
        return self.event.outcome not in _GOOD

    @property
    def error(self) -> str:
        """Name of the error's class, without its module."""
        name = self.event.fields.get("error", "")
        return name.rpartition(".")[2] or name

    @property
    def duration(self) -> str:
        """Duration of the attempt."""
        return millis(self._number("ms"))

    @property
    def lateness(self) -> str:
        """Start after the due time."""
        return NOTHING if self._late_ms is None else millis(self._late_ms)

    @property
    def is_late(self) -> bool:
        """True if the lateness exceeds ``ADMIN["late_after"]``."""
        return (self._late_ms or 0) > conf().admin.late_after * 1000

    @property
    def _late_ms(self) -> float | None:
        due, started = self._number("due"), self._number("started")
        return None if due is None or not started else max(0.0, started - due)

    def _number(self, name: str) -> float | None:
        text = self.event.fields.get(name, "")
        return float(text) if text.isascii() and text.isdigit() else None


class AttemptPages(RedisPages):
    """Pages that show ended attempts."""

    def finished_view(self, request: HttpRequest) -> HttpResponse:
        """Render the jobs that finished recently."""
        broker = connections.broker()
        names = ("queue", "task", "outcome", "id")
        conditions = EventFilter(**{name: request.GET.get(name, "").strip()[:_LONGEST_TEXT] for name in names})
        now_ms = broker.now_ms()
        context = {
            "conditions": conditions,
            "attempts": self.attempts(conditions, now_ms),
            "most": MOST,
            "queues": broker.queue_names(),
            "outcomes": OUTCOMES,
            "now": moment(now_ms, now_ms),
        }
        title = _("Recently finished")
        return self.render(request, "live_finished", title, context, trail=[(title, "")])

    def attempts(self, conditions: EventFilter, now_ms: float) -> list[AttemptViewModel]:
        """Return view models of the newest events, the latest first."""
        return [
            AttemptViewModel(event, now_ms, self.url("change", f"{event.queue}/{event.id}") if event.id else "")
            for event in newest(connections.broker(), conditions, MOST)
        ]

    def attempts_of(self, queue: str, ident: str) -> dict[str, Any]:
        """Return the context of the table with the attempts of a job."""
        return {"attempts": self.attempts(EventFilter(queue, id=ident), connections.broker().now_ms()), "of_job": True}
