"""Content of jobs as plain data with their secrets masked, and text search in it."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ..core.codec import as_json, decode, decode_args, readable
from ..core.job import RAW, Job, Payload, Undecodable
from ..core.task import registry
from ..core.times import iso_of
from ..masking import HIDDEN
from ..settings.conf import mask

if TYPE_CHECKING:
    from ..core.job_view import JobView
    from ..masking import Mask

#: depth to which stored values are shown: this package stores none deeper, foreign bytes may be
_SHOWN_DEPTH: Final = 100


def job_as_dict(view: JobView, hide: Mask, *, details: bool = False) -> dict[str, Any]:
    """Return a job as plain data, masked; ``details`` adds its options and its last error."""
    job, error = view.job, hide.value(view.error)
    if "traceback" in error:
        error["traceback"] = hide.traceback(str(view.error["traceback"]))
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
        values |= {"options": hide.value(job.options), "error": {"class": values["error_class"], **error}}
    return values


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
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if _depth > _SHOWN_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {clean_text(str(name)): plain(item, _depth + 1) for name, item in value.items()}
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
    return clean_text(repr(value)[:1000])


def _hidden_bytes(body: bytes, hide: Mask) -> bytes:
    """Return the bytes with secrets masked; text in another charset may contain them, too."""
    text = body.decode("latin-1")
    hidden = hide.text(text)
    return body if hidden == text else hidden.replace(HIDDEN, "*" * len(HIDDEN)).encode("latin-1", errors="replace")


def masked_text(text: str, hide: Mask | None = None) -> str:
    """Return the text with its secrets masked, without lone surrogates."""
    hide = mask() if hide is None else hide
    return clean_text(hide.text(text))  # in this order: the mask reads JSON, in which lone surrogates may be escaped


def clean_text(text: str) -> str:
    """Return the text without lone surrogates, which a response cannot contain."""
    return text if text.isascii() else text.encode(errors="replace").decode()


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
    args, kwargs = split_call(stored)
    names = argument_names(task)
    masked_args, masked_kwargs = mask().arguments(args, kwargs, names)
    labels = [names[place] if place < len(names) else f"#{place + 1}" for place in range(len(args))]
    return [*zip(labels, masked_args, strict=True), *masked_kwargs.items()]


# -- search ----------------------------------------------------------------------------------------------------------


class TextSearch:
    """Case-insensitive search predicate for jobs.

    It looks only at what is visible: masked content could be guessed otherwise.

    Args:
        text: the text to find; stored JSON is written without spaces (``"order":5``).
    """

    def __init__(self, text: str) -> None:
        self._text = text.casefold()

    def __call__(self, view: JobView) -> bool:
        plain = (view.id, view.job.task, view.job.worker, view.error_class)
        return any(map(self._is_in, plain)) or any(
            self._is_in(stored) and self._is_in(masked()) for stored, masked in _texts_of(view)
        )

    def _is_in(self, text: str) -> bool:
        return self._text in text.casefold()


def _texts_of(view: JobView) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the stored texts of a job, each with a function for its masked form, because masking is costly."""
    hide, error = mask(), dict(view.error)
    traceback = str(error.pop("traceback", ""))
    values = [payload.data for payload in view.payloads]
    for job in filter(None, (view.job, view.gated)):
        yield readable(job.args), partial(_call_text, job)
        values.append(job.options_json)
    yield from ((readable(value), partial(_json_text, value)) for value in values)
    yield view.reason, partial(hide.text, view.reason)
    yield traceback, partial(hide.traceback, traceback)
    yield _dump(error), lambda: _dump(hide.value(error))


def _call_text(job: Job) -> str:
    if job.merged:
        return ""
    try:
        return _dump(dict(call_rows(job.task, job.args)))
    except ValueError:
        return _json_text(job.args)


def _json_text(data: bytes) -> str:
    try:
        return _dump(mask().value(loaded(data)))
    except ValueError:
        return mask().text(readable(data))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
