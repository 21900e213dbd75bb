"""Parts of a page that update themselves.

The page holds ``<div data-live="<url>" data-version="<version>">``; a short script requests that URL every two seconds
with the version that it shows. The response is 204 (unchanged) or the part with its new version. Without JavaScript the
page is complete but does not update.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

VERSION_HEADER = "X-Live-Version"


def part(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Respond with ``template``, or with 204 if the browser already has ``context["version"]``."""
    version = str(context["version"])
    if request.headers.get(VERSION_HEADER) == version:
        response = HttpResponse(status=204)
    else:
        response = render(request, template, context)
    response[VERSION_HEADER] = version
    response["Cache-Control"] = "no-store"
    return response
