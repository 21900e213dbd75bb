"""Admin pages for queues and jobs, and actions on them. One module per kind of page.

    base, filters, formatting, forms, charts    what pages are made of
    actions     the registry of verbs, and the page that asks and runs
    content     texts of a job
    dashboard, history, jobs (with browse), queues, mirrored (failed jobs, morgue), tables (outbox, inbox, …)

The pages are registered with the default site, unless ``DELAYQ["ADMIN"]["register"]`` is False. A project with a site
of its own calls::

    from django_delayq.admin import register

    register(my_site)
"""

from __future__ import annotations

from functools import partial
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
from .dashboard import DashboardAdmin
from .history import HourlyStatAdmin
from .jobs import LiveJobAdmin
from .mirrored import FailedJobAdmin, MorgueJobAdmin
from .queues import QueueEntryAdmin
from .tables import BulkActionAdmin, InboxEntryAdmin, OutboxJobAdmin, PipelineRunAdmin

if TYPE_CHECKING:
    from django.contrib.admin.sites import AdminSite

__all__ = ["PAGES", "register"]

#: model → its page, in the order of the menu
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
    """Register all pages with a site, except for models that the project registered itself.

    A site that lists the models of an app alphabetically lists ours in the order of :data:`PAGES`.
    """
    for model, page in PAGES.items():
        if not site.is_registered(model):
            site.register(model, page)
    if site.__class__.get_app_list is admin.AdminSite.get_app_list:
        site.get_app_list = partial(_list_apps, site)  # type: ignore[method-assign]


def _list_apps(site: AdminSite, *args: Any, **options: Any) -> list[Any]:
    """Return the site's apps with our models in the order of :data:`PAGES`."""
    apps: list[Any] = admin.AdminSite.get_app_list(site, *args, **options)
    places = {model: place for place, model in enumerate(PAGES)}
    for app in apps:
        if app["app_label"] == Dashboard._meta.app_label:
            app["models"].sort(key=lambda entry: places.get(entry["model"], len(places)))
    return apps


if conf_or_defaults().admin.register:
    register(admin.site)
