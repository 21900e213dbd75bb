"""Parts of a page that renew themselves.

The page holds ``<div data-live="<url>" data-version="<version>">``; a few lines of JavaScript ask that URL every two
seconds and tell which version they have. The answer is 204 (nothing new) or the part again with its new version.
Without JavaScript the page is complete too, it only stands still.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

VERSION_HEADER = "X-Live-Version"


def part(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Answer with ``template``, or with 204 when the browser has ``context["version"]`` already."""
    version = str(context["version"])
    if request.headers.get(VERSION_HEADER) == version:
        response = HttpResponse(status=204)
    else:
        response = render(request, template, context)
    response[VERSION_HEADER] = version
    response["Cache-Control"] = "no-store"
    return response
