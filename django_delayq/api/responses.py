"""Responses: serializers that render objects of the package, and describe what the views return as dicts.

The component of the OpenAPI document has the name of the class.
"""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from ..access.views import allows
from ..core.job_view import JobView
from ..core.layouts import PRIORITY_MODES
from ..history.periods import from_row
from ..history.records import DIED, state_of
from ..history.rows import FIELDS
from ..history.series import COUNTS
from ..models.history import PipelineRun
from ..settings.conf import mask
from ..status.job_content import clean_text, masked_text
from .content import listed_content
from .fields import (
    ADDED,
    OPTIONAL,
    HexField,
    ListField,
    MaskedObjectField,
    MaskedTextField,
    ObjectField,
    RoundedField,
    Shown,
    TimeField,
)
from .requests import KINDS, STATES

_PERCENTILES: Final = tuple(name for name in FIELDS if "_p" in name or "_max" in name)


class ProblemError(Shown):
    """Error at one place of the request."""

    pointer = serializers.CharField(help_text="JSON pointer into the body, or into the query as if it were an object")
    detail = serializers.CharField()


class Problem(Shown):
    """Error (RFC 9457). Programs decide by `code`, which is stable; `detail` is for people."""

    type = serializers.CharField(help_text="`urn:django-delayq:problem:` and the code")
    title = serializers.CharField(help_text="the phrase of the HTTP status")
    status = serializers.IntegerField(min_value=400, max_value=599)
    detail = serializers.CharField(help_text="what is wrong, and what to do next")
    code = serializers.CharField(help_text="stable; see the list in the description of the document")
    errors = ProblemError(  # type: ignore[assignment]  # a field; the name is free in a response
        many=True, required=False, help_text="what is wrong where, at most 50"
    )
    retry_after = serializers.FloatField(required=False, help_text="seconds after which it is worth asking again")


# -- queues ----------------------------------------------------------------------------------------------------------


class QueueLimits(Shown):
    """Limits of a queue; null = no limit."""

    max_length = serializers.IntegerField(allow_null=True)
    morgue_max = serializers.IntegerField(allow_null=True)
    morgue_ttl = serializers.FloatField(allow_null=True)
    priorities = serializers.ChoiceField(PRIORITY_MODES)
    starve_after = serializers.FloatField(allow_null=True)


@extend_schema_field(QueueLimits)
class _LimitsField(ObjectField):
    pass


