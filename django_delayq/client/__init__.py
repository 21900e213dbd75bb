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
    ApiError,
    Conflict,
    IdTaken,
    Invalid,
    JobNotFound,
    NotAuthenticated,
    NotConfirmed,
    NotFound,
    PermissionDenied,
    QueueFull,
    QueueNotEmpty,
    QueueNotFound,
    QueuePaused,
    Throttled,
    TryLater,
    Unavailable,
)
from .jobs import AsyncHeldJob, HeldJob, Many, Produced
from .verbs import AsyncClient, Client, Options

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncHeldJob",
    "Client",
    "Conflict",
    "HeldJob",
    "IdTaken",
    "Invalid",
    "JobNotFound",
    "Many",
    "NotAuthenticated",
    "NotConfirmed",
    "NotFound",
    "Options",
    "PermissionDenied",
    "Produced",
    "QueueFull",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueuePaused",
    "Throttled",
    "TryLater",
    "Unavailable",
]
