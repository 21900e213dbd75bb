"""WSGI site that schedules a job for each request, and one while it is loaded (``--preload``: before the fork)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import django

django.setup()

from django_delayq import schedule  # noqa: E402

from .tasks import grind  # noqa: E402

schedule(grind, id="preloaded")


def application(request: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Schedule a job with the name of the path; return the process that did it."""
    handle = schedule(grind, id=request["PATH_INFO"].strip("/"))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {handle.outcome}".encode()]
