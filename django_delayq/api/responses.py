"""Responses: serializers that render objects of the package, and describe what the views return as dicts.

The component of the OpenAPI document has the name of the class.
"""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers
from rest_framework.serializers import (
    BooleanField,
    CharField,
    ChoiceField,
    DateTimeField,
    DictField,
    FloatField,
    IntegerField,
)

from ..core.inputs import encodable
from ..core.job_view import JobView
from ..core.layouts import PRIORITY_MODES
from ..settings.conf import mask
from ..status.job_content import masked_text
from ..status.snapshot import PLACES
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


class ProblemError(Shown):
    """Error at one place of the request.

    Attributes:
        pointer: JSON pointer into the body, or into the query as if it were an object.
    """

    pointer = CharField()
    detail = CharField()


class Problem(Shown):
    """Error (RFC 9457). Programs decide by `code`, which is stable; `detail` is for people.

    Attributes:
        type: `urn:django-delayq:problem:` and the code.
        title: the phrase of the HTTP status.
        detail: what is wrong, and what to do next.
        code: stable; see the list in the description of the document.
        errors: what is wrong where, at most 50.
        retry_after: seconds after which it is worth asking again.
    """

    type = CharField()
    title = CharField()
    status = IntegerField(min_value=400, max_value=599)
    detail = CharField()
    code = CharField()
    errors = ProblemError(  # type: ignore[assignment]  # a field; the name is free in a response
        many=True, required=False
    )
    retry_after = FloatField(required=False)


# -- queues ----------------------------------------------------------------------------------------------------------


class QueueLimits(Shown):
    """Limits of a queue; null = no limit."""

    max_length = IntegerField(allow_null=True)
    morgue_max = IntegerField(allow_null=True)
    morgue_ttl = FloatField(allow_null=True)
    priorities = ChoiceField(PRIORITY_MODES)
    starve_after = FloatField(allow_null=True)


@extend_schema_field(QueueLimits)
class _LimitsField(ObjectField):
    pass


class Queue(Shown):
    """Queue as registered.

    Attributes:
        shards: of the present epoch.
        epoch: number of changes of the number of shards.
        draining: former shards are still being worked off.
        paused: in, out or both; empty = not paused.
        paused_until: direction (in, out) → when its pause ends by itself.
        configured: the project's settings name it, so its limits are set there.
    """

    name = CharField()
    kind = ChoiceField(("python", "pull"))
    shards = IntegerField()
    epoch = IntegerField()
    draining = BooleanField()
    paused = CharField()
    paused_until = DictField(child=TimeField())
    configured = BooleanField()
    limits = _LimitsField()


class Counts(Shown):
    """Number of jobs by state. Failed jobs are also counted as delayed or ready.

    Attributes:
        ready: due by now.
        reserved: leased to a worker or a client.
        gated: new content that waits for the end of an attempt.
        failed: waiting for another attempt.
    """

    vars().update({name: IntegerField() for name in PLACES})


class QueueCounts(Queue):
    """Queue with its counts and counters.

    Attributes:
        lag_seconds: how long the longest waiting ready job is overdue.
        lag_by_priority: the same for each priority that was ever used; one that grows alone starves behind more urgent
            jobs.
        counters: counted since the queue was created: created, changed, refused, acked, failed, ….
        unreachable_shards: of a cluster: shards without an answer, not counted here.
    """

    counts = Counts()
    lag_seconds = RoundedField(source="counts.lag_seconds")
    lag_by_priority = DictField(source="counts.lag_by_priority", child=RoundedField())
    counters = DictField(source="counts.counters", child=IntegerField())
    unreachable_shards = IntegerField(source="counts.unreachable_shards")


class Shard(Shown):
    """One shard of a queue.

    Attributes:
        number: within its epoch, from 0.
    """

    number = IntegerField()
    epoch = IntegerField()
    counts = Counts()
    lag_seconds = RoundedField(source="counts.lag_seconds")


class QueueDetail(QueueCounts):
    """Queue with its counts, in total and by shard.

    Attributes:
        shards_left_out: shards that are not shown one by one.
    """

    by_shard = Shard(many=True)
    shards_left_out = IntegerField()


class Queues(Shown):
    """All queues, by name."""

    queues = QueueCounts(many=True)


class QueueNames(Shown):
    """Names of all queues."""

    names = serializers.ListField(child=CharField())


#: all queues, or their names
QUEUES: Final = PolymorphicProxySerializer(
    component_name="QueueList", serializers=[Queues, QueueNames], resource_type_field_name=None
)


