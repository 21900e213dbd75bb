"""Switches on the queue pages: pauses, the producers of all queues, and the queues of running workers."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from .. import connections
from ..core.errors import InvalidJob
from ..core.layouts import DIRECTIONS
from ..core.queue import Queue
from ..core.workers import CHOICES
from .formatting import duration
from .queue_changes import queue_or_404
from .queue_view_model import workers_of
from .redis_pages import RedisPages

#: lengths of a pause that the page offers, s
PAUSES: Final = {"10m": 600, "1h": 3_600, "1d": 86_400}


class QueueSwitches(RedisPages):
    """Verbs behind the permission to pause queues."""

    def switch_pages(self) -> list[URLPattern]:
        """Return the URLs of these verbs."""
        views = {"pause": self.pause_view, "resume": self.resume_view, "worker": self.worker_view}
        return [
            self.page("producers/", self.producers_view, "producers", verb="pause", methods="POST"),
            *(
                self.page(f"<path:object_id>/{name}/", view, name, verb="pause", methods="POST")
                for name, view in views.items()
            ),
        ]

    def switches(self, queue: Queue, now_ms: float) -> dict[str, Any]:
        """Return what the page of a queue shows of them."""
        is_worked = queue.kind == "python"
        return {
            "lengths": [("", _("until resumed")), *((name, duration(seconds)) for name, seconds in PAUSES.items())],
            "directions": [("out", _("Pause workers")), ("in", _("Pause new jobs")), ("both", _("Pause both"))],
            "other_workers": workers_of(connections.broker(), now_ms, queue.name, others=True) if is_worked else [],
            **{f"{name}_url": self.url(name, queue.name) for name in ("pause", "resume", "worker")},
        }

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause the queue for new jobs, for workers, or for both."""
        queue = queue_or_404(object_id)
        direction = request.POST.get("direction", "")
        if direction not in DIRECTIONS:
            messages.error(request, _("Nothing was paused. Choose new jobs, workers or both."))
        else:
            length = PAUSES.get(request.POST.get("for", ""))
            connections.broker().pause(queue.name, direction, seconds=length)
            self.note(request, queue.name, f"pause {direction}{f' for {length} s' if length else ''}")
            texts = {
                "in": _("Paused for new jobs: schedule() is refused; jobs that are already waiting still run."),
                "out": _("Paused for workers: no job is started; running jobs finish."),
                "both": _("Paused: new jobs are refused and no job is started; running jobs finish."),
            }
            messages.success(request, texts[direction])
        return self.back(self.url("change", queue.name))

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume the queue in both directions."""
        queue = queue_or_404(object_id)
        connections.broker().resume(queue.name)
        self.note(request, queue.name, "resume")
        messages.success(request, _("The queue is no longer paused."))
        return self.back(self.url("change", queue.name))

    def producers_view(self, request: HttpRequest) -> HttpResponse:
        """Pause the producers of all queues, or resume them."""
        paused = request.POST.get("paused") == "1"
        broker = connections.broker()
        (broker.pause_producers if paused else broker.resume_producers)()
        self.note(request, "", "pause all producers" if paused else "resume all producers")
        texts = (_("All queues take new jobs again."), _("No queue takes new jobs any more; stored jobs run."))
        messages.success(request, texts[paused])
        return self.back(self.url("changelist"))

    def worker_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Let a worker watch or ignore the queue."""
        queue = queue_or_404(object_id)
        worker, word = request.POST.get("worker", ""), request.POST.get("word", "")

        def act() -> str:
            if word not in CHOICES or not connections.broker().tell_worker(worker, word, queue.name):
                raise InvalidJob(_("There is no such worker any more. Nothing was changed."))
            self.note(request, queue.name, f"{word} by {worker}")
            return _("All processes of this worker follow with their next heartbeat, until the worker is restarted.")

        self.report_result(request, act)
        return self.back(self.url("change", queue.name))
