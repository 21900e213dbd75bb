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

from .broker import Broker as Broker
from .counts import Counts as Counts
from .errors import (
    DelayQError as DelayQError,
    IdTaken as IdTaken,
    InvalidJob as InvalidJob,
    JobTimeout as JobTimeout,
    LeakedTransaction as LeakedTransaction,
    Misconfigured as Misconfigured,
    NotConfirmed as NotConfirmed,
    QueueFull as QueueFull,
    QueueUnavailable as QueueUnavailable,
)
from .job import Job as Job, NewJob as NewJob, Payload as Payload, new_id as new_id
from .job_view import JobView as JobView
from .outcomes import (
    Batch as Batch,
    Settlement as Settlement,
    Tick as Tick,
    ack as ack,
    bury as bury,
    fail as fail,
    release as release,
)
from .queue import Queue as Queue
from .reading import Inspector as Inspector, Page as Page
from .redis.connection import Connection as Connection, RedisConfig as RedisConfig, connect as connect
from .task import Registry as Registry, Task as Task, TaskOptions as TaskOptions, registry as registry
from .verdicts import Bury as Bury, Release as Release, Retry as Retry, Verdict as Verdict
