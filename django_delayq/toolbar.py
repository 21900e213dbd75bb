"""Panel for django-debug-toolbar that shows the jobs a request scheduled and its calls to Redis.

Add it to the toolbar's panels::

    DEBUG_TOOLBAR_PANELS = [*debug_toolbar.settings.PANELS_DEFAULTS, "django_delayq.toolbar.JobsPanel"]

No other module imports this one, so only its users need the toolbar. While the toolbar is loaded, the verbs and the
script calls go through a wrapper that checks for a current request with this panel.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from asgiref.local import Local
from debug_toolbar.panels import Panel
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .core.errors import InvalidJob
from .core.redis.scripts import Scripts
from .outbox import row_verbs
from .scheduling import verbs
from .scheduling.verbs import JobHandle
from .transactions import in_transaction

__all__ = ["JobsPanel"]

_here: Final = str(Path(__file__).resolve().parent)
_current: Final = Local()
#: code that runs coroutines; a frame in it does not identify the caller
_ASYNC_CODE: Final = ("/django/core/handlers/", "/threading.py", "/concurrent/futures/", "/asyncio/")


class JobsPanel(Panel):
    """Panel with the jobs of the request."""

    is_async = True
    template = "django_delayq/toolbar.html"
    nav_title = _("Jobs")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._calls: list[Call] = []
        self._trips: list[tuple[str, float, bool]] = []

    @classmethod
    def ready(cls) -> None:
        """Wrap the verbs, once."""
        if not getattr(verbs, "_watched_by_toolbar", False):
            verbs._watched_by_toolbar = True  # type: ignore[attr-defined]
            _install_wrappers()

    @property
    def _stats(self) -> dict[str, Any]:
        untyped: Any = self
        stats: dict[str, Any] = untyped.get_stats()
        return stats

    @property
    def nav_subtitle(self) -> str:
        """Return the text under the panel's name in the side bar."""
        stats = self._stats
        trips = stats.get("trips", 0)
        words = ngettext("%(trips)d call of Redis in %(ms).1f ms", "%(trips)d calls of Redis in %(ms).1f ms", trips)
        return words % {"trips": trips, "ms": stats.get("ms", 0.0)} if trips else ""

    @property
    def title(self) -> str:
        """Return the title above the panel, with the number of jobs."""
        jobs: int = self._stats.get("jobs", 0)
        return str(ngettext("%d job scheduled", "%d jobs scheduled", jobs) % jobs)

    def enable_instrumentation(self) -> None:
        """Start recording the calls of this request."""
        _current.panel = self

    def disable_instrumentation(self) -> None:
        """Stop recording the calls of this request."""
        _current.panel = None

    def generate_stats(self, request: HttpRequest, response: HttpResponse) -> None:
        """Collect the values for the template. The calls that waited for a commit have their outcomes by now."""
        untyped: Any = self
        calls = [call.as_values() for call in self._calls]
        by_verb: dict[str, list[float]] = {}
        for verb, seconds, _failed in self._trips:
            by_verb.setdefault(verb, []).append(seconds)
        untyped.record_stats(
            {
                "calls": calls,
                "jobs": sum(call["jobs"] for call in calls),
                "trips": len(self._trips),
                "ms": sum(seconds for _verb, seconds, _failed in self._trips) * 1000,
                "failed_trips": sum(failed for _verb, _seconds, failed in self._trips),
                "scripts": [
                    {"name": verb, "number": len(times), "ms": sum(times) * 1000}
                    for verb, times in sorted(by_verb.items())
                ],
            }
        )

    def generate_server_timing(self, request: HttpRequest, response: HttpResponse) -> None:
        """Record the time spent in Redis for the browser's developer tools."""
        untyped: Any = self
        untyped.record_server_timing(
            "redis_time", f"Redis: {self._stats.get('trips', 0)} calls", self._stats.get("ms", 0.0)
        )

    # -- called by the wrappers ----------------------------------------------------------------------------------------

    def record_call(self, call: Call) -> None:
        """Record the call of a verb."""
        self._calls.append(call)

    def record_trip(self, verb: str, seconds: float, failed: bool) -> None:
        """Record a call to Redis."""
        self._trips.append((verb, seconds, failed))


