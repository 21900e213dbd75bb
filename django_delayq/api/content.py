"""JSON forms of jobs' contents: masked for people and programs that look, complete for the holder of a job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NoReturn

from ..core import codec
from ..core.errors import DelayQError
from ..core.job import RAW, Payload, Undecodable, created_ms
from ..core.job_view import JobView
from ..core.times import iso_of
from ..pull.held import HeldJob
from ..settings.conf import mask
from ..status.job_content import plain, raw, shown_content, shown_payload
from .parsing import is_deeper
from .settle import lease_of

logger: Final = logging.getLogger("django_delayq.api")

#: maximum number of payloads of one job that are shown
MOST_PAYLOADS: Final = 50
#: deeper than anything this package stores, and shallow enough for any JSON parser
_HELD_DEPTH: Final = 200


# -- for readers ------------------------------------------------------------------------------------------------------


def listed_content(view: JobView) -> dict[str, Any]:
    """Return the content of a job in a list: nothing if it is large, of a merged job the number of its payloads."""
    if view.job.merged:
        return payloads_of(view, None)
    return {} if view.cut else shown_content(view.job, mask())


def payloads_of(view: JobView, payloads: Iterable[Payload] | None) -> dict[str, Any]:
    """Return the number of payloads of a merged job, and the first ones of those that are given."""
    rendered: dict[str, Any] = {"payload_count": view.payload_count}
    if payloads is not None:
        hide = mask()
        rendered["payloads"] = [shown_payload(payload, hide) for payload in islice(payloads, MOST_PAYLOADS)]
    return rendered


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
        "context": plain(job.context) if job.context else {},
        "lease_ends": iso_of(job.deadline_ms),
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