class Queue(Shown):
    """Queue as registered."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(("python", "pull"))
    shards = serializers.IntegerField(help_text="of the present epoch")
    epoch = serializers.IntegerField(help_text="number of changes of the number of shards")
    draining = serializers.BooleanField(help_text="former shards are still being worked off")
    paused = serializers.CharField(help_text="in, out or both; empty = not paused")
    paused_until = serializers.DictField(
        child=TimeField(), help_text="direction (in, out) → when its pause ends by itself"
    )
    configured = serializers.BooleanField(help_text="the project's settings name it, so its limits are set there")
    limits = _LimitsField()


class Counts(Shown):
    """Number of jobs by state. Failed jobs are also counted as delayed or ready."""

    delayed = serializers.IntegerField()
    ready = serializers.IntegerField(help_text="due by now")
    reserved = serializers.IntegerField(help_text="leased to a worker or a client")
    gated = serializers.IntegerField(help_text="new content that waits for the end of an attempt")
    failed = serializers.IntegerField(help_text="waiting for another attempt")
    morgue = serializers.IntegerField()


class QueueCounts(Queue):
    """Queue with its counts and counters."""

    counts = Counts()
    lag_seconds = RoundedField(
        source="counts.lag_seconds", help_text="how long the longest waiting ready job is overdue"
    )
    lag_by_priority = serializers.DictField(
        source="counts.lag_by_priority",
        child=RoundedField(),
        help_text="the same for each priority that was ever used; one that grows alone starves behind more urgent jobs",
    )
    counters = serializers.DictField(
        source="counts.counters",
        child=serializers.IntegerField(),
        help_text="counted since the queue was created: created, changed, refused, acked, failed, …",
    )
    unreachable_shards = serializers.IntegerField(
        source="counts.unreachable_shards", help_text="of a cluster: shards without an answer, not counted here"
    )


class Shard(Shown):
    """One shard of a queue."""

    number = serializers.IntegerField(help_text="within its epoch, from 0")
    epoch = serializers.IntegerField()
    counts = Counts()
    lag_seconds = RoundedField(source="counts.lag_seconds")


class QueueDetail(QueueCounts):
    """Queue with its counts, in total and by shard."""

    by_shard = Shard(many=True)
    shards_left_out = serializers.IntegerField(help_text="shards that are not shown one by one")


class Queues(Shown):
    """All queues, by name."""

    queues = QueueCounts(many=True)


class QueueNames(Shown):
    """Names of all queues."""

    names = serializers.ListField(child=serializers.CharField())


#: all queues, or their names
QUEUES: Final = PolymorphicProxySerializer(
    component_name="QueueList", serializers=[Queues, QueueNames], resource_type_field_name=None
)


class DepthPoint(Shown):
    """Counts at a whole minute, and what happened since the point before it."""

    at = TimeField(source="at_ms", help_text="Redis's clock")
    delayed = serializers.IntegerField()
    ready = serializers.IntegerField()
    reserved = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="also counted as delayed or ready")
    morgue = serializers.IntegerField()
    lag_seconds = RoundedField()
    scheduled = RoundedField(allow_null=True, help_text="per second; null = the point before is missing")
    done = RoundedField(allow_null=True, help_text="per second")
    failing = RoundedField(allow_null=True, help_text="per second")
    p50_ms = RoundedField(allow_null=True, help_text="lateness of the attempts; null = unknown, or none began")
    p99_ms = RoundedField(allow_null=True)


class Depth(Shown):
    """Depth of a queue over time."""

    points = DepthPoint(many=True)


class Producers(Shown):
    """State of the switch for all producers."""

    paused = serializers.BooleanField(help_text="no queue takes new jobs (503 queue_paused)")
    since = TimeField(allow_null=True)


# -- jobs ------------------------------------------------------------------------------------------------------------


@extend_schema_field(
    {
        "type": "object",
        "nullable": True,
        "properties": {name: {"type": "string"} for name in ("class", "message", "traceback")},
        "required": ["class", "message", "traceback"],
    }
)
class _JobErrorField(serializers.Field[Any, Any, Any, Any]):
    """Last error of a job, as far as it was stored, with its secrets masked; None if there was none."""

    def to_representation(self, view: JobView) -> Any:
        """Return the error."""
        error = view.error
        name = str(error.get("class") or view.error_class or "")
        if not (error or name):
            return None
        return {
            "class": clean_text(name),
            "message": masked_text(str(error.get("message") or "")),
            "traceback": clean_text(mask().traceback(str(error.get("traceback") or ""))),
        }


#: form of arguments that are shown, not handed out
_FOR_READING: Final = (
    "secrets are masked; values that JSON lacks are texts and numbers: moments in ISO 8601, spans in seconds, decimals "
    "and UUIDs as texts, bytes in base64. A reserved job has them as they are stored"
)


class Job(Shown):
    """Job as it was at one moment. Arguments are masked as in the admin.

    Content: `args` and `kwargs` of a plain task, `payloads` of a merged one, `body` or `body_base64` in a queue of kind
    pull; no content if `cut` is true.
    """

    queue = serializers.CharField(source="job.queue")
    id = serializers.CharField(help_text="unique within its queue")
    key = HexField(
        source="job.key", help_text="identifies this generation of the id; a later job of the id has another one"
    )
    task = serializers.CharField(source="job.task", help_text='"raw" in a queue of kind pull')
    state = serializers.ChoiceField(choices=("delayed", "ready", "reserved", "morgue"))
    created = TimeField(
        source="created_ms",
        allow_null=True,
        help_text="when it was scheduled, by the caller's clock; null if the request had an Idempotency-Key or the job "
        "is of a bulk load",
    )
    due = TimeField(source="due_ms", allow_null=True)
    priority = serializers.IntegerField(source="job.priority", help_text="0 (first) … 7 (last)")
    merged = serializers.BooleanField(source="job.merged")
    failures = serializers.IntegerField(source="job.failures", help_text="counted attempts that failed")
    reserves = serializers.IntegerField(source="job.reserves", help_text="how often it was reserved")
    crashes = serializers.IntegerField(
        source="job.crashes", help_text="failures whose process died, or whose lease ran out"
    )
    releases = serializers.IntegerField(**ADDED, help_text="how often it was released, uncounted")
    timeouts = serializers.IntegerField(
        **ADDED, help_text="how often its time limit or its lease was over while it was held"
    )
    buries = serializers.IntegerField(**ADDED, help_text="how often it was moved to the morgue")
    kicks = serializers.IntegerField(
        **ADDED, help_text="how often it was moved back; this resets failures, reserves and crashes only"
    )
    quarantined = serializers.BooleanField(help_text="its process died, so it runs alone in one now; see the error")
    parked = serializers.BooleanField(
        source="job.parked", help_text="due, but behind a limit, or its group has no turn yet"
    )
    context = MaskedObjectField(source="job.context")  # type: ignore[assignment]
    size = serializers.IntegerField(help_text="bytes of the arguments as they are stored")
    cut = serializers.BooleanField(help_text="the arguments are too large for a list; GET the job to read them")
    args = ListField(**OPTIONAL, help_text=_FOR_READING)
    kwargs = ObjectField(**OPTIONAL, help_text=_FOR_READING)
    payloads = ListField(**OPTIONAL, help_text=f"the first 50; {_FOR_READING}")
    payload_count = serializers.IntegerField(**OPTIONAL)
    body = serializers.CharField(**OPTIONAL, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(**OPTIONAL, help_text="if they are not")
    gated_due = TimeField(
        source="gated_due_ms",
        allow_null=True,
        help_text="due time of new content, which waits for the end of the attempt",
    )
    worker = serializers.CharField(source="job.worker", allow_null=True)
    lease_ends = TimeField(source="deadline_ms", allow_null=True)
    buried = TimeField(source="buried_ms", allow_null=True)
    reason = MaskedTextField(help_text="why it is in the morgue")
    outcome = serializers.CharField(help_text="of its last attempt")
    error = _JobErrorField(**ADDED)

    def to_representation(self, view: JobView) -> Any:
        """Return the job with its content; a merged one with the number of its payloads."""
        rendered = super().to_representation(view) | view.history
        rendered["error"] = self.fields["error"].to_representation(view)
        if view.state != "reserved" or not view.job.worker:
            rendered["worker"] = None
        return rendered | listed_content(view)


class JobsPage(Shown):
    """One page of a list of jobs."""

    jobs = Job(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
    examined = serializers.IntegerField(
        help_text="how many jobs were read for this page. With conditions that no index covers, it ends after about 2 "
        "seconds; it may have fewer jobs than `limit`, even none, and still have a cursor"
    )
    unreachable_shards = serializers.IntegerField(
        help_text="of a cluster: shards without an answer, whose jobs are missing here"
    )


class Produced(Shown):
    """Result for one stored job."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")
    queue = serializers.CharField()
    outcome = serializers.CharField(
        help_text="created, merged, replaced, ignored, gated; skipped by the project's middlewares; outbox: stored "
        "in the database until Redis answers"
    )
    due = TimeField(allow_null=True)


