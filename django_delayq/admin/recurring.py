"""Page of the recurring tasks: their ticks, and buttons that pause, resume or run one."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from .. import connections
from ..core.errors import QueuePaused
from ..core.registry import pause_recurring
from ..core.task import registry
from ..status import RecurringStatus, read_recurring
from ..worker.recurring import resume, run_now, work_of
from .formatting import moment
from .redis_pages import RedisPages

#: verb → the permission that it needs
VERBS: Final = {"pause": "pause", "resume": "pause", "run": "run"}


class RecurringPages(RedisPages):
    """Page of the recurring tasks."""

    def recurring_pages(self) -> list[URLPattern]:
        """Return its URL. Verbs are sent to it too: below it, pages of a queue named "recurring" may lie."""
        return [self.page("recurring/", self.recurring_view, "recurring", methods="GET HEAD POST")]

    def recurring_view(self, request: HttpRequest) -> HttpResponse:
        """Render the tasks, or act on one."""
        if request.method == "POST":
            return self._act(request, request.POST.get("verb", ""), request.POST.get("task", ""))
        broker = connections.broker()
        now_ms = broker.now_ms()
        context = {
            "tasks": [_row(one, now_ms) for one in read_recurring(broker)],
            "now": moment(now_ms, now_ms),
            "may_pause": self.may(request, "pause"),
            "may_run": self.may(request, "run"),
        }
        return self.render(request, "recurring", _("Recurring tasks"), context, trail=[(_("Recurring tasks"), "")])

    def _act(self, request: HttpRequest, verb: str, task: str) -> HttpResponse:
        if verb not in VERBS or not self.may(request, VERBS[verb]):
            raise PermissionDenied

        def act() -> str:
            broker = connections.broker()
            texts = {
                "pause": _("Paused: the ticks of %s do not fire until it is resumed."),
                "resume": _("The ticks of %s fire again."),
                "run": _("A run of %s is due now."),
            }
            if verb == "resume":
                name = resume(broker, registry, task)
            else:
                work = work_of(registry, task)
                name = work.task.name
                if verb == "pause":
                    pause_recurring(broker, name)
                elif run_now(broker, work) == "gated":
                    texts["run"] = _("A run of %s begins when the present one ends.")
            self.note(request, name, f"{verb} recurring task")
            return texts[verb] % name

        try:
            self.report_result(request, act)
        except QueuePaused as error:
            messages.error(request, str(error))
        return self.back(self.url("recurring"))


def _row(one: RecurringStatus, now_ms: float) -> dict[str, Any]:
    last, following, paused = (
        None if ms is None else moment(ms, now_ms) for ms in (one.last_tick_ms, one.next_tick_ms, one.paused_ms)
    )
    return {"status": one, "last": last, "next": following, "paused": paused}
