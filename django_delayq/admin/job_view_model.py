"""View model of a job for the pages over Redis: texts with secrets masked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..core.job import POSTPONED, STARTED, STOPPING, Job
from ..core.job_view import JobView
from ..core.task import registry
from ..settings.conf import conf, mask
from ..status.job_content import call_rows
from . import content, formatting
from .browse import MOST_BYTES
from .formatting import When, duration, moment

#: characters of the arguments that a list shows
_LINE: Final = 100


def state_word(state: str) -> str:
    """Return the display name of a state."""
    return {
        "delayed": pgettext("state of a job", "delayed"),
        "ready": pgettext("state of a job", "ready"),
        "reserved": pgettext("state of a job", "reserved"),
        "morgue": pgettext("state of a job", "in the morgue"),
    }.get(state, state)


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument, option or context entry; secrets in ``text`` are masked."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a job."""

    arguments: list[Argument] = field(default_factory=list)
    options: list[Argument] = field(default_factory=list)
    context: list[Argument] = field(default_factory=list)
    #: why the stored bytes cannot be decoded; then they are the only argument
    damage: str = ""


class JobViewModel:
    """View model of one job for the templates. ``now_ms`` is Redis's time of the snapshot."""

    def __init__(self, view: JobView, now_ms: float, lease_ms: float) -> None:
        self.view = view
        self.job = view.job
        self.now_ms = now_ms
        self.lease_ms = lease_ms

    # -- where it is -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Queue and id, which form the URL of its page."""
        return f"{self.job.queue}/{self.view.id}"

    @property
    def key(self) -> str:
        """Key of the generation, queue and id: the value of its checkbox."""
        return f"{self.job.key.hex()}:{self.name}"

    @property
    def state(self) -> str:
        """Display name of the state."""
        return state_word(self.view.state)

    @property
    def due(self) -> When | None:
        """Due time."""
        return moment(self.view.due_ms, self.now_ms)

    @property
    def late(self) -> bool:
        """True if it is ready and overdue by more than the configured ``late_after``."""
        overdue = self.now_ms - self.view.due_ms
        return self.view.state == "ready" and overdue > conf().admin.late_after * 1000

    @property
    def gated(self) -> When | None:
        """Due time of the content that is gated behind the running attempt."""
        return moment(self.view.gated_due_ms, self.now_ms)

    @property
    def created(self) -> When | None:
        """Time at which the job was scheduled, if its key has it."""
        return None if self.view.created_ms is None else moment(self.view.created_ms, self.now_ms)

    @property
    def since(self) -> When | None:
        """Time of the reserve: the fencing token is a timestamp in µs, unless many were issued at once."""
        return moment(self.job.token / 1000, self.now_ms) if self.view.state == "reserved" else None

    @property
    def started(self) -> bool:
        """True if the handler has started, as of the worker's last heartbeat."""
        return bool(self.job.flags & STARTED)

    @property
    def stopping(self) -> bool:
        """True if it was cancelled while running."""
        return bool(self.job.flags & STOPPING)

    @property
    def postponed(self) -> When | None:
        """Time since which workers release it because the attempt cannot start; see :attr:`postponed_for`."""
        return moment(self.job.postponed_at_ms, self.now_ms) if self.job.flags & POSTPONED else None

    @property
    def postponed_for(self) -> str:
        """Reason why the attempt cannot start."""
        return mask().text(self.job.postponed_for)

    @property
    def quarantine(self) -> str:
        """Reason why it does not run beside other jobs; empty if it may."""
        if not self.view.quarantined:
            return ""
        if self.view.state == "reserved":
            return _("It runs alone in a process, because its last process died while running it.")
        return _(
            "It waits to run alone in a process, because its last process died while running it. See its last error."
        )

    @property
    def parked(self) -> str:
        """Limit behind which it waits; empty if it does not."""
        if not self.job.parked:
            return ""
        return _(
            "It is due, and waits for a free permit of %(task)s: as many of its jobs as its limit allows are running."
        ) % {"task": self.job.task}

    @property
    def lease(self) -> When | None:
        """End of the lease, unless the worker renews it."""
        return moment(self.view.deadline_ms, self.now_ms)

    @property
    def lease_left(self) -> str:
        """Remaining seconds of the lease, for the bar."""
        return f"{max(0.0, (self.view.deadline_ms or 0) - self.now_ms) / 1000:.1f}"

    @property
    def lease_whole(self) -> str:
        """Seconds that a lease lasts when nothing renews it."""
        return f"{self.lease_ms / 1000:g}"

    @property
    def buried(self) -> When | None:
        """Time at which it was buried."""
        return moment(self.view.buried_ms, self.now_ms)

    @property
    def reason(self) -> str:
        """Reason for the burial."""
        return mask().text(self.view.reason)

    @property
    def failed(self) -> When | None:
        """Time of the last failure."""
        return moment(self.job.failed_at_ms, self.now_ms) if self.job.failed_at_ms else None

    @property
    def overdue(self) -> str:
        """Overdue time as text."""
        return duration((self.now_ms - self.view.due_ms) / 1000)

    @property
    def known(self) -> bool:
        """True if this process has registered the task."""
        return registry.get(self.job.task) is not None

    # -- what is in it -----------------------------------------------------------------------------------------------

    @property
    def error_class(self) -> str:
        """Class of the last error."""
        return str(self.view.error.get("class") or self.view.error_class or "")

    @property
    def error_message(self) -> str:
        """Message of the last error."""
        return mask().text(str(self.view.error.get("message") or ""))

    @property
    def error_line(self) -> str:
        """Last error in one line."""
        first = next(iter(self.error_message.splitlines()), "")
        return ": ".join(filter(None, (self.error_class, first)))

    @property
    def traceback(self) -> str:
        """Traceback of the last error."""
        return mask().traceback(str(self.view.error.get("traceback") or ""))

    @property
    def error_rest(self) -> list[Argument]:
        """Further data that the project stores with an error."""
        rest = {name: value for name, value in self.view.error.items() if name not in ("class", "message", "traceback")}
        return _arguments(rest)

    @cached_property
    def content(self) -> Content:
        """Current content."""
        return self.content_of(self.job)

    @cached_property
    def gated_content(self) -> Content | None:
        """Content that replaces the current one after the running attempt."""
        return None if self.view.gated is None else self.content_of(self.view.gated)

    def content_of(self, job: Job) -> Content:
        """Return arguments, options and context of a generation."""
        try:
            options = job.options
            if not isinstance(options, dict):
                raise ValueError(options)
        except (ValueError, RecursionError):
            return Content(self._arguments_of(job)[0], [Argument("", content.raw(job.options_json))])
        context = options.pop("context", {})
        arguments, damage = self._arguments_of(job)
        return Content(arguments, _arguments(options), _arguments(context) if isinstance(context, dict) else [], damage)

    def _arguments_of(self, job: Job) -> tuple[list[Argument], str]:
        if job.merged:
            return [], ""
        try:
            rows = call_rows(job.task, job.args)
        except ValueError:
            text = _("This content does not have the format of task arguments, so it is shown as stored.")
            return [Argument("", content.json_text(job.args))], text
        return [Argument(name, content.pretty(value)) for name, value in rows], ""

    @property
    def history(self) -> Mapping[str, int]:
        """Counters of this generation so far."""
        return self.view.history

    @property
    def summary(self) -> str:
        """Arguments in one line."""
        if self.job.merged:
            number = self.view.payload_count
            return ngettext("%(n)s payload", "%(n)s payloads", number) % {"n": formatting.grouped(number)}
        if self.view.cut or self.view.size > MOST_BYTES:
            return formatting.size(self.view.size)
        stored = self.job.args
        try:
            text = ", ".join(f"{name}={content.brief(value)}" for name, value in call_rows(self.job.task, stored))
        except ValueError:
            text = " ".join(content.json_text(stored).split())
        return text if len(text) <= _LINE else f"{text[:_LINE]}…"


def _arguments(values: Mapping[str, Any]) -> list[Argument]:
    return [Argument(name, content.pretty(value)) for name, value in mask().value(values).items()]
