"""Texts of a job, rendered once for every page: state, moments, arguments, errors, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext, pgettext

from ..core.job import POSTPONED, STARTED, STOPPING, Payload
from ..core.job_view import JobView
from ..core.task import registry
from ..settings.conf import conf, mask
from ..status.formatting import NOTHING, duration
from ..status.job_content import call_rows, loaded
from .formatting import When, grouped, moment

#: bytes of arguments that a list reads of a job; of longer ones only the length is shown
MOST_BYTES: Final = 10_000
#: characters after which a displayed value is cut
_LONGEST: Final = 20_000
#: characters of the arguments that a list shows
_LINE: Final = 100

#: names and texts, for the template of arguments
Rows = list[tuple[str, str]]


class JobText:
    """Texts of one job for the templates, as of ``now_ms`` on Redis's clock."""

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
        return state_name(self.view.state)

    @cached_property
    def when(self) -> dict[str, When | None]:
        """Moments by name. That of the reserve is in the fencing token, unless many were issued at once."""
        view, job = self.view, self.job
        moments = {
            "due": view.due_ms,
            "gated": view.gated_due_ms,
            "created": view.created_ms,
            "since": job.token / 1000 if view.state == "reserved" else None,
            "postponed": job.postponed_at_ms if job.flags & POSTPONED else None,
            "lease": view.deadline_ms,
            "buried": view.buried_ms,
            "failed": job.failed_at_ms or None,
        }
        return {name: moment(ms, self.now_ms) for name, ms in moments.items()}

    @property
    def overdue(self) -> str:
        """Overdue time of a ready job beyond ``ADMIN["late_after"]``; else ""."""
        seconds = (self.now_ms - self.view.due_ms) / 1000
        return duration(seconds) if self.view.state == "ready" and seconds > conf().admin.late_after else ""

    @property
    def started(self) -> bool:
        """True if the handler has started, as of the worker's last heartbeat."""
        return bool(self.job.flags & STARTED)

    @property
    def stopping(self) -> bool:
        """True if it was cancelled while running."""
        return bool(self.job.flags & STOPPING)

    @property
    def lease(self) -> tuple[str, str]:
        """Seconds that a lease lasts when nothing renews it, and those that are left, for the bar."""
        return f"{self.lease_ms / 1000:g}", f"{max(0.0, (self.view.deadline_ms or 0) - self.now_ms) / 1000:.1f}"

    @property
    def postponed_for(self) -> str:
        """Reason why the attempt cannot start."""
        return mask().text(self.job.postponed_for)

    @property
    def reason(self) -> str:
        """Reason for the burial."""
        return mask().text(self.view.reason) or self.view.outcome

    @property
    def known(self) -> bool:
        """True if this process has registered the task."""
        return registry.get(self.job.task) is not None

    # -- its last error ----------------------------------------------------------------------------------------------

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
        return mask().traceback(str(self.view.error.get("traceback") or "").rstrip())

    @property
    def error_rest(self) -> Rows:
        """Further data that the project stores with an error."""
        known = ("class", "message", "traceback")
        return _rows({name: value for name, value in self.view.error.items() if name not in known})

    # -- what is in it -----------------------------------------------------------------------------------------------

    @cached_property
    def arguments(self) -> tuple[Rows, str]:
        """Arguments; and why the stored bytes, which then are the only one, cannot be decoded."""
        return ([], "") if self.job.merged else arguments_of(self.job.task, self.job.args)

    @cached_property
    def gated(self) -> Rows | None:
        """Arguments that replace the present ones after the running attempt."""
        gated = None if self.job.merged else self.view.gated
        return None if gated is None else arguments_of(gated.task, gated.args)[0]

    @cached_property
    def _options(self) -> dict[str, Any]:
        try:
            options = self.job.options
        except (ValueError, RecursionError):
            options = None
        return options if isinstance(options, dict) else {"": raw(self.job.options_json)}

    @property
    def options(self) -> Rows:
        """Job's own options; of what is no JSON the text."""
        options = {name: value for name, value in self._options.items() if name != "context"}
        expires = moment(options.pop("expires_ms"), self.now_ms) if _is_number(options.get("expires_ms")) else None
        return [*_rows(options), *([("expires", expires.full)] if expires else [])]

    @property
    def context(self) -> Rows:
        """Context of the job."""
        context = self._options.get("context")
        return _rows(context) if isinstance(context, dict) else []

    @property
    def summary(self) -> str:
        """Arguments in one line."""
        if self.job.merged:
            number = self.view.payload_count
            return ngettext("%(n)s payload", "%(n)s payloads", number) % {"n": grouped(number)}
        if self.view.cut or self.view.size > MOST_BYTES:
            return filesizeformat(self.view.size)
        try:
            rows = call_rows(self.job.task, self.job.args)
            text = ", ".join(f"{name}={json.dumps(_readable(value), ensure_ascii=False)}" for name, value in rows)
        except ValueError:
            text = " ".join(json_text(self.job.args).split())
        return text if len(text) <= _LINE else f"{text[:_LINE]}…"


