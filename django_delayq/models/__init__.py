"""Database tables of the app.

Redis is authoritative for jobs. The tables hold changes to send to Redis, records for deduplication, and copies for
display.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..core.times import datetime_of
from .history import (
    NAME_LENGTH as NAME_LENGTH,
    HourlyStat as HourlyStat,
    PipelineRun as PipelineRun,
    PublishedHistory as PublishedHistory,
)


class JobName(models.Model):
    """Identity of one generation of a job: a later job with the same id is another generation, with another key."""

    queue = models.CharField(_("queue"), max_length=NAME_LENGTH)
    job_id = models.CharField(_("id"), max_length=NAME_LENGTH)
    task = models.CharField(_("task"), max_length=NAME_LENGTH, blank=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.queue}/{self.job_id}"


class OutboxJob(JobName):
    """Durable job: written in the caller's transaction, and kept until the job is done.

    ``state`` is the state that the database wants in Redis. ``unsent``, ``moved`` and ``cancelled`` wait to be sent to
    Redis, by the process that wrote them or else by a relay; ``sent`` is in Redis; ``buried`` is in Redis's morgue;
    ``refused`` was not accepted and waits for an operator. A row is deleted when its job is done, or its cancellation
    was sent.
    """

    class State(models.TextChoices):
        UNSENT = "unsent", _("to be sent")
        SENT = "sent", _("sent")
        MOVED = "moved", _("to be rescheduled")
        CANCELLED = "cancelled", _("to be cancelled")
        BURIED = "buried", _("in the morgue")
        REFUSED = "refused", _("refused")

    #: states of rows that wait to be sent to Redis
    WAITING: ClassVar = (State.UNSENT, State.MOVED, State.CANCELLED)
    #: states of rows whose jobs wait or run; and with those that run only if an operator sends them again
    LIVE: ClassVar = (State.UNSENT, State.SENT, State.MOVED)
    CANCELLABLE: ClassVar = (*LIVE, State.REFUSED)

    #: key of the generation; for a merged job the key of the payload
    key = models.UUIDField(_("key"), unique=True, editable=False)
    #: Unix ms, for a job with a fixed due time; None: it is due `delay_ms` after `delay_from`
    due_ms = models.BigIntegerField(_("due"), null=True)
    delay_ms = models.BigIntegerField(default=0, editable=False)
    #: start of the delay by the database's clock: at the call, or at the reschedule
    delay_from = models.DateTimeField(db_default=Now(), editable=False)
    #: the job as requested (outbox.rows.pack_job)
    record = models.BinaryField(_("record"))
    state = models.CharField(_("state"), max_length=9, choices=State, default=State.UNSENT)
    #: how often Redis refused it, and its last reply
    tries = models.PositiveIntegerField(_("tries"), default=0)
    error = models.TextField(_("error"), blank=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    #: claim of the process that sent the row last, or is sending it; None: none has sent it as it is now. A change of
    #: the row takes it away (outbox.rows.CHANGED)
    claim = models.UUIDField(null=True, editable=False)
    #: no other process sends the row before that (also the back-off after a refusal; for a refused row the time at
    #: which it was refused)
    claimed_until = models.DateTimeField(null=True, editable=False)
    sent_at = models.DateTimeField(_("sent"), null=True)
    #: when the job was last found in Redis
    checked_at = models.DateTimeField(_("last seen in Redis"), null=True)

    class Meta:
        verbose_name = _("outbox job")
        verbose_name_plural = _("outbox jobs")
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(fields=["state", "id"], name="delayq_outbox_waiting"),
            models.Index(fields=["state", "checked_at"], name="delayq_outbox_checked"),
            models.Index(fields=["queue", "job_id"], name="delayq_outbox_job"),
        ]

    #: rest of the delay, in ms, as outbox.rows.read computes it
    left_ms: int

    @property
    def job(self) -> tuple[str, str]:
        """Queue and id."""
        return self.queue, self.job_id

    @property
    def expected_ms(self) -> int:
        """Due time in Unix ms; for a delay by the database's clock."""
        return int(self.delay_from.timestamp() * 1000) + self.delay_ms if self.due_ms is None else self.due_ms

    @property
    def due(self) -> datetime:
        """Due time."""
        return datetime_of(self.expected_ms)