class DepthPoint(Shown):
    """Counts at a whole minute, and what happened since the point before it.

    Attributes:
        at: Redis's clock.
        failed: also counted as delayed or ready.
        scheduled: per second; null = the point before is missing.
        done: per second.
        failing: per second.
        p50_ms: lateness of the attempts; null = unknown, or none began.
    """

    at = TimeField(source="at_ms")
    delayed = IntegerField()
    ready = IntegerField()
    reserved = IntegerField()
    failed = IntegerField()
    morgue = IntegerField()
    lag_seconds = RoundedField()
    scheduled = RoundedField(allow_null=True)
    done = RoundedField(allow_null=True)
    failing = RoundedField(allow_null=True)
    p50_ms = RoundedField(allow_null=True)
    p99_ms = RoundedField(allow_null=True)


class Depth(Shown):
    """Depth of a queue over time."""

    points = DepthPoint(many=True)


class Producers(Shown):
    """State of the switch for all producers.

    Attributes:
        paused: no queue takes new jobs (503 queue_paused).
    """

    paused = BooleanField()
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
            "class": encodable(name),
            "message": masked_text(str(error.get("message") or "")),
            "traceback": encodable(mask().traceback(str(error.get("traceback") or ""))),
        }


class Job(Shown):
    """Job as it was at one moment. Arguments are masked as in the admin.

    Content: `args` and `kwargs` of a plain task, `payloads` of a merged one, `body` or `body_base64` in a queue of kind
    pull; no content if `cut` is true.

    Attributes:
        id: unique within its queue.
        key: identifies this generation of the id; a later job of the id has another one.
        task: "raw" in a queue of kind pull.
        created: when it was scheduled, by the caller's clock; null if the request had an Idempotency-Key or the job is
            of a bulk load.
        priority: 0 (first) … 7 (last).
        failures: counted attempts that failed.
        reserves: how often it was reserved.
        crashes: failures whose process died, or whose lease ran out.
        releases: how often it was released, uncounted.
        timeouts: how often its time limit or its lease was over while it was held.
        buries: how often it was moved to the morgue.
        kicks: how often it was moved back; this resets failures, reserves and crashes only.
        quarantined: its process died, so it runs alone in one now; see the error.
        parked: due, but behind a limit, or its group has no turn yet.
        size: bytes of the arguments as they are stored.
        cut: the arguments are too large for a list; GET the job to read them.
        args: secrets are masked; values that JSON lacks are texts and numbers: moments in ISO 8601, spans in seconds,
            decimals and UUIDs as texts, bytes in base64. A reserved job has them as they are stored.
        kwargs: like `args`.
        payloads: the first 50, like `args`.
        body: if the bytes are UTF-8 text.
        body_base64: if they are not.
        gated_due: due time of new content, which waits for the end of the attempt.
        reason: why it is in the morgue.
        outcome: of its last attempt.
    """

    queue = CharField(source="job.queue")
    id = CharField()
    key = HexField(source="job.key")
    task = CharField(source="job.task")
    state = ChoiceField(choices=("delayed", "ready", "reserved", "morgue"))
    created = TimeField(source="created_ms", allow_null=True)
    due = TimeField(source="due_ms", allow_null=True)
    priority = IntegerField(source="job.priority")
    merged = BooleanField(source="job.merged")
    vars().update({name: IntegerField(source=f"job.{name}") for name in ("failures", "reserves", "crashes")})
    vars().update({name: IntegerField(**ADDED) for name in ("releases", "timeouts", "buries", "kicks")})
    quarantined = BooleanField()
    parked = BooleanField(source="job.parked")
    context = MaskedObjectField(source="job.context")  # type: ignore[assignment]
    size = IntegerField()
    cut = BooleanField()
    args = ListField(**OPTIONAL)
    kwargs = ObjectField(**OPTIONAL)
    payloads = ListField(**OPTIONAL)
    payload_count = IntegerField(**OPTIONAL)
    body = CharField(**OPTIONAL)
    body_base64 = CharField(**OPTIONAL)
    gated_due = TimeField(source="gated_due_ms", allow_null=True)
    worker = CharField(source="job.worker", allow_null=True)
    lease_ends = TimeField(source="deadline_ms", allow_null=True)
    buried = TimeField(source="buried_ms", allow_null=True)
    reason = MaskedTextField()
    outcome = CharField()
    error = _JobErrorField(**ADDED)

    def to_representation(self, view: JobView) -> Any:
        """Return the job with its content; a merged one with the number of its payloads."""
        rendered = super().to_representation(view) | view.history
        rendered["error"] = self.fields["error"].to_representation(view)
        if view.state != "reserved" or not view.job.worker:
            rendered["worker"] = None
        return rendered | listed_content(view)


