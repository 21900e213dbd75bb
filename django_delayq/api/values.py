"""JSON forms of moments, spans and jobs, with secrets masked."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from ..core import codec
from ..core.job import RAW, Job, Payload, Undecodable
from ..core.operations.views import JobView
from ..core.task import registry
from ..masking import HIDDEN, Mask
from ..settings.conf import mask

#: maximum number of payloads of one job that are shown
MOST_PAYLOADS: Final = 50
#: maximum bytes of arguments that a list shows; larger ones are left out
MOST_BYTES: Final = 10_000
#: depth to which stored values are shown: this package stores none deeper, foreign bytes may be
_DEEPEST: Final = 100


def moment(ms: float | None) -> str | None:
    """Return a moment (Unix ms) as ``2026-11-21T11:23:43.123Z``; None for None and for moments out of range."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def seconds(ms: float) -> float:
    """Return a span (ms) in seconds."""
    return round(ms / 1000, 3)


def job(view: JobView, payloads: Iterable[Payload] | None = None) -> dict[str, Any]:
    """Return a job with secrets masked.

    Args:
        view: the job.
        payloads: those of a merged job; None = only their number is included.
    """
    held, history, hide = view.job, view.history, mask()
    shown: dict[str, Any] = {
        "queue": held.queue,
        "id": view.id,
        "key": held.key.hex(),
        "task": held.task,
        "state": view.state,
        "due": moment(view.due_ms),
        "priority": held.priority,
        "merged": held.merged,
        **{name: history[name] for name in ("failures", "reserves", "crashes", "releases")},
        "quarantined": view.quarantined,
        "context": hide.value(plain(held.context)),
        "size": view.size,
        "cut": view.cut,
        "gated_due": moment(view.gated_due_ms),
        "worker": held.worker or None if view.state == "reserved" else None,
        "lease_ends": moment(view.deadline_ms),
        "buried": moment(view.buried_ms),
        "reason": _hidden(view.reason, hide),
        "outcome": view.outcome,
        "error": _error(view, hide),
    }
    if held.merged:
        shown["payload_count"] = view.payload_count
        if payloads is not None:
            shown["payloads"] = [_payload(payload, hide) for payload, _ in zip(payloads, range(MOST_PAYLOADS))]  # noqa: B905
    elif not view.cut:
        shown |= _content(held, hide)
    return shown


def _error(view: JobView, hide: Mask) -> dict[str, str] | None:
    known = view.error
    name = str(known.get("class") or view.error_class or "")
    if not (known or name):
        return None
    return {
        "class": _text(name),
        "message": _hidden(str(known.get("message") or ""), hide),
        "traceback": _text(hide.traceback(str(known.get("traceback") or ""))),
    }


def _payload(payload: Payload, hide: Mask) -> dict[str, Any]:
    try:
        return {"payload": hide.value(plain(codec.decode(payload.data))), "score": payload.score}
    except Undecodable:
        return {**raw(payload.data, hide), "score": payload.score}


def _content(held: Job, hide: Mask) -> dict[str, Any]:
    if held.task == RAW:
        return raw(held.args, hide)
    try:
        args, kwargs = codec.decode_args(held.args)
    except Undecodable:
        return raw(held.args, hide)
    known = registry.get(held.task)
    args, kwargs = hide.arguments(plain(args), plain(kwargs), () if known is None else known.argument_names)
    return {"args": args, "kwargs": kwargs}


def raw(body: bytes, hide: Mask | None = None) -> dict[str, str]:
    """Return bytes as a text if they are UTF-8, else in base64.

    Args:
        hide: mask for secrets in texts; None = do not mask, for the holder of the job.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body if hide is None else _hidden_bytes(body, hide)).decode()}
    return {"body": text if hide is None else _hidden(text, hide)}


def plain(value: Any, _depth: int = 0) -> Any:
    """Return a codec value as plain JSON: ISO 8601 moments, spans in seconds, bytes in base64, numbers unchanged.

    Never raises, whatever Redis contains.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if _depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {_text(str(name)): plain(item, _depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, _depth + 1) for item in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    return _text(repr(value)[:1000])


def _hidden_bytes(body: bytes, hide: Mask) -> bytes:
    """Return the bytes with secrets masked; text in another charset may contain them, too."""
    text = body.decode("latin-1")
    hidden = hide.text(text)
    return body if hidden == text else hidden.replace(HIDDEN, "*" * len(HIDDEN)).encode("latin-1", errors="replace")


def _hidden(text: str, hide: Mask) -> str:
    return _text(hide.text(text))  # in this order: the mask reads JSON, in which lone surrogates may be escaped


def _text(text: str) -> str:
    """Return the text without lone surrogates, which a response cannot contain."""
    return text if text.isascii() else text.encode(errors="replace").decode()
