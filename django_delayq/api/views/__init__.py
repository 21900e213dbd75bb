"""Views of the API, one module for each resource; each has its own ``urlpatterns``, included by ``api.urls``.

Job ids in addresses use the path converter ``delayq_any``, because an id may contain any character.
"""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import PathConverter


class AnythingConverter(PathConverter):
    """Converter like ``path`` that also matches newlines: ``path`` stops at one, and the URL would match nothing."""

    regex = r"(?s:.+)"


register_converter(AnythingConverter, "delayq_any")
