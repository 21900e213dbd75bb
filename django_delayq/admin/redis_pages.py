"""Base of pages over Redis: admin pages without a table, permissions, and error pages while Redis is unavailable.

The model of such a page is unmanaged: it provides the menu entry, the URLs (``admin:django_delayq_<model>_…``) and the
permissions. Stored text reaches the pages only through the templates' escaping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from ..core.errors import DelayQError, Misconfigured, QueueUnavailable
from ..status.reading import unreachable_parts
from .base import AdminPages

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts

View = Callable[..., HttpResponse]


class RedisPages(AdminPages):
    """Pages of an unmanaged model; subclasses define theirs in :meth:`pages`."""

    def pages(self) -> list[URLPattern]:
        """Return the URL patterns, created by :meth:`page`."""
        raise NotImplementedError

    def get_urls(self) -> list[Any]:
        """Return only our own URLs, none of a table's. As in all of the admin, ``<object>/`` leads to its page."""
        pages = self.pages()
        if self.url_name("change") not in {one.name for one in pages}:
            return pages
        return [*pages, self.page("<path:object_id>/", self.object_view, "object")]

    def object_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the page of an object."""
        return self.back(self.url("change", unquote(object_id)))

    # -- addresses ---------------------------------------------------------------------------------------------------

    def page(self, route: str, view: View, name: str, *, verb: str = "", methods: str = "GET HEAD") -> URLPattern:
        """Return a URL pattern of this model with a guarded view.

        Args:
            route: the route.
            view: the view.
            name: name of the URL, without app and model.
            verb: the permission needed besides that to view.
            methods: allowed HTTP methods.
        """

        def guarded(request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
            request.current_app = self.admin_site.name
            if not (self.may(request, verb) if verb else self.has_view_permission(request)):
                raise PermissionDenied
            if request.method not in methods.split():
                return HttpResponseNotAllowed(methods.split())
            try:
                return view(request, *args, **named)
            except (QueueUnavailable, Misconfigured, RedisError) as error:
                return self.unavailable(request, error)

        # Outside the request's transaction: a verb is sent at once, so that its outcome can be shown.
        site_view = self.admin_site.admin_view(update_wrapper(guarded, view))
        return path(route, transaction.non_atomic_requests(site_view), name=self.url_name(name))

    # -- responses --------------------------------------------------------------------------------------------------

    def unavailable(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Render an error page with status 503 while Redis is unavailable."""
        context = {"error": error, "changing": request.method == "POST", "again": request.get_full_path()}
        response = self.render(request, "unavailable", _("Redis does not answer"), context, status=503)
        response["Retry-After"] = "5"
        return response

    def warn_of_missing(self, request: HttpRequest, broker: Broker, counts: Sequence[Counts]) -> None:
        """Tell the user which parts of a cluster do not answer and are missing on the page."""
        for part in unreachable_parts(broker, counts):
            messages.warning(request, str(part))

    def back(self, url: str) -> HttpResponseRedirect:
        """Redirect to another page after a verb."""
        return HttpResponseRedirect(url)

    def report_result(self, request: HttpRequest, act: Callable[[], str]) -> bool:
        """Call ``act`` and show its result to the user; return False after an error, which is shown, too."""
        try:
            text = act()
        except (QueueUnavailable, Misconfigured):
            raise
        except DelayQError as error:
            messages.error(request, str(error))
            return False
        if text:
            messages.success(request, text)
        return True

    def note(self, request: HttpRequest, name: str, what: str) -> None:
        """Record in the admin's history what the user did to which job or queue."""
        if not request.user.is_authenticated:
            raise PermissionDenied
        LogEntry.objects.create(
            user=request.user,
            content_type=ContentType.objects.get_for_model(self.model, for_concrete_model=False),
            object_id=name,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=what,
        )
