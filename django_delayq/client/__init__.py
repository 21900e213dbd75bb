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

from .answers import (
    Bulk,
    Counts,
    Job,
    JobError,
    Many,
    Produced,
    Producers,
    Queue,
    RecurringTask,
    RunningJob,
    Shard,
    Stat,
    Stats,
    Worker,
)
from .client import AsyncClient, Client
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
from .held import AsyncHeldJob, HeldJob
from .operating import Listing, Where
from .producing import Options

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncHeldJob",
    "Bulk",
    "Client",
    "Conflict",
    "Counts",
    "HeldJob",
    "IdTaken",
    "Invalid",
    "Job",
    "JobError",
    "JobNotFound",
    "Listing",
    "Many",
    "NotAuthenticated",
    "NotConfirmed",
    "NotFound",
    "Options",
    "PermissionDenied",
    "Produced",
    "Producers",
    "Queue",
    "QueueFull",
    "QueueNotEmpty",
    "QueueNotFound",
    "QueuePaused",
    "RecurringTask",
    "RunningJob",
    "Shard",
    "Stat",
    "Stats",
    "Throttled",
    "TryLater",
    "Unavailable",
    "Where",
    "Worker",
]
