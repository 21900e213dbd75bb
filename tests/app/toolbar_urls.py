"""A site with the toolbar: each address schedules in its own way."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from django_delayq import aschedule, cancel, run_now, schedule, schedule_many
from tests.app.toolbar_tasks import pack, sync


def page(words: object = "") -> HttpResponse:
    return HttpResponse(f"<html><body>{words}</body></html>")


def plain(request: HttpRequest) -> HttpResponse:
    schedule(pack, 5, id="order-5", delay=3600)
    return page()


def every_verb(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        pack.schedule(1)
        schedule(pack, 2, id="durable", durable=True)
    schedule(sync, id="c-1", payload={"n": 1}, queue="crm2")
    schedule_many(pack, [{"args": [number], "id": f"many-{number}"} for number in range(3)])
    run_now(pack, id="many-1")
    cancel(pack, id="many-1")
    cancel(pack, id="nobody")
    return page()


def refused(request: HttpRequest) -> HttpResponse:
    schedule(pack, 1, id="taken")
    try:
        schedule(pack, 1, id="taken", on_conflict="error")
    except Exception as error:
        return page(type(error).__name__)
    return page()


def hostile(request: HttpRequest) -> HttpResponse:
    schedule(pack, 1, id="<script>alert(1)</script>")
    return page()


def quiet(request: HttpRequest) -> HttpResponse:
    return page()


async def coroutine(request: HttpRequest) -> HttpResponse:
    await aschedule(pack, 7, id="async")
    return page()


views: list[Any] = [plain, every_verb, refused, hostile, quiet, coroutine]
urlpatterns = [
    *(path(f"{view.__name__}/", view) for view in views),
    path("__debug__/", include("debug_toolbar.urls")),
]