class JobsPage(Shown):
    """One page of a list of jobs.

    Attributes:
        cursor: for the next page; null at the end.
        examined: how many jobs were read for this page. With conditions that no index covers, it ends after about 2
            seconds; it may have fewer jobs than `limit`, even none, and still have a cursor.
        unreachable_shards: of a cluster: shards without an answer, whose jobs are missing here.
    """

    jobs = Job(many=True)
    cursor = CharField(allow_null=True)
    examined = IntegerField()
    unreachable_shards = IntegerField()


class Produced(Shown):
    """Result for one stored job.

    Attributes:
        id: null if it was skipped.
        outcome: created, merged, replaced, ignored, gated; skipped by the project's middlewares; outbox: stored in the
            database until Redis answers.
    """

    id = CharField(allow_null=True)
    queue = CharField()
    outcome = CharField()
    due = TimeField(allow_null=True)


class Outcome(Shown):
    """Outcome for the job."""

    outcome = CharField()


class Moved(Outcome):
    """Outcome for the job, and its due time.

    Attributes:
        due: null if Redis does not have the change yet.
    """

    due = TimeField(allow_null=True)


class Result(Outcome):
    """Result for one of many jobs.

    Attributes:
        id: null if it was skipped.
    """

    id = CharField(allow_null=True)


class Results(Shown):
    """Outcome for each job, in the order of the request.

    Attributes:
        counts: outcome → how many.
    """

    results = Result(many=True)
    counts = DictField(child=IntegerField())


class Bulk(Shown):
    """Counts of a verb applied to all matching jobs. It stops after about ten seconds: repeat the call then.

    Attributes:
        counts: outcome → how many.
        complete: false: there is more to do, call again.
        cursor: with `where` or `per_second`, if it is not complete: send it with the next request.
    """

    counts = DictField(child=IntegerField())
    complete = BooleanField()
    seen = IntegerField()
    total = IntegerField()
    cursor = CharField(required=False)


#: result for one job, or a list of them
PRODUCED: Final = PolymorphicProxySerializer(
    component_name="ProducedOneOrMany", serializers=[Produced, Results], resource_type_field_name=None
)
#: results for jobs that were named, or counts for those that were not
CHANGED: Final = PolymorphicProxySerializer(
    component_name="Changed", serializers=[Results, Bulk], resource_type_field_name=None
)


# -- held jobs -------------------------------------------------------------------------------------------------------


class HeldJob(Shown):
    """Job that the caller holds until `lease_ends`. Its content is not masked.

    Attributes:
        lease: opaque; send it back with every verb on the held job.
        task: "raw" in a queue of kind pull.
        body: if the bytes are UTF-8 text.
        body_base64: if they are not.
        args: as stored: a value that JSON lacks is an object with one member, whose name says what it is, for instance
            `{"$dt": "2026-11-21T11:23:43+01:00"}` for a moment; $d date, $t time, $td span in microseconds, $dec
            decimal, $uuid UUID, $b bytes in base64.
        kwargs: like `args`.
        payloads: like `args`.
        created: when it was first scheduled, on the caller's clock; null if the call may repeat.
        attempt: number of this counted attempt; the first is 1.
        noe: how often it was reserved before, counted or not.
        releases: how often it was put back uncounted.
        lives: remaining attempts, this one included.
    """

    queue = CharField()
    id = CharField()
    lease = CharField()
    key = HexField()
    task = CharField()
    body = CharField(required=False)
    body_base64 = CharField(required=False)
    args = ListField(required=False)
    kwargs = ObjectField(required=False)
    payloads = ListField(required=False)
    due = TimeField(allow_null=True)
    created = TimeField(allow_null=True)
    vars().update({name: IntegerField() for name in ("attempt", "failures", "noe", "releases", "lives")})
    context = ObjectField()  # type: ignore[assignment]
    lease_ends = TimeField(allow_null=True)


class HeldJobs(Shown):
    """Reserved jobs; an empty list if none was due in time.

    Attributes:
        deadline_soon: true: a lease in `holding` ends within `deadline_margin`; touch or end its job now.
    """

    jobs = HeldJob(many=True)
    deadline_soon = BooleanField(required=False)


