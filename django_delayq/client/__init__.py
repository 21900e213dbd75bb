"""Clients of the HTTP API, blocking and for asyncio, for programs without Django. They need httpx (``[client]``).

Example::

    from django_delayq.client import Client

    client = Client("https://shop.example/delayq/", token="…")
    client.put("mail", b"Dear …", delay=60, id="welcome-5")
    while jobs := client.reserve("mail", max=10, wait=60):
        for job in jobs:
            with job:  # acks at the end, fails on an exception
                send(job.body)
"""

from __future__ import annotations

from .errors import (
    ApiError as ApiError,
    Conflict as Conflict,
    IdTaken as IdTaken,
    Invalid as Invalid,
    JobNotFound as JobNotFound,
    NotAuthenticated as NotAuthenticated,
    NotConfirmed as NotConfirmed,
    NotFound as NotFound,
    PermissionDenied as PermissionDenied,
    QueueFull as QueueFull,
    QueueNotEmpty as QueueNotEmpty,
    QueueNotFound as QueueNotFound,
    QueuePaused as QueuePaused,
    Throttled as Throttled,
    TryLater as TryLater,
    Unavailable as Unavailable,
)
from .jobs import AsyncHeldJob as AsyncHeldJob, HeldJob as HeldJob, Many as Many, Produced as Produced
from .verbs import AsyncClient as AsyncClient, Client as Client, Options as Options
