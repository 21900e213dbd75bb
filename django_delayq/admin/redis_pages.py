"""Base of pages over Redis: admin pages without a table, permissions, and error pages while Redis is unavailable.

The model of such a page is unmanaged: it provides the menu entry, the URLs (``admin:django_delayq_<model>_…``) and the
permissions. Stored text reaches the pages only through the templates' escaping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import django
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from ..core.errors import DelayQError, Misconfigured, QueueUnavailable

__all__ = ["RedisPages"]

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin

View = Callable[..., HttpResponse]


class RedisPages(Base):
    """Pages of an unmanaged model; subclasses define theirs in :meth:`pages`."""

    def pages(self) -> list[URLPattern]:
        """Return the URL patterns, created by :meth:`page`."""
        raise NotImplementedError

    def get_urls(self) -> list[Any]:
        """Return only our own URLs, none of a table's."""
        return self.pages()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: nothing can be added here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the verbs have permissions of their own."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nothing can be deleted here."""
        return False

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Return True if the user has the permission ``<verb>_<model>`` and may view the pages."""
        held: bool = request.user.has_perm(f"{self.opts.app_label}.{verb}_{self.opts.model_name}")
        return held and self.has_view_permission(request)

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

    def url_name(self, name: str) -> str:
        """Return the name of a URL, without the namespace."""
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def url(self, name: str, *args: str) -> str:
        """Return a URL of this model; its arguments are quoted as the admin does it."""
        quoted = [quote(one) for one in args]
        return reverse(f"admin:{self.url_name(name)}", args=quoted, current_app=self.admin_site.name)

    def url_of(self, model: str, name: str, *args: str) -> str:
        """Return a URL of another model of this app; "" if the site does not have it."""
        try:
            return reverse(
                f"admin:{self.opts.app_label}_{model}_{name}",
                args=[quote(one) for one in args],
                current_app=self.admin_site.name,
            )
        except NoReverseMatch:
            return ""

    # -- responses --------------------------------------------------------------------------------------------------

    def render(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        context: Mapping[str, Any],
        *,
        trail: Iterable[tuple[str, str]] = (),
        status: int = 200,
    ) -> HttpResponse:
        """Render a page in the admin's layout.

        Args:
            request: the request.
            template: name of the template.
            title: title of the page.
            context: further template variables.
            trail: breadcrumbs (name, URL) from the list of this model to the page, included.
            status: HTTP status.
        """
        given = {
            "crumbs": [
                (_("Home"), reverse("admin:index", current_app=self.admin_site.name)),
                (
                    self.opts.app_config.verbose_name,
                    reverse("admin:app_list", args=[self.opts.app_label], current_app=self.admin_site.name),
                ),
                (capfirst(self.opts.verbose_name_plural), self.url("changelist")),
                *trail,
            ],
            "crumbs_as_list": django.VERSION >= (6, 1),
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            **context,
        }
        return TemplateResponse(request, f"django_delayq/admin/{template}.html", given, status=status)

    def unavailable(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Render an error page with status 503 while Redis is unavailable."""
        context = {"error": error, "changing": request.method == "POST", "again": request.get_full_path()}
        response = self.render(request, "unavailable", _("Redis does not answer"), context, status=503)
        response["Retry-After"] = "5"
        return response

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
