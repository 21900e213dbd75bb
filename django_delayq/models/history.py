"""Tables of the history."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

#: long enough for every name and id that Redis may hold
NAME_LENGTH = 255


class HourlyStat(models.Model):
    """Hourly metrics: attempts of one task in one queue that ended within one hour (UTC).

    Lateness is the time between the due time and the start of an attempt. Lateness and duration are those of the
    attempts that began (``timed``). A histogram is a list of 32 counts: first 0 ms, then for i = 1 … 30 values from
    2^(i-1) to below 2^i ms, then all longer ones. Histograms of several hours may be added.
    """

    hour = models.DateTimeField(_("hour"))
    queue = models.CharField(_("queue"), max_length=NAME_LENGTH)
    task = models.CharField(_("task"), max_length=NAME_LENGTH)
    runs = models.PositiveBigIntegerField(_("attempts"), default=0)
    succeeded = models.PositiveBigIntegerField(_("succeeded"), default=0)
    #: the handler raised, and the job is retried
    failed = models.PositiveBigIntegerField(_("failed"), default=0)
    timeout = models.PositiveBigIntegerField(_("timed out"), default=0)
    crashed = models.PositiveBigIntegerField(_("crashed"), default=0)
    #: the holder was lost; it is unknown if the attempt began
    lost = models.PositiveBigIntegerField(_("lost"), default=0)
    released = models.PositiveBigIntegerField(_("released"), default=0)
    cancelled = models.PositiveBigIntegerField(_("cancelled"), default=0)
    expired = models.PositiveBigIntegerField(_("expired"), default=0)
    #: moved to the morgue, for any reason
    buried = models.PositiveBigIntegerField(_("buried"), default=0)
    #: attempts that were not a job's first one
    retries = models.PositiveBigIntegerField(_("retries"), default=0)
    #: attempts that began later than DELAYQ["PIPELINE"]["sla"] allows
    sla_missed = models.PositiveBigIntegerField(_("too late"), default=0)
    #: attempts that have a lateness and a duration
    timed = models.PositiveBigIntegerField(_("timed"), default=0)
    lateness_p50_ms = models.PositiveBigIntegerField(_("lateness p50 (ms)"), null=True)
    lateness_p95_ms = models.PositiveBigIntegerField(_("lateness p95 (ms)"), null=True)
    lateness_p99_ms = models.PositiveBigIntegerField(_("lateness p99 (ms)"), null=True)
    lateness_max_ms = models.PositiveBigIntegerField(_("lateness max (ms)"), null=True)
    lateness_sum_ms = models.PositiveBigIntegerField(_("lateness sum (ms)"), default=0)
    duration_p50_ms = models.PositiveBigIntegerField(_("duration p50 (ms)"), null=True)
    duration_p95_ms = models.PositiveBigIntegerField(_("duration p95 (ms)"), null=True)
    duration_p99_ms = models.PositiveBigIntegerField(_("duration p99 (ms)"), null=True)
    duration_max_ms = models.PositiveBigIntegerField(_("duration max (ms)"), null=True)
    duration_sum_ms = models.PositiveBigIntegerField(_("duration sum (ms)"), default=0)
    lateness_histogram = models.JSONField(_("lateness histogram"), default=list)
    duration_histogram = models.JSONField(_("duration histogram"), default=list)

    class Meta:
        verbose_name = _("hour of the history")
        verbose_name_plural = _("history")
        default_permissions = ("view",)
        ordering: ClassVar = ["-hour", "queue", "task"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["hour", "queue", "task"], name="delayq_hour_queue_task"),
        ]
        indexes: ClassVar = [models.Index(fields=["queue", "task", "hour"], name="delayq_hour_of_task")]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.queue}/{self.task}"


class PublishedHistory(models.Model):
    """Progress of a history: the last batch of events whose hours are in :class:`HourlyStat`.

    It is written in the transaction that writes the hours.
    """

    #: id of the Delta table
    history = models.CharField(max_length=64, primary_key=True)
    batch = models.BigIntegerField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.history}"


class PipelineRun(models.Model):
    """One pipeline run: its parameters and its result."""

    class Kind(models.TextChoices):
        HISTORY = "history", _("history")
        BULK = "bulk", _("bulk load")
        RECONCILE = "reconcile", _("reconcile")
        JOBS = "jobs", _("bulk maintenance")
        BACKFILL = "backfill", _("backfill")
        COMPACT = "compact", _("compact")
        PURGE = "purge", _("purge")

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        FINISHED = "finished", _("finished")
        FAILED = "failed", _("failed")
        STOPPED = "stopped", _("stopped")

    #: for a bulk load the run id, under which it is resumed; several rows may share it
    run_id = models.CharField(_("run id"), max_length=NAME_LENGTH, db_index=True)
    kind = models.CharField(_("kind"), max_length=9, choices=Kind)
    state = models.CharField(_("state"), max_length=8, choices=State, default=State.RUNNING)
    queue = models.CharField(_("queue"), max_length=NAME_LENGTH, blank=True)
    task = models.CharField(_("task"), max_length=NAME_LENGTH, blank=True)
    started_at = models.DateTimeField(_("started"), db_default=Now())
    #: time of the last update; a run without updates for a long time has died
    seen_at = models.DateTimeField(_("last heartbeat"), db_default=Now())
    ended_at = models.DateTimeField(_("ended"), null=True)
    #: rows of the input; null = not known
    total = models.PositiveBigIntegerField(_("rows in all"), null=True)
    rows = models.PositiveBigIntegerField(_("rows"), default=0)
    created = models.PositiveBigIntegerField(_("created"), default=0)
    #: rows that were not written again, because the job existed or an earlier try had written it
    known = models.PositiveBigIntegerField(_("already existed"), default=0)
    #: rows that were refused and put into the quarantine
    bad = models.PositiveBigIntegerField(_("refused"), default=0)
    #: parameters and progress: inputs, outputs, offsets, versions, counts by outcome
    detail = models.JSONField(_("detail"), default=dict)
    error = models.TextField(_("error"), blank=True)

    class Meta:
        verbose_name = _("pipeline run")
        verbose_name_plural = _("pipeline runs")
        default_permissions = ("view",)
        ordering: ClassVar = ["-started_at", "-id"]
        indexes: ClassVar = [models.Index(fields=["started_at", "id"], name="delayq_run_at")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.run_id}"
