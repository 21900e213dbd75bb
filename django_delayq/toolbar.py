"""Panel for django-debug-toolbar that lists the jobs that a request scheduled.

Add it to the toolbar's panels, and its middleware to ours::

    DEBUG_TOOLBAR_PANELS = [*debug_toolbar.settings.PANELS_DEFAULTS, "django_delayq.toolbar.JobsPanel"]
    DELAYQ = {"SCHEDULE_MIDDLEWARE": ["django_delayq.toolbar.watch"]}

No other module imports this one, so only its users need the toolbar.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asgiref.local import Local
from debug_toolbar.panels import Panel
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _, ngettext

from .transactions import in_transaction

if TYPE_CHECKING:
    from .scheduling.build import Chain, Scheduling

__all__ = ["JobsPanel", "watch"]

_here: Final = str(Path(__file__).resolve().parent)
_current: Final = Local()
#: code that runs coroutines; a frame in it does not identify the caller
_ASYNC_CODE: Final = ("/django/core/handlers/", "/threading.py", "/concurrent/futures/", "/asyncio/")


def watch(following: Chain) -> Chain:
    """Return a schedule middleware that records each job in the panel of its request."""

    def call(scheduling: Scheduling) -> Any:
        calls = getattr(_current, "calls", None)
        if calls is None:
            return following(scheduling)
        entry: dict[str, Any] = {"task": scheduling.task.name, "where": _find_caller(), "handle": None, "error": ""}
        entry["in_transaction"] = in_transaction(scheduling.options.get("using_db"))
        calls.append(entry)
        began_at = time.perf_counter()
        try:
            entry["handle"] = following(scheduling)
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            entry["ms"] = (time.perf_counter() - began_at) * 1000
        return entry["handle"]

    return call


class JobsPanel(Panel):
    """Panel with the jobs of the request."""

    is_async = True
    template = "django_delayq/toolbar.html"
    nav_title = _("Jobs")
    calls: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """Return the title above the panel, with the number of jobs."""
        untyped: Any = self
        jobs: int = untyped.get_stats().get("jobs", 0)
        return str(ngettext("%d job scheduled", "%d jobs scheduled", jobs) % jobs)

    def enable_instrumentation(self) -> None:
        """Start recording the jobs of this request."""
        self.calls = _current.calls = []

    def disable_instrumentation(self) -> None:
        """Stop recording."""
        _current.calls = None

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        """Collect the values for the template. The calls that waited for a commit have their outcomes by now."""
        untyped: Any = self
        calls = [{name: value for name, value in one.items() if name != "handle"} | _fate(one) for one in self.calls]
        untyped.record_stats({"calls": calls, "jobs": sum(not call["error"] for call in calls)})


def _fate(call: dict[str, Any]) -> dict[str, Any]:
    """Return what became of a job, as of the end of the request."""
    handle = call["handle"]
    if handle is None:
        return {"outcome": call["error"]}
    failure = f"{type(handle.error).__name__}: {handle.error}" if handle.error else ""
    due = handle.due.isoformat(timespec="seconds")
    names = {"id": handle.id, "queue": handle.queue, "durable": handle.durable}
    return {**names, "due": due, "outcome": failure or handle.outcome}


def _find_caller() -> str:
    """Return the innermost line of code outside this package; "" for a coroutine, whose caller is not on the stack."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_infrastructure(frame.f_code.co_filename):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if any(part in name for part in _ASYNC_CODE) else f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_infrastructure(filename: str) -> bool:
    return filename.startswith((_here, "<")) or "/asgiref/" in filename or filename.endswith("/contextlib.py")
