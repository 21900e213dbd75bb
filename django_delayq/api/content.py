"""JSON forms of jobs' contents: masked for people and programs that look, complete for the holder of a job."""

from __future__ import annotations

import json
import logging
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final, NoReturn
from uuid import UUID

from ..core import codec
from ..core.errors import DelayQError
from ..core.job import RAW, Job, Payload, Undecodable, created_ms
from ..core.job_view import JobView
from ..core.task import registry
from ..core.times import iso_of
from ..masking import HIDDEN, Mask
from ..pull.held import HeldJob
from ..settings.conf import mask
from .parsing import is_deeper
from .settle import lease_of

logger: Final = logging.getLogger("django_delayq.api")

#: depth to which stored values are shown: this package stores none deeper, foreign bytes may be
_SHOWN_DEPTH: Final = 100
#: maximum number of payloads of one job that are shown
MOST_PAYLOADS: Final = 50
#: deeper than anything this package stores, and shallow enough for any JSON parser
_HELD_DEPTH: Final = 200


# -- texts and values -------------------------------------------------------------------------------------------------


def number_of(text: str) -> float | None:
    """Return the number in a query value, where every value is a text; None for anything else."""
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def count_of(text: str) -> int | None:
    """Return the whole number, 0 or more, in a query value; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


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


# -- for readers ------------------------------------------------------------------------------------------------------


def listed_content(view: JobView) -> dict[str, Any]:
    """Return the content of a job in a list: nothing if it is large, of a merged job the number of its payloads."""
    if view.job.merged:
        return payloads_of(view, None)
    return {} if view.cut else shown_content(view.job)


def payloads_of(view: JobView, payloads: Iterable[Payload] | None) -> dict[str, Any]:
    """Return the number of payloads of a merged job, and the first ones of those that are given."""
    rendered: dict[str, Any] = {"payload_count": view.payload_count}
    if payloads is not None:
        hide = mask()
        rendered["payloads"] = [_payload(payload, hide) for payload in islice(payloads, MOST_PAYLOADS)]
    return rendered


def _payload(payload: Payload, hide: Mask) -> dict[str, Any]:
    try:
        return {"payload": hide.value(plain(codec.decode(payload.data))), "score": payload.score}
    except Undecodable:
        return {**raw(payload.data, hide), "score": payload.score}


def shown_content(job: Job) -> dict[str, Any]:
    """Return the arguments of a job; its bytes if they are no arguments."""
    hide = mask()
    if job.task == RAW:
        return raw(job.args, hide)
    try:
        args, kwargs = codec.decode_args(job.args)
    except Undecodable:
        return raw(job.args, hide)
    task = registry.get(job.task)
    args, kwargs = hide.arguments(plain(args), plain(kwargs), () if task is None else task.argument_names)
    return {"args": args, "kwargs": kwargs}


# -- for holders ------------------------------------------------------------------------------------------------------


def render_held_jobs(jobs: Iterable[HeldJob]) -> list[dict[str, Any]]:
    """Return the jobs for a response. Jobs that cannot be rendered are buried, since they would be retried forever."""
    rendered = []
    for job in jobs:
        try:
            rendered.append(render_held_job(job))
        except Undecodable as error:
            logger.warning("job %s of queue %s cannot be decoded, so it is buried: %s", job.id, job.queue, error)
            try:
                job.refuse(error)
            except DelayQError as trouble:
                logger.warning("job %s of %s was not buried; its lease will end: %s", job.id, job.queue, trouble)
    return rendered


def render_held_job(job: HeldJob) -> dict[str, Any]:
    """Return one job as the document describes it.

    Raises:
        Undecodable: the stored content is not JSON.
    """
    record = job.record
    return {
        "queue": job.queue,
        "id": job.id,
        "lease": str(lease_of(record)),
        "key": job.key,
        "task": job.task,
        **held_content(job),
        "due": iso_of(record.due_ms),
        "created": iso_of(created_ms(record.key)),
        "attempt": job.attempt,
        "failures": job.failures,
        "noe": job.noe,
        "releases": job.releases,
        "lives": job.lives,
        "context": plain(job.context),
        "lease_ends": iso_of(job.deadline.timestamp() * 1000),
    }


def held_content(job: HeldJob) -> dict[str, Any]:
    """Return the content of a job as it is stored.

    Raises:
        Undecodable: it is not JSON, nor stored with the codec of this process.
    """
    record = job.record
    if record.merged:
        return {"payloads": [_json(payload.data) for payload in record.payloads]}
    if job.task == RAW:
        return dict(raw(record.args))
    args, kwargs = codec.decode_args(record.args, _json)
    return {"args": args, "kwargs": kwargs}


def _json(data: bytes) -> Any:
    """Return the stored JSON as it is, with the codec's tags for types that JSON lacks."""
    data = codec.as_json(data)
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates cannot be encoded again
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"no JSON: {type(error).__name__}: {error}") from None
    if data.count(b"[") + data.count(b"{") > _HELD_DEPTH and is_deeper(value, _HELD_DEPTH):
        raise Undecodable(f"nested more than {_HELD_DEPTH} levels deep")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
