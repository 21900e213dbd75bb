"""Sections of the ``DELAYQ`` setting: each a frozen dataclass that checks its values, with a comment for each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.records.keys import MAX_SHARDS
from ..masking import SENSITIVE
from .values import choice, dotted_path, flag, number, queue_name, strings, whole

SPLITTERS: Final = ("default", "rendezvous", "by_node")
#: actions of HTTP API routes that can be throttled: the permission that a route requires
THROTTLES: Final = ("view", "produce", "consume", "operate", "admin")
_RATE: Final = re.compile(r"[1-9]\d*/(s|sec|second|m|min|minute|h|hour|d|day)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConf:
    """One entry of ``DELAYQ["QUEUES"]``: how a queue is created. Queues without an entry use the defaults."""

    #: parts of the queue, each in one Redis slot; Redis keeps the number that the queue was created with. None = the
    #: number that a task of the queue names, else 1
    shards: int | None = None
    #: "python" = run by workers; "pull" = raw bytes for other consumers, workers never reserve from it
    kind: str = "python"
    #: how often workers visit it, relative to a queue of weight 1
    weight: float = 1.0
    #: maximum number of live jobs; further ones are refused with QueueFull. Divided among the shards. None = no limit
    max_length: int | None = None
    #: maximum number of jobs in its morgue, the oldest are removed first; None = no limit
    morgue_max: int | None = None
    #: seconds that a job stays in its morgue; None = forever
    morgue_ttl: float | None = None
    #: "strict" = a more urgent class always goes first; "weighted" = it goes first more often
    priorities: str = "strict"
    #: its jobs are durable (kept in the database until they are done), unless the task or the call overrides it
    durable: bool = False

    def __post_init__(self) -> None:
        if self.shards is not None:
            whole("shards", self.shards, 1, MAX_SHARDS)
        number("weight", self.weight, 0.001, unit="")
        choice("kind", self.kind, ("python", "pull"))
        choice("priorities", self.priorities, ("strict", "weighted"))
        if flag("durable", self.durable) and self.kind == "pull":
            raise Misconfigured("durable is for jobs of tasks; the bytes of a queue of kind 'pull' are in Redis only")
        for name in ("max_length", "morgue_max"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, 1 << 40)
        if self.morgue_ttl is not None:
            number("morgue_ttl", self.morgue_ttl, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConf:
    """``DELAYQ["WORKER"]``: defaults of ``manage.py delayq_worker``; its options override them."""

    #: processes that the supervisor keeps running
    processes: int = 1
    #: maximum number of extra processes for jobs in quarantine, each for one job at a time
    quarantine: int = 2
    #: jobs that one process runs at the same time
    threads: int = 5
    #: queues to serve; None = every queue of kind "python"
    queues: tuple[str, ...] | None = None
    #: seconds that running jobs get to finish after SIGTERM
    grace: float = 25.0
    #: a process is replaced after this many jobs; None = never
    max_jobs: int | None = None
    #: a process is replaced when it uses more than this many MiB of memory; None = never
    max_rss: int | None = None
    #: also do the housekeeping (wake, reap) of the queues
    dispatcher: bool = True
    #: milliseconds of measured work that a process may hold beyond its free threads
    prefetch_ms: float = 50.0
    #: seconds between two renewals of the leases; at least three of them must fit into LEASE
    heartbeat: float = 5.0
    #: order of several queues with due work: "weighted", "seq" (in turn) or "lag" (longest overdue)
    scheduler: str = "weighted"
    #: order in which a process visits shards: "default", "rendezvous", "by_node" or the dotted path of a function
    splitter: str = "default"
    #: splitter "by_node": number of machines that share the work
    nodes: int = 1
    #: splitter "by_node": number of this machine, counted from 0
    node: int = 0
    #: seconds that a database connection is kept between jobs; None = leave Django's CONN_MAX_AGE alone
    conn_max_age: float | None = 60.0
    #: check a kept database connection before its first use by a job
    conn_health_checks: bool = True

    def __post_init__(self) -> None:
        whole("processes", self.processes, 1, 1024)
        whole("quarantine", self.quarantine, 1, 1024)
        whole("threads", self.threads, 1, 1024)
        number("grace", self.grace, 0)
        number("prefetch_ms", self.prefetch_ms, 0, unit="milliseconds")
        number("heartbeat", self.heartbeat, 0.01)
        choice("scheduler", self.scheduler, ("weighted", "seq", "lag"))
        if self.splitter not in SPLITTERS and "." not in str(self.splitter):
            raise Misconfigured(
                f"splitter must be {', '.join(SPLITTERS)} or the dotted path of a function, got {short(self.splitter)}"
            )
        whole("nodes", self.nodes, 1, 1 << 30)
        whole("node", self.node, 0, 1 << 30)
        for name in ("max_jobs", "max_rss"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, 1 << 40)
        flag("dispatcher", self.dispatcher)
        if self.conn_max_age is not None:
            number("conn_max_age", self.conn_max_age, 0)
        flag("conn_health_checks", self.conn_health_checks)
        if self.queues is not None:
            object.__setattr__(self, "queues", tuple(queue_name(name) for name in strings("queues", self.queues)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConf:
    """``DELAYQ["EVENTS"]``: the stream of finished attempts."""

    #: entries kept per shard
    cap: int = 10_000

    def __post_init__(self) -> None:
        whole("cap", self.cap, 0, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConf:
    """``DELAYQ["MIRROR"]``: retention in the tables of failed jobs and of the morgue."""

    #: days after which a row is removed, counted from the failure or burial; None = as long as Redis has the job
    keep_days: float | None = None
    #: maximum rows of one queue in each of the two tables, the oldest are removed first. Divided among the shards
    max_rows: int = 1_000_000

    def __post_init__(self) -> None:
        if self.keep_days is not None:
            number("keep_days", self.keep_days, 0.001, unit="days")
        whole("max_rows", self.max_rows, 1, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConf:
    """``DELAYQ["HOOKS"]``: dotted paths of functions of the project that a worker calls."""

    #: called without arguments in each worker process, after Django is set up and before its first job; an error ends
    #: the process
    worker_init: str | None = None
    #: called without arguments before a process ends although jobs still run in it (flush logs); there is little time
    #: left
    last_words: str | None = None
    #: called with the exception of a failed attempt; returns the error to store. A text replaces its message, a dict
    #: adds fields, bytes are stored as they are. If it fails itself, that is logged and the usual form is stored
    format_error: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) is not None:
                dotted_path(one.name, getattr(self, one.name))

    def paths(self) -> dict[str, str]:
        """Return the configured hooks by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConf:
    """``DELAYQ["ADMIN"]``: the pages of django.contrib.admin."""

    #: register them with the default site; False = the project calls ``django_delayq.admin.register(site)``
    register: bool = True
    #: words in names of arguments, payload fields and options whose values are masked for all users (see masking)
    sensitive: tuple[str, ...] = SENSITIVE
    #: actions on more jobs than this are run by a worker
    bulk_threshold: int = 500
    #: lists stop counting at this number
    count_cap: int = 10_000
    #: seconds after its due time from which a waiting job is shown as late
    late_after: float = 60.0

    def __post_init__(self) -> None:
        flag("register", self.register)
        object.__setattr__(self, "sensitive", strings("sensitive", self.sensitive))
        whole("bulk_threshold", self.bulk_threshold, 0, 10_000)
        whole("count_cap", self.count_cap, 100, 1 << 30)
        number("late_after", self.late_after, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxConf:
    """``DELAYQ["OUTBOX"]``: handling of durable jobs between the database and Redis."""

    #: accept durable jobs; False = a call that requests one is refused
    enabled: bool = True
    #: seconds that a request waits for Redis after a commit; then durable jobs are left to the relay, others are lost
    budget: float = 0.2
    #: databases whose outbox is processed; the same in every process of the deployment
    databases: tuple[str, ...] = ("default",)
    #: number of rows that are claimed, sent or looked up together
    batch: int = 500
    #: consecutive errors of one row after which it is refused and waits for an operator
    max_tries: int = 10
    #: seconds after which a job that was sent, but is unknown to Redis, counts as lost and is sent again
    resubmit_after: float = 60.0
    #: seconds between two checks that Redis still has a job that was sent
    recheck_every: float = 600.0
    #: days that a refused row is kept
    keep_days: float = 30.0

    def __post_init__(self) -> None:
        flag("enabled", self.enabled)
        number("budget", self.budget, 0.01, 1)
        object.__setattr__(self, "databases", strings("databases", self.databases))
        if not self.databases:
            raise Misconfigured("databases must name at least one alias of DATABASES, like ['default']")
        whole("batch", self.batch, 1, 10_000)
        whole("max_tries", self.max_tries, 1, 1_000_000)
        number("resubmit_after", self.resubmit_after, 0.1)
        number("recheck_every", self.recheck_every, 1)
        number("keep_days", self.keep_days, 0, unit="days")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxConf:
    """``DELAYQ["INBOX"]``: retention of records of ``@exactly_once`` and of API requests that create durable jobs."""

    #: days that an entry is kept: longer than a job may be delayed and retried
    keep_days: float = 30.0

    def __post_init__(self) -> None:
        number("keep_days", self.keep_days, 0.001, unit="days")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConf:
    """``DELAYQ["API"]``: the HTTP API, if the project includes ``django_delayq.api.urls``."""

    #: dotted paths of Django REST framework's authentication classes; None = tokens, if ``rest_framework.authtoken`` is
    #: installed, and sessions
    authentication: tuple[str, ...] | None = None
    #: dotted path of ``allow(request, action, queue) -> bool``, called after the permission checks; ``queue`` is "" for
    #: requests that concern no queue
    allow: str | None = None
    #: action (view, produce, consume, operate, admin) → rate for each user, like "1000/min"
    throttle: Mapping[str, str] = field(default_factory=dict)
    #: bytes of the largest request body
    max_body: int = 4 * 1024 * 1024
    #: maximum nesting depth of a request's JSON
    max_depth: int = 64
    #: maximum number of jobs that one request may produce or refer to
    max_jobs: int = 1000
    #: longest wait of a reserve, in seconds
    max_wait: float = 20.0
    #: maximum number of waiting reserves in one process; further ones are answered at once
    max_waiting: int = 500
    #: maximum number of waiting reserves of one user
    max_waiting_per_user: int = 100
    #: seconds for which the response to an Idempotency-Key is kept
    keep_answers: float = 86_400.0

    def __post_init__(self) -> None:
        if self.authentication is not None:
            paths = strings("authentication", self.authentication)
            object.__setattr__(self, "authentication", tuple(dotted_path("authentication", path) for path in paths))
        if self.allow is not None:
            dotted_path("allow", self.allow)
        if not isinstance(self.throttle, Mapping):
            raise Misconfigured(f'throttle must be a dict like {{"produce": "1000/min"}}, got {short(self.throttle)}')
        for action, rate in self.throttle.items():
            choice("throttle", action, THROTTLES)
            if not (isinstance(rate, str) and _RATE.fullmatch(rate)):
                raise Misconfigured(f"throttle: {action} must be a rate like '1000/min', got {short(rate)}")
        whole("max_body", self.max_body, 1024, 1 << 30)
        whole("max_depth", self.max_depth, 8, 200)
        whole("max_jobs", self.max_jobs, 1, 10_000)
        number("max_wait", self.max_wait, 0, 20)
        whole("max_waiting", self.max_waiting, 0, 100_000)
        whole("max_waiting_per_user", self.max_waiting_per_user, 0, 100_000)
        number("keep_answers", self.keep_answers, 1, 30 * 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConf:
    """``DELAYQ["METRICS"]``: metrics for Prometheus and OpenTelemetry."""

    #: anyone may read ``/metrics``; False = requires the permission to view the HTTP API
    public: bool = False
    #: measure every script call; True = the metrics show by script how long callers wait for Redis
    scripts: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            flag(one.name, getattr(self, one.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConf:
    """``DELAYQ["PIPELINE"]``: the data pipeline on Spark (:mod:`django_delayq.pipeline`)."""

    #: folder (or URL that Spark and deltalake can write to) of the history and of Spark's checkpoints
    root: str = ".delayq/history"
    #: Spark's master: ``local[*,4]`` runs here with four tries for each task; or ``spark://host:7077`` and others
    master: str = "local[*,4]"
    #: Spark's own options, added to and overriding the defaults of a session
    conf: Mapping[str, str] = field(default_factory=dict)
    #: name of the history's cursor in the streams of events; two deployments that read the same Redis need two names
    consumer: str = "history"
    #: task or queue → seconds by which an attempt may be late; a later one counts as missed. "*" = all others
    sla: Mapping[str, float] = field(default_factory=lambda: {"*": 60.0})
    #: days that events are kept as they were read; None = forever
    keep_events_days: float | None = 30.0
    #: days that finished attempts are kept; None = forever
    keep_attempts_days: float | None = 180.0
    #: days that the hourly metrics, and the records of the pipeline's runs, are kept; None = forever
    keep_hours_days: float | None = 365.0

    def __post_init__(self) -> None:
        for name in ("root", "master", "consumer"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value):
                raise Misconfigured(f"{name} must be a text, got {short(value)}")
        for name in ("conf", "sla"):
            if not isinstance(getattr(self, name), Mapping):
                raise Misconfigured(f"{name} must be a dict, got {short(getattr(self, name))}")
        for key, value in self.conf.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise Misconfigured(f"conf: {short(key)} must be a text with a text, got {short(value)}")
        for who, seconds in self.sla.items():
            number(f"sla: {who}", seconds, 0)
        for name in ("keep_events_days", "keep_attempts_days", "keep_hours_days"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 0.001, unit="days")