class Outcome(Shown):
    """Outcome for the job."""

    outcome = serializers.CharField()


class Moved(Outcome):
    """Outcome for the job, and its due time."""

    due = TimeField(allow_null=True, help_text="null if Redis does not have the change yet")


class Result(Outcome):
    """Result for one of many jobs."""

    id = serializers.CharField(allow_null=True, help_text="null if it was skipped")


class Results(Shown):
    """Outcome for each job, in the order of the request."""

    results = Result(many=True)
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")


class Bulk(Shown):
    """Counts of a verb applied to all matching jobs. It stops after about ten seconds: repeat the call then."""

    counts = serializers.DictField(child=serializers.IntegerField(), help_text="outcome → how many")
    complete = serializers.BooleanField(help_text="false: there is more to do, call again")
    seen = serializers.IntegerField()
    total = serializers.IntegerField()
    cursor = serializers.CharField(
        required=False, help_text="with `where` or `per_second`, if it is not complete: send it with the next request"
    )


#: result for one job, or a list of them
PRODUCED: Final = PolymorphicProxySerializer(
    component_name="ProducedOneOrMany", serializers=[Produced, Results], resource_type_field_name=None
)
#: results for jobs that were named, or counts for those that were not
CHANGED: Final = PolymorphicProxySerializer(
    component_name="Changed", serializers=[Results, Bulk], resource_type_field_name=None
)


# -- held jobs -------------------------------------------------------------------------------------------------------

_AS_STORED: Final = (
    "as stored: a value that JSON lacks is an object with one member, whose name says what it is, for instance "
    '`{"$dt": "2026-11-21T11:23:43+01:00"}` for a moment; $d date, $t time, $td span in microseconds, $dec decimal, '
    "$uuid UUID, $b bytes in base64"
)


