"""Jobs of raw bytes, and the queues that take them."""

from __future__ import annotations

from typing import Any

from ..core.builder import RAW_TASK, RawJobBuilder
from ..core.errors import InvalidJob, QueueUnavailable
from ..core.inputs import check_known
from ..core.job import NewJob
from ..core.options import PLAIN_JOB
from ..outbox.producer import call_briefly, call_patiently
from ..scheduling.build import job_rules
from ..settings.conf import SETTING, collect_context, conf


def new_job(body: object, options: dict[str, Any]) -> NewJob:
    """Return the job of a body.

    Raises:
        TypeError: an unknown option, or a body that is neither bytes nor text.
        InvalidJob: the body is too large, or an option is wrong.
    """
    raw = _bytes_of(body)
    check_known(options, sorted(PLAIN_JOB), "option", TypeError)
    return RawJobBuilder(RAW_TASK, job_rules(), collect_context()).build((raw,), {}, options)


def check_kind(name: str, *, patiently: bool) -> None:
    """Check that a queue is of kind "pull".

    With ``patiently`` Redis may be unavailable now, because the bytes are sent later; then the settings are used.
    """
    try:
        call = call_briefly if patiently else call_patiently
        existing = call(lambda broker: broker.existing(name))
    except QueueUnavailable:
        if not patiently:
            raise
        existing = None
    kind = conf().queue(name).kind if existing is None else existing.kind
    if kind != "pull":
        raise InvalidJob(
            f"queue {name!r} is of kind {kind!r}, whose jobs are calls of tasks: use schedule(). For raw bytes give it "
            f'{SETTING}["QUEUES"][{name!r}] = {{"kind": "pull"}} before its first use'
        )


def _bytes_of(body: object) -> bytes:
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob(f"the body is not valid Unicode ({error.reason}); give bytes") from None
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"the body must be bytes or str, not {type(body).__name__}; encode it, or use schedule()")
    raw, limit = bytes(body), conf().max_args_bytes
    if len(raw) > limit:
        raise InvalidJob(
            f"the body has {len(raw)} bytes, at most {limit} are stored; store the data elsewhere and put "
            f"its key, or raise {SETTING}['MAX_ARGS_BYTES']"
        )
    return raw
