"""Admin of work that may still go on: the page of a row shows its progress, which a script keeps up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.urls import path

from .base import ReadOnlyAdmin

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class ProgressAdmin(ReadOnlyAdmin):
    """Read-only admin whose pages show the progress of a row."""

    change_form_template = "django_delayq/admin/progress_page.html"
    #: name of the template of the progress
    progress_template: ClassVar[str]

    class Media:
        js: ClassVar = ("django_delayq/live.js",)

    def get_urls(self) -> list[Any]:
        """Return the URLs, with that of the progress fragment."""
        view, name = self.admin_site.admin_view(self.progress_view), self.url_name("progress")
        return [path("<path:object_id>/progress/", view, name=name), *super().get_urls()]

    def title_of(self, row: Any) -> str:
        """Return the title of the page of a row."""
        raise NotImplementedError

    def progress_of(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return the variables of the progress template."""
        raise NotImplementedError

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Render the row with its progress."""
        row = self.get_object(request, unquote(object_id))
        extra = extra_context or {}
        if row is not None and self.has_view_permission(request, row):
            title = self.title_of(row)
            template = f"django_delayq/admin/{self.progress_template}.html"
            extra |= {"title": title, "subtitle": None, "progress_template": template}
            extra |= {"progress_url": self.url("progress", row.pk), **self.page_context([(title, "")])}
            extra |= self.progress_of(request, row)
        return super().change_view(request, object_id, form_url, extra)

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the progress fragment, which the page's script polls."""
        row = self.object_or_404(request, object_id)
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        response = self.render(request, self.progress_template, "", self.progress_of(request, row))
        response["Cache-Control"] = "no-store"
        return response