class HeldJob(Shown):
    """Job that the caller holds until `lease_ends`. Its content is not masked."""

    queue = serializers.CharField()
    id = serializers.CharField()
    lease = serializers.CharField(help_text="opaque; send it back with every verb on the held job")
    key = HexField()
    task = serializers.CharField(help_text='"raw" in a queue of kind pull')
    body = serializers.CharField(required=False, help_text="if the bytes are UTF-8 text")
    body_base64 = serializers.CharField(required=False, help_text="if they are not")
    args = ListField(required=False, help_text=_AS_STORED)
    kwargs = ObjectField(required=False, help_text=_AS_STORED)
    payloads = ListField(required=False, help_text=_AS_STORED)
    due = TimeField(allow_null=True)
    created = TimeField(
        allow_null=True,
        help_text="when it was first scheduled, on the caller's clock; null if the call may repeat",
    )
    attempt = serializers.IntegerField(help_text="number of this counted attempt; the first is 1")
    failures = serializers.IntegerField()
    noe = serializers.IntegerField(help_text="how often it was reserved before, counted or not")
    releases = serializers.IntegerField(help_text="how often it was put back uncounted")
    lives = serializers.IntegerField(help_text="remaining attempts, this one included")
    context = ObjectField()  # type: ignore[assignment]
    lease_ends = TimeField(allow_null=True)


class HeldJobs(Shown):
    """Reserved jobs; an empty list if none was due in time."""

    jobs = HeldJob(many=True)
    deadline_soon = serializers.BooleanField(
        required=False, help_text="true: a lease in `holding` ends within `deadline_margin`; touch or end its job now"
    )


class Counted(Shown):
    """Result of ending one job."""

    id = serializers.CharField()
    counted = serializers.BooleanField(help_text="false: the lease was lost, and nothing was changed")


class Settled(Shown):
    """Results of ending jobs, in the order of the request."""

    results = Counted(many=True)


class Extended(Shown):
    """Result of touching one job."""

    id = serializers.CharField()
    held = serializers.BooleanField(help_text="false: the lease was lost")
    stopping = serializers.BooleanField(help_text="the job was cancelled; end it soon")
    lease_ends = TimeField(allow_null=True)


class Touched(Shown):
    """Results of touching jobs, in the order of the request."""

    results = Extended(many=True)


# -- workers, recurring tasks, the deployment ------------------------------------------------------------------------


class RunningJob(Shown):
    """Job that one thread ran at the last heartbeat."""

    slot = serializers.IntegerField(help_text="number of the thread")
    queue = serializers.CharField()
    id = serializers.CharField()
    task = serializers.CharField()
    started = TimeField(source="started_ms", allow_null=True)
    ids = serializers.IntegerField(help_text="number of jobs in this call of the handler; `id` is the first of them")
    lease_ends = serializers.DateTimeField(
        **OPTIONAL,
        allow_null=True,
        help_text="only in the response for one worker; null if the worker has lost the job",
    )


class Worker(Shown):
    """Worker process as of its last heartbeat."""

    name = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField(allow_null=True)
    queues = ListField(help_text="served queues")
    ignored = ListField(help_text="queues that operators took from its program (`ignore`)")
    threads = serializers.IntegerField()
    running = serializers.IntegerField(help_text="busy threads")
    dispatcher = serializers.BooleanField(help_text="it also runs the dispatcher")
    quarantine = serializers.BooleanField(help_text="it runs jobs in quarantine, one at a time")
    stopping = serializers.BooleanField()
    started = TimeField(source="started_ms", allow_null=True)
    rss_mib = serializers.IntegerField(allow_null=True)
    seen = TimeField(source="seen_ms", allow_null=True)
    seconds_ago = RoundedField(help_text="since its last heartbeat")
    lost = serializers.BooleanField(help_text="no heartbeat for half a minute")
    jobs = RunningJob(many=True, help_text="at most 64, the longest running first")


class Workers(Shown):
    """All worker processes, by name."""

    workers = Worker(many=True)


class Command(Shown):
    """Command sent to a worker."""

    worker = serializers.CharField()
    command = serializers.CharField()


class Dump(Shown):
    """Stacks of all threads of a worker."""

    worker = serializers.CharField()
    taken = TimeField(allow_null=True)
    stacks = serializers.CharField(help_text="as Python prints them, at most 64 KiB")


class Recurring(Shown):
    """Recurring task of the project, as the responding process knows it, or a pause of one that it does not have."""

    task = serializers.CharField(help_text="its name")
    queue = serializers.CharField(allow_null=True, help_text="null = the process has no such task, only its pause")
    schedule = serializers.CharField(allow_null=True, help_text="as in the task's options")
    timezone = serializers.CharField(allow_null=True, help_text="of a cron expression; null = UTC, or it has none")
    missed = serializers.CharField(
        allow_null=True, help_text="once: the latest missed tick fires late; skip: it does not fire"
    )
    last_tick = TimeField(allow_null=True, help_text="the last one that fired")
    next_tick = TimeField(allow_null=True, help_text="null while the task is paused")
    paused = TimeField(allow_null=True, help_text="since when its ticks do not fire; null = they do")


