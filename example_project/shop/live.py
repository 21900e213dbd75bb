"""Parts of a page that update themselves.

The page holds ``<div data-live data-version="<version>">``; a short script requests the page again every second, with
the version that it shows in a header. The response is then 204 (unchanged) or the part with its new version. Without
JavaScript the page is complete but does not update.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

VERSION_HEADER = "X-Live-Version"


def part(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse | None:
    """Respond with ``template``, or with 204 if the browser already has ``context["version"]``.

    Returns:
        None if the whole page is requested.
    """
    shown, version = request.headers.get(VERSION_HEADER), str(context["version"])
    if shown is None:
        return None
    response = HttpResponse(status=204) if shown == version else render(request, template, context)
    response[VERSION_HEADER] = version
    response["Cache-Control"] = "no-store"
    return response
