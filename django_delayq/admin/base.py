"""Bases of all admin pages: permissions, addresses, rendering, the log; read-only tables; pages over Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Final

import django
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from ..core.errors import Misconfigured, QueueUnavailable
from ..status.snapshot import unreachable_parts
from .formatting import grouped

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet

    from ..core.broker import Broker
    from ..core.counts import Counts

    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin

View = Callable[..., HttpResponse]

#: lists count, and page through, at most so many rows; filters lead to others
COUNT_CAP: Final = 10_000


def column(field: str, show: Callable[[Any], object], description: Any, *, ordering: str | None = None) -> Any:
    """Return a column of a list, or a line of a row's page, that shows one field of the row.

    Args:
        field: name of the field.
        show: function that formats its value.
        description: heading.
        ordering: field by which the list can be sorted.
    """

    @admin.display(description=description, ordering=ordering)
    def display(self: Any, row: Any) -> object:
        return show(getattr(row, field))

    return display


class AdminPages(Base):
    """Admin whose objects are neither added, changed nor deleted by hand; with pages and permissions of our own."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: nothing is added by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the verbs have permissions of their own."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: nothing is deleted by hand."""
        return False

    def may(self, request: HttpRequest, verb: str) -> bool:
        """Return True if the user has the permission ``<verb>_<model>`` of this app and may view the model."""
        user: Any = request.user
        allowed: bool = user.has_perm(f"{self.opts.app_label}.{verb}_{self.opts.model_name}")
        return allowed and self.has_view_permission(request)

    def url_name(self, name: str) -> str:
        """Return the name of a URL of this model, without the namespace."""
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def url(self, name: str, *args: object) -> str:
        """Return the URL of a page of this model: changelist, change, or one of ours."""
        return self._reverse(self.url_name(name), *args)

    def url_of(self, model: str, name: str, *args: object) -> str:
        """Return a URL of another model of this app; "" if the site does not have it."""
        try:
            return self._reverse(f"{self.opts.app_label}_{model}_{name}", *args)
        except NoReverseMatch:
            return ""

    def _reverse(self, name: str, *args: object) -> str:
        quoted = [quote(str(one)) for one in args]
        return reverse(f"admin:{name}", args=quoted, current_app=self.admin_site.name)

    def page_context(self, trail: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Return the breadcrumbs: those up to the list of this model, then ``trail`` with (name, URL) of each step."""
        label, site = self.opts.app_label, self.admin_site.name
        return {
            "crumbs": [
                (_("Home"), reverse("admin:index", current_app=site)),
                (
                    capfirst(self.opts.app_config.verbose_name),
                    reverse("admin:app_list", args=[label], current_app=site),
                ),
                (capfirst(self.opts.verbose_name_plural), self.url("changelist")),
                *trail,
            ],
            # From Django 6.1 on breadcrumbs are a list.
            "crumbs_as_list": django.VERSION >= (6, 1),
        }

    def render(
        self,
        request: HttpRequest,
        template: str,
        title: object,
        context: Mapping[str, Any],
        *,
        trail: Iterable[tuple[str, str]] = (),
        status: int = 200,
    ) -> HttpResponse:
        """Render one of our pages in the admin's layout.

        Args:
            request: the request.
            template: name of the template.
            title: title of the page.
            context: further template variables.
            trail: see :meth:`page_context`.
            status: HTTP status.
        """
        request.current_app = self.admin_site.name
        layout = {**self.admin_site.each_context(request), **self.page_context(trail)}
        full = {**layout, "opts": self.opts, "title": title, "media": self.media, **context}
        return TemplateResponse(request, f"django_delayq/admin/{template}.html", full, status=status)


# -- tables ------------------------------------------------------------------------------------------------------------


class CappedCount(int):
    """Number of rows; ``capped`` if there are more than were counted."""

    capped = False

    def __str__(self) -> str:
        return f"{grouped(self)}+" if self.capped else grouped(self)


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Paginator of the first :data:`COUNT_CAP` rows, so that no page counts or skips a whole large table."""

    @cached_property
    def count(self) -> int:
        """Number of rows, at most the cap."""
        rows: Any = self.object_list
        counted = rows.order_by().values("pk")[: COUNT_CAP + 1].count()
        count = CappedCount(min(counted, COUNT_CAP))
        count.capped = counted > COUNT_CAP
        return count


class TableAdmin(AdminPages):
    """Read-only admin of a table; rows are changed only by actions."""

    #: explanation below the title of the list
    list_subtitle: Any = None
    list_per_page = 100
    list_max_show_all = 0
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER

    class Media:
        css: ClassVar = {"all": ("django_delayq/admin.css",)}

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return True for our own filters only.

        Any other condition on a column would let users guess its masked content, and would be missing from a bulk
        action on all matching rows.
        """
        return lookup in {getattr(one, "parameter_name", f"{one}__exact") for one in self.list_filter}

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the change list, also stored on the request for actions."""
        change_list = super().get_changelist_instance(request)
        request.delayq_changelist = change_list  # type: ignore[attr-defined]
        return change_list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Render the list with its plain name and explanation. NUL characters are dropped: PostgreSQL refuses them."""
        request.GET = QueryDict(request.GET.urlencode().replace("%00", ""))
        context = {"title": capfirst(self.opts.verbose_name_plural), "subtitle": self.list_subtitle}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the rows that :meth:`searched` finds; all without a search."""
        term = search_term.strip()
        return (self.searched(queryset, term) if term else queryset), False

    def searched(self, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """Return the rows that a search finds, by look-ups in an index; all rows where there is no search box."""
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row of a URL; None for an invalid key."""
        try:
            return super().get_object(request, object_id, from_field)
        except (ValidationError, ValueError, OverflowError):
            return None

    def object_or_404(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row of a URL.

        Raises:
            Http404: there is none.
        """
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404(f"no {self.opts.verbose_name} {object_id[:100]!r} exists; it may have been removed")
        return row

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Run an action; report invalid keys in the selection instead of failing."""
        key: Any = self.opts.pk
        try:
            for value in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME):
                key.to_python(value)
        except (ValidationError, ValueError):
            self.message_user(request, _("The selection could not be read. Nothing was done."), messages.ERROR)
            return None
        return super().response_action(request, queryset, *args, **kwargs)

    def note(self, request: HttpRequest, rows: Sequence[Model], flag: int, message: str) -> None:
        """Record in the admin's log what the user did to these rows."""
        user: Any = request.user
        if rows:
            manager: Any = LogEntry.objects
            manager.log_actions(user_id=user.pk, queryset=rows, action_flag=flag, change_message=message)


# -- pages over Redis --------------------------------------------------------------------------------------------------


class RedisPages(AdminPages):
    """Pages of an unmanaged model, which provides the menu entry, the URLs and the permissions.

    Subclasses define their pages in :meth:`pages`. Stored text reaches them only through the templates' escaping.
    """

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
        return HttpResponseRedirect(self.url("change", unquote(object_id)))

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

    def unavailable(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Render an error page with status 503 while Redis is unavailable."""
        context = {"error": error, "changing": request.method == "POST", "again": request.get_full_path()}
        response = self.render(request, "page", _("Redis does not answer"), context, status=503)
        response["Retry-After"] = "5"
        return response

    def warn_of_missing(self, request: HttpRequest, broker: Broker, counts: Sequence[Counts]) -> None:
        """Tell the user which parts of a cluster do not answer and are missing on the page."""
        for part in unreachable_parts(broker, counts):
            messages.warning(request, str(part))

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