class RecurringTasks(Shown):
    """Recurring tasks, by name."""

    recurring = Recurring(many=True)


class Status(Shown):
    """Full status. Any release may add members."""

    now = TimeField(help_text="Redis's clock")
    totals = ObjectField(help_text="of all queues; `busy` of `threads` run a job")
    queues = ListField(help_text="counts, counters, policy, lateness and duration of attempts of each")
    workers = ListField(help_text="last heartbeat of each")
    recurring = ListField(
        help_text="recurring tasks registered in the responding process, with their last and next tick and pause"
    )
    redis = ObjectField(help_text="version, memory, persistence, clients")
    producers_paused = TimeField(allow_null=True, help_text="since when the producers of all queues are paused")
    unreachable = ListField(
        help_text="of a cluster: the nodes that do not answer, with their `slots`, the number of `shards` of each "
        "queue there, and `registry`: true if queues and workers may be incomplete"
    )
    outbox = ObjectField(required=False, help_text="durable jobs in the database")


class Health(Shown):
    """State of the process and its systems: ok or away."""

    status = serializers.CharField()
    redis = serializers.CharField(required=False)
    database = serializers.CharField(required=False)


# -- history ---------------------------------------------------------------------------------------------------------


class _HourField(TimeField):
    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        return super().to_representation(from_row(value))


def _histogram(what: str) -> Any:
    return serializers.ListField(
        child=serializers.IntegerField(),
        help_text=f"{what}: 32 counts, of 0 ms, then from 2^(i-1) to below 2^i ms, then longer; empty if unknown",
    )


class Hour(Shown):
    """Outcomes of the attempts of one task in one queue that ended within one hour.

    `lateness` is the time between the due time and the start of an attempt. `lateness` and `duration` cover the `timed`
    attempts, those that started; both are in milliseconds. `sla_missed` counts attempts that started later than
    `DELAYQ["PIPELINE"]["sla"]` allows.
    """

    hour = _HourField(help_text="when it begins")
    queue = serializers.CharField()
    task = serializers.CharField()
    vars().update({name: serializers.IntegerField() for name in COUNTS})
    vars().update({name: serializers.IntegerField(allow_null=True) for name in _PERCENTILES})
    lateness_histogram = _histogram("lateness")
    duration_histogram = _histogram("duration")


class HoursPage(Shown):
    """One page of hours, newest first."""

    hours = Hour(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")


class Run(Shown):
    """Pipeline run."""

    number = serializers.IntegerField(source="pk", help_text="unique")
    run_id = serializers.CharField(help_text="a resumed run keeps it")
    kind = serializers.CharField(help_text=", ".join(KINDS))
    state = serializers.CharField(**ADDED, help_text=f"{', '.join(STATES)}; {DIED}: no sign of life for five minutes")
    queue = serializers.CharField()
    task = serializers.CharField()
    started = TimeField(source="started_at", allow_null=True)
    seen = TimeField(source="seen_at", allow_null=True, help_text="its last sign of life")
    ended = TimeField(source="ended_at", allow_null=True)
    seconds = serializers.FloatField(**ADDED, help_text="duration so far, or in total")
    total = serializers.IntegerField(allow_null=True, help_text="rows of the input; null if unknown")
    rows = serializers.IntegerField()
    created = serializers.IntegerField()
    known = serializers.IntegerField(help_text="rows that were stored before")
    bad = serializers.IntegerField(help_text="rows that were refused")
    detail = MaskedObjectField()
    error = MaskedTextField()

    def to_representation(self, row: PipelineRun) -> Any:
        """Return the run. Details of a run without a queue may be about queues that the project's rule hides."""
        state = state_of(row)
        end = row.ended_at or (timezone.now() if state == PipelineRun.State.RUNNING else row.seen_at)
        seconds = round(max(0.0, (end - row.started_at).total_seconds()), 3)
        rendered = super().to_representation(row) | {"state": state, "seconds": seconds}
        hidden = {"detail": {}, "error": ""} if not row.queue and allows() is not None else {}
        return rendered | hidden | ({} if isinstance(row.detail, dict) else {"detail": {}})


class RunsPage(Shown):
    """One page of pipeline runs, newest first."""

    runs = Run(many=True)
    cursor = serializers.CharField(allow_null=True, help_text="for the next page; null at the end")
