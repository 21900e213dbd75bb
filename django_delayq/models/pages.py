"""Models without tables: each gives pages over Redis, or the HTTP API, a place in the admin and permissions."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

__all__ = ["Dashboard", "HttpApi", "LiveJob", "QueueEntry"]


class _Unmanaged(models.Model):
    """Model without a table."""

    class Meta:
        abstract = True

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

    def __str__(self) -> str:
        return "job"


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

    def __str__(self) -> str:
        return "queue"


class Dashboard(_Unmanaged):
    """Live numbers of all queues."""

    class Meta:
        managed = False
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return "dashboard"


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

    def __str__(self) -> str:
        return "HTTP API"
