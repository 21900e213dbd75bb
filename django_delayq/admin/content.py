"""Content of jobs as HTML: arguments as masked JSON, payloads, errors, tracebacks with highlighted frames.

Everything stored goes through ``format_html`` or ``format_html_join``, so none of it becomes markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..core.job import Payload
from ..settings.conf import mask
from ..status.job_content import call_rows, loaded
from .formatting import NOTHING

#: characters after which a displayed value is cut
LONGEST: Final = 20_000
#: payloads of one job that are shown
MOST_PAYLOADS: Final = 100
_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"\n]*)", line \d+, in ')
_FOREIGN: Final = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]|^<|[/\\]django_delayq[/\\]"
)


def pretty(value: Any) -> str:
    """Return a JSON-serialisable value over several lines, cut if it is very long."""
    text = json.dumps(_readable(value), ensure_ascii=False, indent=2)
    return (
        text if len(text) <= LONGEST else text[:LONGEST] + "\n" + _("… cut; %(n)d characters in all") % {"n": len(text)}
    )


def brief(value: Any) -> str:
    """Return a JSON-serialisable value in one line."""
    return json.dumps(_readable(value), ensure_ascii=False)


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
    text = data[:LONGEST].decode(errors="backslashreplace")
    return mask().text(
        "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
    )


def pre(text: str) -> SafeString:
    """Return a text in a preformatted box."""
    return format_html('<pre class="delayq-pre">{}</pre>', text)


def json_text(data: bytes) -> str:
    """Return stored JSON, masked, over several lines; other bytes as a text."""
    try:
        return pretty(mask().value(loaded(data)))
    except ValueError:
        return raw(data)


def json_pre(data: bytes) -> SafeString:
    """Return stored JSON, masked, in a preformatted box."""
    return pre(json_text(data))


def call_table(task: str, stored: bytes) -> SafeString | str:
    """Return a table of the arguments of a call, masked."""
    try:
        rows = call_rows(task, stored)
    except ValueError:
        return json_pre(stored)
    return _table((), [(label, pre(pretty(value))) for label, value in rows]) if rows else _("none")


def payload_table(payloads: Iterable[Payload], total: int) -> SafeString | str:
    """Return a table of payloads in the order of their scores, with a note if there are more."""
    rows = [(payload.score, json_pre(payload.data)) for payload in payloads]
    if not rows:
        return _("none")
    table = _table((_("score"), _("payload")), rows)
    if total <= len(rows):
        return table
    more = ngettext("and %(n)d more", "and %(n)d more", total - len(rows)) % {"n": total - len(rows)}
    return format_html('{}<p class="delayq-note">{}</p>', table, more)


def mapping_table(values: Mapping[str, Any]) -> SafeString:
    """Return a table of names and values."""
    return _table(
        (), [(name, value if isinstance(value, SafeString) else pre(pretty(value))) for name, value in values.items()]
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, object]]) -> SafeString:
    top = format_html("<thead><tr>{}</tr></thead>", format_html_join("", "<th>{}</th>", ((word,) for word in head)))
    body = format_html_join("", "<tr><th>{}</th><td>{}</td></tr>", rows)
    return format_html('<table class="delayq-table">{}<tbody>{}</tbody></table>', top if head else "", body)


# --- errors


def message_pre(text: str) -> SafeString | str:
    """Return the whole message of an error, masked, in a preformatted box."""
    return pre(mask().text(text)) if text else NOTHING


def error_line(kind: str, message: str, *, most: int = 90) -> SafeString | str:
    """Return the class of an error and the first line of its message; the title has more of it."""
    if not kind and not message:
        return NOTHING
    message = mask().text(message)
    first = message.strip().split("\n", 1)[0]
    short = first if len(first) <= most else f"{first[: most - 1]}…"
    name = kind.rpartition(".")[2] or kind
    return format_html(
        '<span class="delayq-error" title="{}"><b>{}</b> {}</span>',
        f"{kind}: {message}" if kind else message,
        name,
        short,
    )


def project_frame(line: str) -> bool | None:
    """Return True if the line opens a traceback frame of the project, False for a library's; None for other lines."""
    frame = _FRAME.match(line)
    return None if frame is None else _FOREIGN.search(frame["file"]) is None


def traceback_html(text: str) -> SafeString | str:
    """Return a traceback with the frames of the project highlighted."""
    if not text:
        return NOTHING
    spans: list[tuple[str, str]] = []
    kind = "message"
    for line in mask().traceback(text.rstrip()).split("\n"):
        own = project_frame(line)
        if own is not None:
            kind = "own" if own else "foreign"
        elif not line.startswith("    "):
            kind = "message"
        spans.append((kind, line))
    return format_html(
        '<pre class="delayq-pre delayq-traceback">{}</pre>',
        format_html_join("\n", '<span class="delayq-{}">{}</span>', spans),
    )
