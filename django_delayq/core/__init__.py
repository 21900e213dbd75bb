"""Core of the queue, usable without Django: it needs the standard library, redis-py and msgpack only.

Application code outside Django and all other packages of the project import from here. The core imports none of them.

::

    from django_delayq.core import Broker, NewJob, RedisConfig, ack, connect

    broker = Broker(connect(RedisConfig.parse("redis://localhost:6379/0")))
    queue = broker.queue("orders")
    queue.schedule(NewJob(id="order-5", task="shop.cancel_order", args=b"[5]", delay_ms=1_800_000))
    for job in queue.reserve(0, 10, worker="me").jobs:
        ...
        queue.settle([ack(job, started_ms=0, run_ms=3)])
"""

from .broker import Broker
from .counts import Counts
from .errors import (
    Bury,
    DelayQError,
    IdTaken,
    InvalidJob,
    JobTimeout,
    LeakedTransaction,
    Misconfigured,
    NotConfirmed,
    QueueFull,
    QueueUnavailable,
    Release,
    Retry,
    Verdict,
)
from .job import Job, NewJob, Payload, new_id
from .job_view import JobView
from .outcomes import Batch, Settlement, Tick, ack, bury, fail, release
from .queue import Queue
from .reading import Inspector, Page
from .redis.connection import Connection, RedisConfig, connect
from .task import Registry, Task, TaskOptions, registry

__all__ = [
    "Batch",
    "Broker",
    "Bury",
    "Connection",
    "Counts",
    "DelayQError",
    "IdTaken",
    "Inspector",
    "InvalidJob",
    "Job",
    "JobTimeout",
    "JobView",
    "LeakedTransaction",
    "Misconfigured",
    "NewJob",
    "NotConfirmed",
    "Page",
    "Payload",
    "Queue",
    "QueueFull",
    "QueueUnavailable",
    "RedisConfig",
    "Registry",
    "Release",
    "Retry",
    "Settlement",
    "Task",
    "TaskOptions",
    "Tick",
    "Verdict",
    "ack",
    "bury",
    "connect",
    "fail",
    "new_id",
    "registry",
    "release",
]
