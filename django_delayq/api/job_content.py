"""Content of jobs in responses: arguments, payloads and bytes, with their secrets masked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from ..core import codec
from ..core.job import RAW, Job, Payload, Undecodable
from ..core.job_view import JobView
from ..core.task import registry
from ..masking import Mask
from ..settings.conf import mask
from .values import plain, raw

#: maximum number of payloads of one job that are shown
MOST_PAYLOADS: Final = 50


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


def content_of(job: Job) -> dict[str, Any]:
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
