"""What an address may hold in the place of an id: any character, a line's end too."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import PathConverter


class AnythingConverter(PathConverter):
    """Like ``path``, which ends at a line's end, so that the rest would not be ours."""

    regex = r"(?s:.+)"


register_converter(AnythingConverter, "delayq_any")
