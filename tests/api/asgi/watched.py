"""Views through which a test reads the state of a server, and slows it down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import async_only_middleware

from django_delayq import connections
from django_delayq.api import waiting
from django_delayq.pull.coordinator import coordinator_of


async def waits(request: HttpRequest) -> JsonResponse:
    """Return how many requests wait, and how many of them sleep."""
    sleeping = sum(waiter.sleeping for waiter in list(coordinator_of(connections.hurried_broker())._waiters))
    return JsonResponse({"waiting": len(waiting._waits()._pending), "sleeping": sleeping})


async def handlers(request: HttpRequest) -> JsonResponse:
    """Return the signal handlers of the process."""
    return JsonResponse({name: repr(signal.getsignal(signal.Signals[name])) for name in ("SIGTERM", "SIGINT")})


@async_only_middleware
def hold_back(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponse]],
) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """Keeps an answer back for so many seconds as the request's header asks for."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        response = await get_response(request)
        await asyncio.sleep(float(request.headers.get("X-Hold-Back", 0)))
        return response

    return middleware
