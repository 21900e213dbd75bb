"""Content of jobs as plain data with their secrets masked, and text search in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.codec import as_json, decode, decode_args, readable
from ..core.task import registry
from ..core.times import iso_of
from ..settings.conf import mask

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.job_view import JobView
    from ..masking import Mask


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
        values["payloads"] = [_payload(payload.data, hide) for payload in view.payloads]
    elif job.merged:
        values["payload_count"] = view.payload_count
    else:
        values |= _call(job, hide)
    if details:
        values |= {"options": hide.value(job.options), "error": {"class": values["error_class"], **error}}
    return values


def _call(job: Job, hide: Mask) -> dict[str, Any]:
    """Return ``args`` and ``kwargs`` of a job as JSON values, masked; for undecodable ones ``bytes`` and the reason."""
    try:
        args, kwargs = _plain(decode_args(job.args))
    except Exception as error:  # stored bytes may be anything, and the operator needs to see them anyway
        return {"bytes": _bytes_text(job.args, hide), "undecodable": str(error)}
    args, kwargs = hide.arguments(args, kwargs, argument_names(job.task))
    return {"args": args, "kwargs": kwargs}


def _payload(stored: bytes, hide: Mask) -> Any:
    """Return a payload of a merged job as a JSON value, masked."""
    try:
        return hide.value(_plain(decode(stored)))
    except Exception:  # as above
        return _bytes_text(stored, hide)


def _plain(value: Any) -> Any:
    """Return the value with times, numbers and project types as strings, which can be masked."""
    return json.loads(json.dumps(value, default=str))


def _bytes_text(stored: bytes, hide: Mask) -> str:
    return hide.text(stored[:2000].decode(errors="backslashreplace"))


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
        return any(map(self._is_in, plain)) or any(map(self._is_in, self._masked(view)))

    def _is_in(self, text: str) -> bool:
        return self._text in text.casefold()

    def _masked(self, view: JobView) -> Iterator[str]:
        """Yield the stored values that contain the text, masked; values without it skip the costly mask."""
        hide = mask()
        for job in filter(None, (view.job, view.gated)):
            if self._is_in(readable(job.args)):
                yield _call_text(job)
            if self._is_in(readable(job.options_json)):
                yield _json_text(job.options_json)
        for payload in view.payloads:
            if self._is_in(readable(payload.data)):
                yield _json_text(payload.data)
        if self._is_in(view.reason):
            yield hide.text(view.reason)
        error = dict(view.error)
        traceback = str(error.pop("traceback", ""))
        if self._is_in(traceback):
            yield hide.traceback(traceback)
        if self._is_in(_dump(error)):
            yield _dump(hide.value(error))


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
