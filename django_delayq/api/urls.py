"""URLs of the HTTP API: ``path("delayq/", include("django_delayq.api.urls"))``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from django.urls import URLPattern, path, register_converter
from django.urls.converters import PathConverter

from .base import ApiView
from .consuming import Consuming
from .health import Health
from .jobs import Jobs, Morgue
from .limits import JobLimits
from .operations import Deployment, NotFoundView, Recurring, Workers
from .queues import Queues

app_name: Final = "delayq"


class AnythingConverter(PathConverter):
    """Converter like ``path`` that also matches newlines: ``path`` stops at one, and the URL would match nothing."""

    regex = r"(?s:.+)"


register_converter(AnythingConverter, "delayq_any")
_Q: Final = "v1/queues/<str:queue>"
_JOB: Final = f"{_Q}/jobs/<delayq_any:id>"
#: address → view and its handlers. Ids and names of tasks and workers may contain slashes, so verbs come first
ROUTES: Final[dict[str, tuple[type[ApiView], dict[str, Any]]]] = {
    "v1/queues": (Queues, {"get": "list_queues", "post": "create_queue"}),
    _Q: (Queues, {"get": "get_queue", "patch": "limit_queue", "delete": "delete_queue"}),
    f"{_Q}/depth": (Queues, {"get": "get_depth"}),
    f"{_Q}/limits": (JobLimits, {"get": "list_limits", "put": "set_limit", "delete": "delete_limit"}),
    "v1/tasks/<delayq_any:task>/limits": (JobLimits, {"put": "set_task_limit", "delete": "delete_task_limit"}),
    f"{_Q}/pause": (Queues, {"post": "pause_queue"}),
    f"{_Q}/resume": (Queues, {"post": "resume_queue"}),
    f"{_Q}/reshard": (Queues, {"post": "reshard_queue"}),
    "v1/producers": (Queues, {"get": "get_producers"}),
    "v1/producers/pause": (Queues, {"post": "pause_producers"}),
    "v1/producers/resume": (Queues, {"post": "resume_producers"}),
    f"{_Q}/jobs": (Jobs, {"get": "list_jobs", "post": "produce_jobs"}),
    _JOB: (Jobs, {"get": "get_job", "patch": "reschedule_job", "delete": "cancel_job"}),
    f"{_Q}/cancel": (Jobs, {"post": "cancel_jobs"}),
    f"{_Q}/reschedule": (Jobs, {"post": "reschedule_jobs"}),
    f"{_Q}/run-now": (Jobs, {"post": "run_jobs_now"}),
    f"{_Q}/kill-failed": (Jobs, {"post": "kill_failed_jobs"}),
    f"{_Q}/delete-failed": (Jobs, {"post": "delete_failed_jobs"}),
    f"{_Q}/morgue": (Morgue, {"get": "list_morgue"}),
    f"{_Q}/morgue/<delayq_any:id>": (Morgue, {"get": "get_graves"}),
    f"{_Q}/kick": (Morgue, {"post": "kick_jobs"}),
    f"{_Q}/discard": (Morgue, {"post": "discard_jobs"}),
    f"{_Q}/reserve": (Consuming, {"post": "reserve"}),
    "v1/reserve": (Consuming, {"post": "reserve_from_many"}),
    f"{_Q}/ack": (Consuming, {"post": "ack"}),
    f"{_Q}/fail": (Consuming, {"post": "fail"}),
    f"{_Q}/release": (Consuming, {"post": "release"}),
    f"{_Q}/bury": (Consuming, {"post": "bury"}),
    f"{_Q}/touch": (Consuming, {"post": "touch"}),
    "v1/workers": (Workers, {"get": "list_workers"}),
    "v1/workers/<path:worker>/stop": (Workers, {"post": "stop_worker"}),
    "v1/workers/<path:worker>/drain": (Workers, {"post": "drain_worker"}),
    "v1/workers/<path:worker>/dump": (Workers, {"get": "get_dump", "post": "dump_worker"}),
    "v1/workers/<path:worker>/watch": (Workers, {"post": "watch_queue"}),
    "v1/workers/<path:worker>/ignore": (Workers, {"post": "ignore_queue"}),
    "v1/workers/<path:worker>": (Workers, {"get": "get_worker"}),
    "v1/recurring": (Recurring, {"get": "list_recurring"}),
    "v1/recurring/<delayq_any:task>/pause": (Recurring, {"post": "pause_recurring"}),
    "v1/recurring/<delayq_any:task>/resume": (Recurring, {"post": "resume_recurring"}),
    "v1/recurring/<delayq_any:task>/run-now": (Recurring, {"post": "run_recurring_now"}),
    "v1/status": (Deployment, {"get": "get_status"}),
    "v1/history/hours": (Deployment, {"get": "list_hours"}),
    "v1/history/runs": (Deployment, {"get": "list_runs"}),
    "v1/openapi.json": (Deployment, {"get": "openapi"}),
    "healthz": (Health, {"get": "healthz"}),
    "readyz": (Health, {"get": "readyz"}),
}


def _metrics() -> list[URLPattern]:
    """Return the URL for Prometheus where ``prometheus_client`` is installed."""
    if find_spec("prometheus_client") is None:
        return []
    from ..metrics.urls import metrics

    return [path("metrics", metrics, name="metrics")]


urlpatterns: Final[list[Any]] = [
    *(path(route, view.as_view(handlers)) for route, (view, handlers) in ROUTES.items()),
    *_metrics(),
    # Unknown paths get a problem response, too, behind the same authentication.
    path("", NotFoundView.as_view(), name="nothing"),
    path("<delayq_any:rest>", NotFoundView.as_view(), name="nothing"),
]
