"""Admin pages for failed, waiting and running jobs, and actions to repair them. One module per kind of page.

The pages are registered with the default site, unless ``DELAYQ["ADMIN"]["register"]`` is False. A project with a site
of its own calls::

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
    """Register all pages with a site, except for models that the project registered itself."""
    for model, page in PAGES.items():
        if not site.is_registered(model):
            site.register(model, page)


if conf_or_defaults().admin.register:
    register(admin.site)
