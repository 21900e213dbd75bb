"""Values that jobs, calls and their outcomes carry, beside the public names of ``django_delayq.core``."""

from __future__ import annotations

from django_delayq.core.codec import encode, encode_args, types_by_kind, types_by_tag
from django_delayq.core.errors import QueueNotEmpty, QueuePaused
from django_delayq.core.job import (
    POSTPONED,
    STARTED,
    STOPPING,
    UNCLEAR,
    UNRENEWED,
    Generation,
    JobCounts,
    Undecodable,
    created_ms,
    derived_key,
    is_durable,
    new_key,
)
from django_delayq.core.options import OPTIONS, Check
from django_delayq.core.outcomes import AttemptOutcome, CompletionMark, ScheduleOutcome
from django_delayq.core.reading import Lease


def choices_of(name: str) -> tuple[str, ...]:
    """Return the values of an option that is one of some words."""
    check = OPTIONS[name].check
    assert isinstance(check, Check)
    return tuple(check.schema["enum"])


CONFLICTS, DUE_POLICIES = choices_of("on_conflict"), choices_of("due_policy")
PAYLOAD_POLICIES, SCORE_POLICIES = choices_of("payloads"), choices_of("score_policy")