def state_name(state: str) -> str:
    """Return the display name of the state of a job."""
    return {
        "delayed": pgettext("state of a job", "delayed"),
        "ready": pgettext("state of a job", "ready"),
        "reserved": pgettext("state of a job", "reserved"),
        "morgue": pgettext("state of a job", "in the morgue"),
    }.get(state, state)


def arguments_of(task: str, stored: bytes) -> tuple[Rows, str]:
    """Return the arguments of a call; and why the stored bytes, which then are the only one, cannot be decoded."""
    try:
        return [(name, pretty(value)) for name, value in call_rows(task, stored)], ""
    except ValueError:
        text = _("This content does not have the format of task arguments, so it is shown as stored.")
        return [("", json_text(stored))], text


def _rows(values: Mapping[str, Any]) -> Rows:
    return [(name, pretty(value)) for name, value in mask().value(values).items()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- values ------------------------------------------------------------------------------------------------------------


def pretty(value: Any) -> str:
    """Return a JSON-serialisable value over several lines, cut if it is very long."""
    text = json.dumps(_readable(value), ensure_ascii=False, indent=2)
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST] + "\n" + _("… cut; %(n)d characters in all") % {"n": len(text)}


def _readable(value: Any) -> Any:
    """Return the value with the codec's type tags removed where they do not help a reader."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, inner),) = value.items()
            if key in ("$dt", "$d", "$t", "$dec", "$uuid"):
                return inner
            if key == "$td" and isinstance(inner, int) and abs(inner) < 10**17:
                return str(timedelta(microseconds=inner))
        return {key: _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value


def raw(data: bytes) -> str:
    """Return bytes that are not JSON as masked text, unprintable characters escaped."""
    text = data[:_LONGEST].decode(errors="backslashreplace")
    return mask().text(
        "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
    )


def json_text(data: bytes) -> str:
    """Return stored JSON, masked, over several lines; other bytes as a text."""
    try:
        return pretty(mask().value(loaded(data)))
    except ValueError:
        return raw(data)


def payload_rows(payloads: Iterable[Payload]) -> Rows:
    """Return score and content of each payload."""
    return [(payload.score, json_text(payload.data)) for payload in payloads]


# -- as HTML, for fields of tables -------------------------------------------------------------------------------------


def pre(text: str) -> SafeString | str:
    """Return a text, masked, in a preformatted box."""
    return format_html('<pre class="delayq-pre">{}</pre>', mask().text(text)) if text else NOTHING


def table(rows: Rows) -> SafeString | str:
    """Return names and texts as a table."""
    if not rows:
        return NOTHING
    body = format_html_join("", '<tr><th>{}</th><td><pre class="delayq-pre">{}</pre></td></tr>', rows)
    return format_html('<table class="delayq-table"><tbody>{}</tbody></table>', body)


def details(value: Any) -> SafeString | str:
    """Return a mapping, or other data, as a table; secrets masked."""
    if isinstance(value, dict):
        return table(_rows(value))
    return pre(pretty(mask().value(value))) if value else NOTHING


def error_line(kind: str, message: str, *, most: int = 90) -> SafeString | str:
    """Return the class of an error and the first line of its message; the title has more of it."""
    if not kind and not message:
        return NOTHING
    message = mask().text(message)
    first = message.strip().split("\n", 1)[0]
    short = first if len(first) <= most else f"{first[: most - 1]}…"
    return format_html(
        '<span class="delayq-error" title="{}"><b>{}</b> {}</span>',
        f"{kind}: {message}" if kind else message,
        kind.rpartition(".")[2] or kind,
        short,
    )
