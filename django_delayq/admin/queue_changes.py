"""Pages that create, limit, reshard and delete queues, each behind a permission of its own."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import connections
from ..core import layouts
from ..core.errors import InvalidJob, QueueNotEmpty
from ..core.inputs import short
from ..core.queue import Queue
from ..outbox.retention import forget_queue
from ..settings.conf import conf
from .queue_forms import CreateForm, DeleteForm, LimitsForm, ReshardForm
from .queue_view_model import QueueViewModel
from .redis_pages import RedisPages

#: verb that changes a queue → label of its button
CHANGES: Final = {
    "limit": gettext_lazy("Change limits…"),
    "reshard": gettext_lazy("Change shards…"),
    "delete": gettext_lazy("Delete…"),
}


class QueueChanges(RedisPages):
    """Pages that change which queues there are, and their policy."""

    def change_pages(self) -> list[URLPattern]:
        """Return the URLs of these pages."""
        views = {"limit": self.limit_view, "reshard": self.reshard_view, "delete": self.remove_view}
        methods = "GET HEAD POST"
        return [
            self.page("create/", self.create_view, "create", verb="create", methods=methods),
            *(
                self.page(f"<path:object_id>/{verb}/", view, verb, verb=verb, methods=methods)
                for verb, view in views.items()
            ),
        ]

    def offered_changes(self, request: HttpRequest, name: str) -> list[tuple[str, str, bool]]:
        """Return (label, URL, whether jobs may be lost) of the changes that the user may make."""
        may = [verb for verb in CHANGES if self.may(request, verb)]
        return [(str(CHANGES[verb]), self.url(verb, name), verb == "delete") for verb in may]

    def create_view(self, request: HttpRequest) -> HttpResponse:
        """Create a queue."""
        form = CreateForm(request.POST or None)
        if request.method != "POST" or not form.is_valid():
            context = {"form": form, "yes": _("Create the queue"), "back": self.url("changelist")}
            title = _("Create a queue")
            return self.render(request, "queue_create", title, context, trail=[(title, "")])
        name, shards = form.cleaned_data["name"], form.cleaned_data["shards"]
        _queue, is_new = connections.broker().registry.create_with(
            name, kind=form.cleaned_data["kind"], shards=shards, **form.limits
        )
        if is_new:
            self.note(request, name, f"create: {form.cleaned_data['kind']}, shards {shards}, {form.limits}")
            messages.success(request, _("The queue was created."))
        else:
            messages.warning(
                request, _("The queue was created by another request a moment ago; it keeps those properties.")
            )
        return self.back(self.url("change", name))

    def limit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change the limits of a queue, unless the settings name it."""
        queue = queue_or_404(object_id)
        configured = connections.is_configured(queue.name)
        initial = layouts.limits_in_force(queue.layout)
        form = LimitsForm(request.POST if request.method == "POST" else None, initial=initial)
        if request.method != "POST" or configured or not form.is_valid():
            more = {"form": form, "configured": configured, "yes": _("Change the limits")}
            return self.confirm(request, "queue_limit", _("Change limits"), queue, **more)
        connections.broker().limit(queue.name, **form.limits)
        self.note(request, queue.name, f"limits: {form.limits}")
        messages.success(request, _("The limits were changed."))
        return self.back(self.url("change", queue.name))

    def reshard_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change the number of shards of a queue."""
        queue = queue_or_404(object_id)
        form = ReshardForm(request.POST if request.method == "POST" else None, initial={"shards": queue.shards})
        configured = connections.configured_shards(queue.name)
        if request.method != "POST" or not form.is_valid():
            more = {"form": form, "configured": configured, "yes": _("Change the number of shards")}
            return self.confirm(request, "queue_reshard", _("Change shards"), queue, **more)
        shards = form.cleaned_data["shards"]
        try:
            connections.broker().reshard(queue.name, shards)
        except InvalidJob as error:  # it was deleted meanwhile
            messages.error(request, str(error))
            return self.back(self.url("changelist"))
        self.note(request, queue.name, f"reshard: {shards}")
        messages.success(request, _("New jobs go to the new shards. Workers empty the old ones."))
        if configured not in (None, shards):
            text = _("The settings, or a task, name %(number)d shards. Change the number there, too.")
            messages.warning(request, text % {"number": configured})
        return self.back(self.url("change", queue.name))

    def remove_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Delete a queue; one that holds jobs only if the user demands it."""
        queue = queue_or_404(object_id)
        form = DeleteForm(request.POST if request.method == "POST" else None, queue=queue.name)
        if request.method == "POST" and form.is_valid():
            force = form.cleaned_data["force"]
            try:
                connections.broker().delete_queue(queue.name, force=force)
            except QueueNotEmpty as error:
                form.add_error("force", str(error).replace("with --force (force=True)", _("by ticking this box")))
            else:
                if force:  # outbox rows would re-create it
                    forget_queue(conf().outbox.databases, queue.name)
                self.note(request, queue.name, f"delete{' with its jobs' if force else ''}")
                messages.success(request, _("The queue %s was deleted.") % queue.name)
                return self.back(self.url("changelist"))
        more = {"form": form, "yes": _("Delete the queue"), "harmful": True}
        return self.confirm(request, "queue_delete", _("Delete"), queue, **more)

    def confirm(self, request: HttpRequest, template: str, title: str, queue: Queue, **more: Any) -> HttpResponse:
        """Render a confirmation page with the current counts."""
        item = QueueViewModel.of(queue, connections.broker().inspector.counts(queue.name))
        context = {"item": item, "back": self.url("change", queue.name), **more}
        trail = [(queue.name, context["back"]), (title, "")]
        return self.render(request, template, f"{title}: {queue.name}", context, trail=trail)


def queue_or_404(object_id: str) -> Queue:
    """Return the queue named in a URL.

    Raises:
        Http404: there is none.
    """
    name = unquote(object_id)
    queue = connections.broker().known_queue(name)
    if queue is None:
        raise Http404(f"no queue {short(name)} exists")
    return queue
