"""Pages that send commands to workers: stop, drain, dump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import connections
from ..core.inputs import short
from .formatting import moment
from .queue_view_model import WorkerViewModel
from .redis_pages import RedisPages

#: command → permission that it needs
WORKER_VERBS: Final = {"stop": "stop", "drain": "stop", "dump": "dump"}
WORKER_LABELS: Final = {
    "stop": gettext_lazy("Stop…"),
    "drain": gettext_lazy("Drain…"),
    "dump": gettext_lazy("Stacks"),
}
#: command → button of its page, and what it does
_TEXTS: Final = {
    "stop": (
        gettext_lazy("Stop the worker"),
        gettext_lazy(
            "All processes of its program reserve nothing more, finish their jobs within the grace period, and end. "
            "Jobs that are not done by then are released. Nothing starts the program again, unless it is supervised."
        ),
    ),
    "drain": (
        gettext_lazy("Drain the worker"),
        gettext_lazy(
            "All processes of its program finish the jobs that they hold and reserve no more. They keep running "
            "without work until they are stopped."
        ),
    ),
}
_LATER: Final = gettext_lazy("The command was sent. The worker receives it with its next heartbeat.")


class WorkerCommands(RedisPages):
    """Pages of the commands."""

    def worker_pages(self) -> list[URLPattern]:
        """Return the URLs of these pages."""
        views = {word: partial(self.command_view, word=word) for word in _TEXTS} | {"dump": self.dump_view}
        return [
            self.page(f"workers/<path:worker>/{word}/", view, word, verb=WORKER_VERBS[word], methods="GET HEAD POST")
            for word, view in views.items()
        ]

    def with_commands(self, request: HttpRequest, workers: Sequence[WorkerViewModel]) -> list[WorkerViewModel]:
        """Return the view models with the commands that the user may send, as (label, URL)."""
        may = [word for word, verb in WORKER_VERBS.items() if self.may(request, verb)]
        return [
            replace(one, commands=[(str(WORKER_LABELS[word]), self.url(word, one.status.name)) for word in may])
            for one in workers
        ]

    def dump_view(self, request: HttpRequest, worker: str) -> HttpResponse:
        """Show the stacks of a worker's threads; a POST requests new ones."""
        name = _known(unquote(worker))
        if request.method == "POST":
            self._send(request, name, "dump")
            return self.back(self.url("dump", name))
        broker = connections.broker()
        dump, now_ms = broker.dump_of(name), broker.now_ms()
        context = {"taken": moment(dump[0], now_ms) if dump else None, "stacks": dump[1] if dump else ""}
        title = _("Stacks")
        return self.render(
            request,
            "worker_dump",
            f"{title}: {name}",
            {"worker": name, "now": moment(now_ms, now_ms), **context},
            trail=[(name, ""), (title, "")],
        )

    def command_view(self, request: HttpRequest, worker: str, word: str) -> HttpResponse:
        """Render the confirmation page of a command, or send it."""
        name = _known(unquote(worker))
        if request.method == "POST":
            self._send(request, name, word)
            return self.back(self.url("changelist"))
        title, meaning = map(str, _TEXTS[word])
        context = {"worker": name, "meaning": meaning, "yes": title, "back": self.url("changelist"), "harmful": True}
        return self.render(request, "worker_command", f"{title}: {name}", context, trail=[(name, ""), (title, "")])

    def _send(self, request: HttpRequest, worker: str, word: str) -> None:
        if connections.broker().tell_worker(worker, word):
            self.note(request, worker, f"worker: {word}")
            messages.success(request, str(_LATER))
        else:
            messages.warning(request, _("Nothing was sent: the worker is gone."))


def _known(worker: str) -> str:
    """Return the name of a registered worker.

    Raises:
        Http404: there is none.
    """
    if all(one["name"] != worker for one in connections.broker().workers()):
        raise Http404(f"no worker {short(worker)} is registered")
    return worker