class Counted(Shown):
    """Result of ending one job.

    Attributes:
        counted: false: the lease was lost, and nothing was changed.
    """

    id = CharField()
    counted = BooleanField()


class Settled(Shown):
    """Results of ending jobs, in the order of the request."""

    results = Counted(many=True)


class Extended(Shown):
    """Result of touching one job.

    Attributes:
        held: false: the lease was lost.
        stopping: the job was cancelled; end it soon.
    """

    id = CharField()
    held = BooleanField()
    stopping = BooleanField()
    lease_ends = TimeField(allow_null=True)


class Touched(Shown):
    """Results of touching jobs, in the order of the request."""

    results = Extended(many=True)


# -- workers, recurring tasks, the deployment ------------------------------------------------------------------------


class RunningJob(Shown):
    """Job that one thread ran at the last heartbeat.

    Attributes:
        slot: number of the thread.
        ids: number of jobs in this call of the handler; `id` is the first of them.
        lease_ends: only in the response for one worker; null if the worker has lost the job.
    """

    slot = IntegerField()
    queue = CharField()
    id = CharField()
    task = CharField()
    started = TimeField(source="started_ms", allow_null=True)
    ids = IntegerField()
    lease_ends = DateTimeField(**OPTIONAL, allow_null=True)


class Worker(Shown):
    """Worker process as of its last heartbeat.

    Attributes:
        queues: served queues.
        ignored: queues that operators took from its program (`ignore`).
        running: busy threads.
        dispatcher: it also runs the dispatcher.
        quarantine: it runs jobs in quarantine, one at a time.
        seconds_ago: since its last heartbeat.
        lost: no heartbeat for half a minute.
        jobs: at most 64, the longest running first.
    """

    name = CharField()
    host = CharField()
    pid = IntegerField(allow_null=True)
    queues = ListField()
    ignored = ListField()
    threads = IntegerField()
    running = IntegerField()
    dispatcher = BooleanField()
    quarantine = BooleanField()
    stopping = BooleanField()
    started = TimeField(source="started_ms", allow_null=True)
    rss_mib = IntegerField(allow_null=True)
    seen = TimeField(source="seen_ms", allow_null=True)
    seconds_ago = RoundedField()
    lost = BooleanField()
    jobs = RunningJob(many=True)


class Workers(Shown):
    """All worker processes, by name."""

    workers = Worker(many=True)


class Command(Shown):
    """Command sent to a worker."""

    worker = CharField()
    command = CharField()


class Dump(Shown):
    """Stacks of all threads of a worker.

    Attributes:
        stacks: as Python prints them, at most 64 KiB.
    """

    worker = CharField()
    taken = TimeField(allow_null=True)
    stacks = CharField()


class Recurring(Shown):
    """Recurring task of the project, as the responding process knows it, or a pause of one that it does not have.

    Attributes:
        task: its name.
        queue: null = the process has no such task, only its pause.
        schedule: as in the task's options.
        timezone: of a cron expression; null = UTC, or it has none.
        missed: once: the latest missed tick fires late; skip: it does not fire.
        last_tick: the last one that fired.
        next_tick: null while the task is paused.
        paused: since when its ticks do not fire; null = they do.
    """

    task = CharField()
    vars().update({name: CharField(allow_null=True) for name in ("queue", "schedule", "timezone", "missed")})
    vars().update({name: TimeField(allow_null=True) for name in ("last_tick", "next_tick", "paused")})


class RecurringTasks(Shown):
    """Recurring tasks, by name."""

    recurring = Recurring(many=True)


class Status(Shown):
    """Full status. Any release may add members.

    Attributes:
        now: Redis's clock.
        totals: of all queues; `busy` of `threads` run a job.
        queues: counts, counters, policy, lateness and duration of attempts of each.
        workers: last heartbeat of each.
        recurring: recurring tasks registered in the responding process, with their last and next tick and pause.
        redis: version, memory, persistence, clients.
        producers_paused: since when the producers of all queues are paused.
        unreachable: of a cluster: the nodes that do not answer, with their `slots`, the number of `shards` of each
            queue there, and `registry`: true if queues and workers may be incomplete.
        outbox: durable jobs in the database.
    """

    now = TimeField()
    totals = ObjectField()
    queues = ListField()
    workers = ListField()
    recurring = ListField()
    redis = ObjectField()
    producers_paused = TimeField(allow_null=True)
    unreachable = ListField()
    outbox = ObjectField(required=False)


class Health(Shown):
    """State of the process and its systems: ok or away."""

    status = CharField()
    redis = CharField(required=False)
    database = CharField(required=False)
