"""JSON form of a job for its holder: complete, nothing masked, plain JSON for any language."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from ..core.codec import as_json, decode_args
from ..core.errors import DelayQError
from ..core.job import RAW, Undecodable, created_ms
from ..core.times import iso_of
from ..pull.held import HeldJob
from .leases import lease_of
from .parsing import is_deeper
from .values import plain, raw

logger: Final = logging.getLogger("django_delayq.api")

#: deeper than anything this package stores, and shallow enough for any JSON parser
_DEEPEST: Final = 200


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
    """Return one job as ``HeldJobSerializer`` describes it.

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
        **content_of(job),
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


def content_of(job: HeldJob) -> dict[str, Any]:
    """Return the content of a job as it is stored.

    Raises:
        Undecodable: it is not JSON, nor stored with the codec of this process.
    """
    record = job.record
    if record.merged:
        return {"payloads": [_json(payload.data) for payload in record.payloads]}
    if job.task == RAW:
        return dict(raw(record.args))
    args, kwargs = decode_args(record.args, _json)
    return {"args": args, "kwargs": kwargs}


def _json(data: bytes) -> Any:
    """Return the stored JSON as it is, with the codec's tags for types that JSON lacks."""
    data = as_json(data)
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates cannot be encoded again
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"no JSON: {type(error).__name__}: {error}") from None
    if data.count(b"[") + data.count(b"{") > _DEEPEST and is_deeper(value, _DEEPEST):
        raise Undecodable(f"nested more than {_DEEPEST} levels deep")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