class InboxEntry(JobName):
    """Generation whose effects are in this database (``@exactly_once``), or what a keyed request of the API has done.

    Such a request created durable jobs, or cancelled or moved jobs. The entry keeps the effects, or the request, from
    being repeated.
    """

    key = models.UUIDField(_("key"), primary_key=True, editable=False)
    created_at = models.DateTimeField(_("done"), db_default=Now(), db_index=True)

    class Meta:
        verbose_name = _("inbox entry")
        verbose_name_plural = _("inbox entries")
        default_permissions = ("view",)


class MirroredJob(JobName):
    """Copy of a job in Redis, made by the dispatcher."""

    key = models.UUIDField(_("key"))
    shard = models.PositiveIntegerField(_("shard"))
    priority = models.PositiveSmallIntegerField(_("priority"))
    merged = models.BooleanField(_("merged"), default=False)
    failures = models.PositiveIntegerField(_("failures"))
    crashes = models.PositiveIntegerField(_("crashes"))
    due_at = models.DateTimeField(_("due"))
    error_class = models.CharField(_("error class"), max_length=NAME_LENGTH, blank=True)
    error_message = models.TextField(_("error"), blank=True)
    error_traceback = models.TextField(_("traceback"), blank=True)
    #: the encoded arguments, if they are small enough to be copied; None = too large
    args = models.BinaryField(_("arguments"), null=True)
    #: the job's own options and context, canonical JSON
    options = models.BinaryField(_("options"), default=b"")
    payload_count = models.PositiveIntegerField(_("payloads"), default=0)
    #: position in Redis's index, µs
    updated_us = models.BigIntegerField()
    #: when it was copied
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        abstract = True


def _indexes_of_mirror(name: str, moment: str, **filters: str) -> list[models.Index]:
    """Return the indexes of a mirror: for its filters, in the order of ``moment``, for ids, and for the dispatcher."""
    columns = {"queue": "queue", "task": "task", "error": "error_class", "attempt": "failures", **filters}
    return [
        models.Index(fields=[moment, "id"], name=f"delayq_{name}_at"),
        *(models.Index(fields=[column, moment], name=f"delayq_{name}_{end}") for end, column in columns.items()),
        # The operator class makes it serve "begins with" on PostgreSQL; other databases ignore it.
        models.Index(fields=["job_id"], name=f"delayq_{name}_id", opclasses=["varchar_pattern_ops"]),
        models.Index(fields=["queue", "shard", "updated_us"], name=f"delayq_{name}_place"),
    ]


class FailedJob(MirroredJob):
    """Mirror of a job that failed and waits for its next attempt."""

    failed_at = models.DateTimeField(_("failed"))

    class Meta:
        verbose_name = _("failed job")
        verbose_name_plural = _("failed jobs")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("retry_failedjob", _("Can retry failed jobs")),
            ("discard_failedjob", _("Can discard failed jobs")),
            ("bury_failedjob", _("Can bury failed jobs")),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["queue", "job_id"], name="delayq_failed_job")]
        indexes: ClassVar = _indexes_of_mirror("failed", "failed_at")


class MorgueJob(MirroredJob):
    """Mirror of a job in the morgue, which is not retried unless an operator requests it."""

    buried_at = models.DateTimeField(_("buried"))
    #: exhausted, buried, buried by an operator, poison, unknown task, undecodable, …
    reason = models.CharField(_("reason"), max_length=NAME_LENGTH, blank=True)
    outcome = models.CharField(_("outcome"), max_length=NAME_LENGTH, blank=True)

    class Meta:
        verbose_name = _("job in the morgue")
        verbose_name_plural = _("jobs in the morgue")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("retry_morguejob", _("Can retry jobs in the morgue")),
            ("edit_morguejob", _("Can retry jobs in the morgue with other content")),
            ("discard_morguejob", _("Can discard jobs in the morgue")),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["queue", "job_id", "key"], name="delayq_morgue_job")]
        indexes: ClassVar = _indexes_of_mirror("morgue", "buried_at", reason="reason")


