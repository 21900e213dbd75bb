"""Content of jobs as plain data with their secrets masked, and text search in it."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..core.codec import as_json, decode, decode_args, readable
from ..core.inputs import encodable
from ..core.job import RAW, Job, Payload, Undecodable
from ..core.task import registry
from ..core.times import iso_of
from ..masking import HIDDEN
from ..settings.conf import mask

if TYPE_CHECKING:
    from ..core.job_view import JobView
    from ..core.reading import Accepts
    from ..masking import Mask

#: depth to which stored values are shown: this package stores none deeper, foreign bytes may be
_SHOWN_DEPTH: Final = 100


def job_as_dict(view: JobView, hide: Mask, *, details: bool = False) -> dict[str, Any]:
    """Return a job as plain data, masked; ``details`` adds its options and its last error."""
    job, error = view.job, _shown_error(view, hide)
    values: dict[str, Any] = {
        "queue": job.queue,
        "state": view.state,
        "id": job.id,
        "key": job.key.hex(),
        "task": job.task,
        "due": iso_of(view.due_ms),
        "buried": iso_of(view.buried_ms),
        "created": iso_of(view.created_ms),
        **view.history,
        "outcome": view.outcome,
        "reason": hide.text(view.reason),
        "error_class": view.error_class or str(error.get("class", "")),
    }
    if job.merged and (view.payloads or not view.payload_count):
        values["payloads"] = [shown_payload(payload, hide) for payload in view.payloads]
    elif job.merged:
        values["payload_count"] = view.payload_count
    else:
        values |= shown_content(job, hide)
    if details:
        values |= {"options": shown_options(job, hide), "error": {"class": values["error_class"], **error}}
    return values


def _shown_error(view: JobView, hide: Mask) -> dict[str, Any]:
    error = hide.value(view.error)
    traceback = {"traceback": hide.traceback(str(view.error["traceback"]))} if "traceback" in error else {}
    return {**error, **traceback}


def shown_options(job: Job, hide: Mask) -> dict[str, Any]:
    """Return the options of a job; their bytes if they are no JSON."""
    try:
        return dict(hide.value(job.options))
    except (ValueError, TypeError, RecursionError):
        return raw(job.options_json, hide)


def shown_content(job: Job, hide: Mask) -> dict[str, Any]:
    """Return the arguments of a job; its bytes if they are no arguments."""
    if job.task == RAW:
        return raw(job.args, hide)
    try:
        args, kwargs = decode_args(job.args)
    except Undecodable:
        return raw(job.args, hide)
    args, kwargs = hide.arguments(plain(args), plain(kwargs), argument_names(job.task))
    return {"args": args, "kwargs": kwargs}


def shown_payload(payload: Payload, hide: Mask) -> dict[str, Any]:
    """Return a payload of a merged job with its score; its bytes if they are no value."""
    try:
        return {"payload": hide.value(plain(decode(payload.data))), "score": payload.score}
    except Undecodable:
        return {**raw(payload.data, hide), "score": payload.score}


def raw(body: bytes, hide: Mask | None = None) -> dict[str, str]:
    """Return bytes as a text if they are UTF-8, else in base64.

    Args:
        hide: mask for secrets in texts; None = do not mask, for the holder of the job.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body if hide is None else _hidden_bytes(body, hide)).decode()}
    return {"body": text if hide is None else masked_text(text, hide)}


def plain(value: Any, _depth: int = 0) -> Any:
    """Return a codec value as plain JSON: ISO 8601 moments, spans in seconds, bytes in base64, numbers unchanged.

    Never raises, whatever Redis contains.
    """
    if isinstance(value, str):
        return encodable(value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if _depth > _SHOWN_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {encodable(str(name)): plain(item, _depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, _depth + 1) for item in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return encodable(str(value) if isinstance(value, (float, Decimal, UUID)) else repr(value)[:1000])


def _hidden_bytes(body: bytes, hide: Mask) -> bytes:
    """Return the bytes with secrets masked; text in another charset may contain them, too."""
    text = body.decode("latin-1")
    hidden = hide.text(text)
    return body if hidden == text else hidden.replace(HIDDEN, "*" * len(HIDDEN)).encode("latin-1", errors="replace")


def masked_text(text: str, hide: Mask | None = None) -> str:
    """Return the text with its secrets masked, without lone surrogates."""
    hide = mask() if hide is None else hide
    return encodable(hide.text(text))  # in this order: the mask reads JSON, in which lone surrogates may be escaped


# -- stored JSON, tags included --------------------------------------------------------------------------------------


def loaded(data: bytes) -> Any:
    """Return stored JSON as it is, tags included.

    Raises:
        ValueError: it is not JSON, nor stored with the codec of this process.
    """
    try:
        return json.loads(as_json(data))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def argument_names(task: str) -> list[str]:
    """Return the names of a task's positional arguments, or none if the task is not registered here."""
    registered = registry.get(task)
    return [] if registered is None else list(registered.argument_names)


def split_call(stored: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of a stored call, tags included.

    Raises:
        ValueError: these are not arguments.
    """
    return decode_args(stored, loaded)


def call_rows(task: str, stored: bytes) -> list[tuple[str, Any]]:
    """Return name and value of each argument of a call, masked.

    Raises:
        ValueError: these are not arguments.
    """
    names = argument_names(task)
    args, kwargs = mask().arguments(*split_call(stored), names)
    numbered = [f"#{place + 1}" for place in range(len(names), len(args))]
    return [*zip([*names, *numbered], args, strict=False), *kwargs.items()]


# -- search ----------------------------------------------------------------------------------------------------------


def text_search(text: str) -> Accepts:
    """Return a case-insensitive search for a text in jobs.

    It looks only at what is visible: masked content could be guessed otherwise.

    Args:
        text: the text to find; JSON is compared without spaces (``"order":5``).
    """
    wanted = text.casefold()
    return lambda view: any(wanted in shown.casefold() for shown in _visible_texts(view, mask()))


def _visible_texts(view: JobView, hide: Mask) -> Iterator[str]:
    """Yield the texts of a job, the cheaper ones first."""
    yield from (view.id, view.job.task, view.job.worker, view.error_class, hide.text(view.reason))
    shown = [(_shown_error(view, hide), b""), *((shown_payload(one, hide), one.data) for one in view.payloads)]
    for job in filter(None, (view.job, view.gated)):
        content = {} if job.merged else shown_content(job, hide)
        shown += [(shown_options(job, hide), job.options_json), (content, job.args)]
    for value, stored in shown:
        if "body_base64" in value:
            yield hide.text(readable(stored))
        yield from (json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in value.values())
