"""The admin: what failed, what waits, what runs, and the buttons to repair it. One module for each kind of page.

The pages are registered with the default site, unless ``DELAYQ["ADMIN"]["register"]`` is False. A site of the project's
own gets them by::

    from django_delayq.admin import register

    register(my_site)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin

from ..models import (
    BulkAction,
    Dashboard,
    FailedJob,
    HourlyStat,
    InboxEntry,
    LiveJob,
    MorgueJob,
    OutboxJob,
    PipelineRun,
    QueueEntry,
)
from ..settings.conf import conf_or_defaults
from .bulk import BulkActionAdmin
from .dashboard import DashboardAdmin
from .failed import FailedJobAdmin
from .history import HourlyStatAdmin
from .history_runs import PipelineRunAdmin
from .inbox import InboxEntryAdmin
from .live import LiveJobAdmin
from .morgue import MorgueJobAdmin
from .outbox import OutboxJobAdmin
from .queues import QueueEntryAdmin

if TYPE_CHECKING:
    from django.contrib.admin.sites import AdminSite

__all__ = ["PAGES", "register"]

#: model → its page
PAGES: Final[dict[Any, Any]] = {
    Dashboard: DashboardAdmin,
    LiveJob: LiveJobAdmin,
    QueueEntry: QueueEntryAdmin,
    FailedJob: FailedJobAdmin,
    MorgueJob: MorgueJobAdmin,
    BulkAction: BulkActionAdmin,
    OutboxJob: OutboxJobAdmin,
    InboxEntry: InboxEntryAdmin,
    HourlyStat: HourlyStatAdmin,
    PipelineRun: PipelineRunAdmin,
}


def register(site: AdminSite) -> None:
    """Gives a site all pages; those that the project registered with it itself stay."""
    for model, page in PAGES.items():
        if not site.is_registered(model):
            site.register(model, page)


if conf_or_defaults().admin.register:
    register(admin.site)