class Call:
    """One call of a verb."""

    def __init__(self, verb: str, task: str, queue: str, ident: str, using: str | None) -> None:
        self.verb = verb
        self.task = task
        self.queue = queue
        self.id = ident
        self.where = _find_caller()
        self.in_transaction = _is_in_transaction(using)
        self.result: Any = None
        self.error = ""
        self.ms = 0.0

    def as_values(self) -> dict[str, Any]:
        """Return plain values for the template, as of the end of the request."""
        handle = self.result if isinstance(self.result, JobHandle) else None
        result = self.error or (handle.outcome if handle else self.result)
        if isinstance(result, dict):
            jobs = sum(number for outcome, number in result.items() if outcome not in ("full", "paused", "skipped"))
            outcome = ", ".join(f"{number} {word}" for word, number in result.items())
        else:
            jobs, outcome = int(handle is not None and not self.error), str(result)
        return {
            "verb": self.verb,
            "task": self.task,
            "queue": handle.queue if handle else self.queue,
            "id": handle.id if handle else self.id,
            "due": handle.due.isoformat(timespec="seconds") if handle else "",
            "durable": bool(handle and handle.durable),
            "error": f"{type(handle.error).__name__}: {handle.error}" if handle and handle.error else "",
            "outcome": outcome,
            "in_transaction": self.in_transaction,
            "where": self.where,
            "ms": self.ms,
            "jobs": jobs,
        }


def _find_caller() -> str:
    """Return the innermost line of code outside this package; "" for a coroutine, whose caller is not on the stack."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_infrastructure(frame.f_code.co_filename):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if any(part in name for part in _ASYNC_CODE) else f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_infrastructure(filename: str) -> bool:
    return filename.startswith((_here, "<")) or "/asgiref/" in filename or filename.endswith("/contextlib.py")


def _is_in_transaction(using: str | None) -> bool:
    try:
        return in_transaction(using)
    except InvalidJob:  # the verb itself reports the wrong alias
        return False


def _panel() -> JobsPanel | None:
    return getattr(_current, "panel", None)


def _recorded(act: Callable[..., Any], describe: Callable[..., Call]) -> Callable[..., Any]:
    """Return ``act``, wrapped to record the call in the request's panel."""

    @functools.wraps(act)
    def recorded(*args: Any, **named: Any) -> Any:
        panel = _panel()
        if panel is None:
            return act(*args, **named)
        with _recording(panel, describe(*args, **named)) as call:
            call.result = act(*args, **named)
        return call.result

    return recorded


@contextmanager
def _recording(panel: JobsPanel, call: Call) -> Iterator[Call]:
    panel.record_call(call)
    began_at = time.perf_counter()
    try:
        yield call
    except Exception as error:
        call.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        call.ms = (time.perf_counter() - began_at) * 1000


def _timed(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a script call, wrapped to record its duration in the request's panel."""

    @functools.wraps(act)
    def timed(self: Scripts, name: str, *args: Any, **options: Any) -> Any:
        panel, failed, began_at = _panel(), True, time.perf_counter()
        try:
            reply = act(self, name, *args, **options)
            failed = False
        finally:
            if panel is not None:
                panel.record_trip(name, time.perf_counter() - began_at, failed)
        return reply

    return timed


def _install_wrappers() -> None:
    """Install the wrappers in the places where the verbs are looked up at each call."""

    def schedule(plan: Any, arguments: Any, named: Any, options: Any) -> Call:
        return Call("schedule", plan.builder.task.name, plan.queue, "", options.get("using_db"))

    def many(plan: Any, jobs: Any, using: str | None, **options: Any) -> Call:
        return Call("schedule_many", plan.builder.task.name, plan.queue, "", using)

    def change(change: Any, using: str | None, **options: Any) -> Call:
        return Call(change.verb, _name_of(change.task), change.queue, change.id, using)

    patches: tuple[tuple[Any, str, Callable[..., Call]], ...] = (
        (verbs, "_schedule", schedule),
        (verbs, "send_many", many),
        (row_verbs, "apply", change),
    )
    for module, name, describe in patches:
        setattr(module, name, _recorded(getattr(module, name), describe))
    Scripts.call = _timed(Scripts.call)  # type: ignore[method-assign]


def _name_of(task: Any) -> str:
    return "" if task is None else str(task.name)
