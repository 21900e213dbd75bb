"""Endpoints of recurring tasks: list them, pause and resume their ticks, run one now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response

from ... import connections
from ...access.permissions import may_use
from ...access.problems import Problem
from ...core.errors import InvalidJob
from ...core.registry import pause_recurring
from ...core.task import registry
from ...status import RecurringStatus, read_recurring
from ...status.json_form import recurring_as_json
from ...worker.recurring import Work, resume, run_now, work_of
from ..base import ApiView
from ..describe import operation
from ..serializers.recurring import RecurringSerializer, RecurringTasksSerializer, RunOutcomeSerializer


class RecurringTasks(ApiView):
    """Route ``recurring``: list recurring tasks."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"GET": "view"}

    @operation(
        "list_recurring",
        "List the recurring tasks",
        returns=RecurringTasksSerializer,
        text="Those that the responding process has registered. Pauses of other tasks, renamed or removed since, "
        "are listed with them. Tasks of queues that the project's `allow` rule hides from the user are left out.",
    )
    def get(self, request: Request) -> Response:
        """Return the tasks."""
        tasks = [one for one in read_recurring(connections.hurried_broker()) if may_use(request, "view", one.queue)]
        return Response({"recurring": [recurring_as_json(one) for one in tasks]})


class _OneTask(ApiView):
    """Verb on the task that the address names."""

    tag = "queues"
    actions: ClassVar[Mapping[str, str]] = {"POST": "operate"}
    names_queues: ClassVar[bool] = True

    @property
    def work(self) -> Work:
        """Task in the address.

        Raises:
            Problem: it is no recurring task.
        """
        try:
            return work_of(registry, self.kwargs["task"])
        except InvalidJob as error:
            raise Problem(404, "not_found", str(error)) from None

    def named_queues(self, request: Request) -> Sequence[str]:
        """Return the queue of the task; an unknown task is of no queue."""
        known = registry.get(self.kwargs["task"])
        return ("" if known is None else known.options.queue,)

    def state(self, name: str) -> Response:
        """Return the task as a response."""
        listed = (one for one in read_recurring(connections.hurried_broker()) if one.task == name)
        return Response(recurring_as_json(next(listed, RecurringStatus(name))))


class PauseRecurring(_OneTask):
    """Route ``recurring/{task}/pause``: stop the ticks of a recurring task."""

    @operation(
        "pause_recurring",
        "Let no tick of a recurring task fire",
        returns=RecurringSerializer,
        text="Until it is resumed. A job of an earlier tick runs.",
    )
    def post(self, request: Request, task: str) -> Response:
        """Pause the task."""
        name = self.work.task.name
        pause_recurring(connections.hurried_broker(), name)
        return self.state(name)


class ResumeRecurring(_OneTask):
    """Route ``recurring/{task}/resume``: let a recurring task tick again."""

    @operation(
        "resume_recurring",
        "Let the ticks of a recurring task fire again",
        returns=RecurringSerializer,
        text="Of ticks that were missed meanwhile, the task's `missed` decides. Also ends the pause of a task that was "
        "renamed or removed.",
    )
    def post(self, request: Request, task: str) -> Response:
        """Resume the task."""
        try:
            return self.state(resume(connections.hurried_broker(), registry, task))
        except InvalidJob as error:
            raise Problem(404, "not_found", str(error)) from None


class RunRecurringNow(_OneTask):
    """Route ``recurring/{task}/run-now``: schedule a recurring task once, now."""

    @operation(
        "run_recurring_now",
        "Run a recurring task now, beside its ticks",
        returns=RunOutcomeSerializer,
        text="Also while it is paused. At most one run is active, and at most one waits.",
    )
    def post(self, request: Request, task: str) -> Response:
        """Schedule a run."""
        return Response({"outcome": str(run_now(connections.hurried_broker(), self.work))})


urlpatterns: list[URLPattern] = [
    path("recurring", RecurringTasks.as_view(), name="recurring"),
    path("recurring/<delayq_any:task>/pause", PauseRecurring.as_view(), name="recurring_pause"),
    path("recurring/<delayq_any:task>/resume", ResumeRecurring.as_view(), name="recurring_resume"),
    path("recurring/<delayq_any:task>/run-now", RunRecurringNow.as_view(), name="recurring_run_now"),
]