class BulkAction(models.Model):
    """Action on many jobs, run by a worker in chunks."""

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")
        FAILED = "failed", _("failed")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    #: retry, discard, bury, …
    action = models.CharField(_("action"), max_length=30)
    #: selected jobs: the model's name, and the filters
    target = models.CharField(_("target"), max_length=30)
    filters = models.JSONField(_("filters"), default=dict)
    options = models.JSONField(_("options"), default=dict)
    state = models.CharField(_("state"), max_length=7, choices=State, default=State.WAITING)
    total = models.PositiveBigIntegerField(_("jobs"), default=0)
    done = models.PositiveBigIntegerField(_("done"), default=0)
    #: outcome -> number
    counts = models.JSONField(_("outcomes"), default=dict)
    #: primary key of the last processed row
    position = models.PositiveBigIntegerField(default=0)
    error = models.TextField(_("error"), blank=True)
    #: name of the user, and their primary key as text: no foreign key, because not every project has users
    ordered_by = models.CharField(_("ordered by"), max_length=NAME_LENGTH, blank=True)
    ordered_by_pk = models.CharField(max_length=NAME_LENGTH, blank=True, editable=False)
    created_at = models.DateTimeField(_("ordered"), db_default=Now())
    ended_at = models.DateTimeField(_("ended"), null=True)

    class Meta:
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        default_permissions = ("view",)
        permissions: ClassVar = [("stop_bulkaction", _("Can stop bulk actions"))]
        ordering: ClassVar = ["-created_at"]
        indexes: ClassVar = [models.Index(fields=["created_at", "id"], name="delayq_bulk_at")]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"


# -- models without tables, for pages over Redis, the HTTP API, and their permissions ---------------------------------


class _Unmanaged(models.Model):
    """Model without a table."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self._meta.verbose_name)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError: there is no table, Redis is authoritative."""
        raise TypeError(f"{type(self).__name__} has no table; use the verbs of django_delayq")


class LiveJob(_Unmanaged):
    """Live jobs in Redis."""

    class Meta:
        managed = False
        verbose_name = _("job")
        verbose_name_plural = _("jobs (live)")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("run_livejob", _("Can run waiting jobs now, and reschedule them")),
            ("cancel_livejob", _("Can cancel jobs")),
        ]


class QueueEntry(_Unmanaged):
    """Queues in Redis."""

    class Meta:
        managed = False
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("pause_queueentry", _("Can pause and resume queues")),
            ("run_queueentry", _("Can make all jobs of a queue due now")),
            ("purge_queueentry", _("Can purge queues")),
            ("create_queueentry", _("Can create queues")),
            ("limit_queueentry", _("Can change the limits of queues")),
            ("reshard_queueentry", _("Can change the number of shards of queues")),
            ("delete_queueentry", _("Can delete queues")),
            ("stop_queueentry", _("Can stop and drain workers")),
            ("dump_queueentry", _("Can dump the stacks of workers")),
        ]


class Dashboard(_Unmanaged):
    """Live numbers of all queues."""

    class Meta:
        managed = False
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
        default_permissions = ("view",)


class HttpApi(_Unmanaged):
    """Permissions of a user, or of a program with the user's token, for the HTTP API."""

    class Meta:
        managed = False
        verbose_name = _("HTTP API")
        verbose_name_plural = _("HTTP API")
        default_permissions = ()
        permissions: ClassVar = [
            ("api_view", _("HTTP API: can see queues, jobs, workers and metrics")),
            ("api_produce", _("HTTP API: can schedule jobs")),
            ("api_consume", _("HTTP API: can reserve and settle jobs")),
            ("api_operate", _("HTTP API: can pause queues, and cancel, reschedule and kick jobs")),
            ("api_admin", _("HTTP API: can create, reshard and delete queues, and stop workers")),
        ]
