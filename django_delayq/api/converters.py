"""Path converter for job ids, which may contain any character, newlines included."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import PathConverter


class AnythingConverter(PathConverter):
    """Converter like ``path`` that also matches newlines.

    ``path`` stops at a newline, and such URLs would not match any of our patterns.
    """

    regex = r"(?s:.+)"


register_converter(AnythingConverter, "delayq_any")
