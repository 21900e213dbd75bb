"""Jobs to schedule, which :mod:`..entries` reads in one pass, and the results, which :mod:`..producing` renders."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from ...core.errors import InvalidJob
from ...core.inputs import check_task_name, short
from ...core.options import OPTIONS, PLAIN_JOB
from ...core.times import parse_moment, span_ms_of
from ...settings.conf import conf
from ..parsing import LONGEST_WAIT
from .base import Resource, one_of
from .fields import (
    AnyField,
    CheckedField,
    DelayField,
    FlagField,
    ListField,
    MomentField,
    NumberField,
    ObjectField,
    TimeField,
    checked,
)
from .job_verbs import ResultsSerializer


def _expires(data: Any) -> object:
    if isinstance(data, str):
        return parse_moment(data)
    if span_ms_of("expires", data, allow_far=conf().allow_far) == 0:
        raise InvalidJob("expires is 0: the job would never run; give the time for which it is worth starting")
    return data


def _text(data: Any) -> str:
    if isinstance(data, str):
        return data
    raise InvalidJob(f"this is a text, not {short(data)}")


_TaskField: Final = checked(check_task_name, type="string")
_TextField: Final = checked(_text, type="string")
_ExpiresField: Final = checked(
    _expires, oneOf=[{"type": "number", "minimum": 0.001}, {"type": "string", "format": "date-time"}]
)
#: descriptions of options of jobs
_TEXTS: Final = {
    "id": "default: a random one",
    "priority": "0 (first) … 7 (last)",
    "on_conflict": "the id is waiting already",
    "due_policy": "whose due time counts then",
    "reset_retries": "with replace: forget earlier failures",
    "retry_in": "back-off: seconds, a list of them, or the name of a preset",
    "timeout": "seconds that one attempt in a worker may take",
    "ttr": "seconds of the lease for a consumer that names none with its reserve",
    "context": "travels along",
    "wait_for_confirmation": "answer when replicas or disks confirm the job; default: the server's setting",
    "score": "of a merged task: orders the payloads of an id",
}
#: option of a job -> class of its field
_FIELDS: Final[dict[str, type[CheckedField]]] = {
    name: checked(partial(row.job, name), **row.job.schema) for name, row in OPTIONS.items() if row.job is not None
}


def _option(name: str) -> CheckedField:
    return _FIELDS[name](required=False, help_text=_TEXTS.get(name))


class _NewJobSerializer(Resource):
    """Options of a job; those that are written otherwise than ``schedule()`` takes them have fields of their own."""

    delay = DelayField(
        required=False, help_text="seconds from now, negative = now; at most one of delay and at, neither = now"
    )
    at = MomentField(required=False)
    expires = _ExpiresField(required=False, help_text="do not start it later: a moment, or seconds behind its due time")
    wait_for_room = NumberField(
        required=False,
        min_value=0,
        max_value=LONGEST_WAIT,
        help_text="wait so many seconds for room in a full queue, before the answer is queue_full (or full)",
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the members that are declared, and one for each other option."""
        return {name: _option(name) for name in sorted(PLAIN_JOB)} | super().get_fields()


class CallSerializer(_NewJobSerializer):
    """Call of a task, for queues of kind python. A merged task has `id`, `payload` and `score` instead of arguments.

    Arguments are plain JSON and reach the task unchanged.
    """

    task = _TaskField(help_text="a task with @task(api=True)")
    args = ListField(required=False)
    kwargs = ObjectField(required=False)
    payload = AnyField(required=False, help_text="of a merged task")
    score = _option("score")
    durable = FlagField(required=False, help_text="keep it in the database, too, until it is done")
    requests: ClassVar = {
        "a call of a task": {"task": "shop.cancel_order", "args": [17], "id": "order-17", "delay": 1800}
    }


class BytesSerializer(_NewJobSerializer):
    """Bytes, for queues of kind pull: `body` (a text) or `body_base64`."""

    body = _TextField(required=False, help_text="stored as UTF-8")
    body_base64 = _TextField(required=False)
    requests: ClassVar = {"bytes for a queue of kind pull": {"body": '{"order": 17}', "at": "2026-11-21T18:00:00Z"}}


@extend_schema_field(
    PolymorphicProxySerializer(
        component_name="Entry",
        serializers=[CallSerializer, BytesSerializer],
        resource_type_field_name=None,
        many=True,
    )
)
class _EntriesField(serializers.ListField):
    pass


class ManySerializer(Resource):
    """Up to 1,000 jobs, of any tasks of the API; in a queue of kind pull bytes."""

    jobs = _EntriesField()
    all_or_none = FlagField(
        required=False,
        help_text="if a job is refused, store none of the jobs of its shard: for up to 250 jobs, none of them durable; "
        "in a queue with one shard that is all of them",
    )
    requests: ClassVar = {
        "many": {"jobs": [{"task": "shop.cancel_order", "args": [17]}, {"task": "shop.cancel_order", "args": [18]}]}
    }


class ProducedSerializer(Resource):
    """Result for one stored job."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    queue = serializers.CharField()
    outcome = serializers.CharField(
        help_text="created, merged, replaced, ignored, gated; skipped by the project's middlewares; outbox: stored "
        "in the database until Redis answers"
    )
    due = TimeField(allow_null=True)
    example: ClassVar = {
        "id": "order-17",
        "queue": "orders",
        "outcome": "created",
        "due": "2026-11-21T11:53:43.123Z",
    }


#: schema of a request for one job or many
PRODUCE: Final = one_of("Produce", CallSerializer, BytesSerializer, ManySerializer)
#: schema of the response: one result, or a list of them
PRODUCED: Final = one_of(
    "ProducedOneOrMany",
    ProducedSerializer,
    ResultsSerializer,
    examples={
        "one was there already": {**ProducedSerializer.example, "outcome": "ignored"},
        "many": ResultsSerializer.example_of("created", "replaced"),
    },
)
#: the same, while Redis is unavailable
POSTPONED: Final = one_of(
    "ProducedOneOrMany",
    ProducedSerializer,
    ResultsSerializer,
    examples={"one": {**ProducedSerializer.example, "outcome": "outbox"}},
)
