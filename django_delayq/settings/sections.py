"""Sections of the ``DELAYQ`` setting, with a comment for each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from ..core.errors import InvalidJob
from ..core.inputs import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_queue_name,
    short,
)
from ..core.layouts import PRIORITY_MODES
from ..core.options import Concurrency, check_concurrency
from ..core.records.keys import MAX_SHARDS
from ..masking import SENSITIVE
from .section import Section, check_dotted_path, check_dotted_paths, check_mapping, check_text, check_texts, key

#: actions of HTTP API routes that can be throttled: the permission that a route requires
THROTTLES: Final = ("view", "produce", "consume", "operate", "admin")
_RATE: Final = re.compile(r"[1-9]\d*/(s|sec|second|m|min|minute|h|hour|d|day)")


def _queue_names(name: str, value: object) -> tuple[str, ...]:
    return tuple(check_queue_name(queue) for queue in check_texts(name, value))


def _databases(name: str, value: object) -> tuple[str, ...]:
    if aliases := check_texts(name, value):
        return aliases
    raise InvalidJob(f"{name} must name at least one alias of DATABASES, like ['default']")


def _throttle(name: str, value: object) -> Mapping[str, str]:
    for action, rate in check_mapping(name, value, '{"produce": "1000/min"}').items():
        check_choice(name, action, THROTTLES)
        if not (isinstance(rate, str) and _RATE.fullmatch(rate)):
            raise InvalidJob(f"{name}: {action} must be a rate like '1000/min', got {short(rate)}")
    return value  # type: ignore[return-value]


def _spark_conf(name: str, value: object) -> Mapping[str, str]:
    for option, setting in check_mapping(name, value, '{"spark.driver.memory": "2g"}').items():
        if not (isinstance(option, str) and isinstance(setting, str)):
            raise InvalidJob(f"{name}: {short(option)} must be a text with a text, got {short(setting)}")
    return value  # type: ignore[return-value]


def _sla(name: str, value: object) -> Mapping[str, float]:
    late = check_mapping(name, value, '{"*": 60}')
    return {target: check_number(f"{name}: {target}", seconds, 0) for target, seconds in late.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConf(Section):
    """One entry of ``DELAYQ["QUEUES"]``: how a queue is created. Queues without an entry use the defaults."""

    #: parts of the queue, each in one Redis slot; Redis keeps the number that the queue was created with. None = the
    #: number that a task of the queue names, else 1
    shards: int | None = key(None, check_int, 1, MAX_SHARDS)
    #: "python" = run by workers; "pull" = raw bytes for other consumers, workers never reserve from it
    kind: str = key("python", check_choice, ("python", "pull"))
    #: how often workers visit it, relative to a queue of weight 1
    weight: float = key(1.0, check_number, 0.001, unit="")
    #: most jobs of the queue that are held at the same time: an int over all workers and consumers, or {"total": …,
    #: "local": …} with a limit for each worker process; None = no limit
    concurrency: Concurrency | None = key(None, check_concurrency)  # noqa: RUF009
    #: maximum number of live jobs; further ones are refused with QueueFull. None = no limit
    max_length: int | None = key(None, check_int, 1)
    #: maximum number of jobs in its morgue, the oldest are removed first; None = no limit
    morgue_max: int | None = key(None, check_int, 1)
    #: seconds that a job stays in its morgue; None = forever
    morgue_ttl: float | None = key(None, check_number, 1)
    #: "strict" = a more urgent class always goes first; "weighted" = it goes first more often
    priorities: str = key("strict", check_choice, PRIORITY_MODES)
    #: seconds after which a due job goes before more urgent ones, which keep three quarters of what is reserved; None =
    #: it waits for as long as they are due
    starve_after: float | None = key(None, check_number, 1)
    #: its jobs are durable (kept in the database until they are done), unless the task or the call overrides it
    durable: bool = key(False, check_flag)

    def check_together(self) -> None:
        """Refuse durable jobs of a pull queue, and limits of worker processes, which it does not have."""
        if self.durable and self.kind == "pull":
            raise InvalidJob("durable is for jobs of tasks; the bytes of a queue of kind 'pull' are in Redis only")
        if self.concurrency is not None and self.concurrency.local is not None and self.kind == "pull":
            raise InvalidJob('concurrency "local" is for worker processes; a queue of kind "pull" has only a "total"')


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConf(Section):
    """``DELAYQ["WORKER"]``: defaults of ``manage.py delayq_worker``; its options override them."""

    #: processes that the supervisor keeps running
    processes: int = key(1, check_int, 1, 1024)
    #: maximum number of extra processes for jobs in quarantine, each for one job at a time
    quarantine: int = key(2, check_int, 1, 1024)
    #: jobs that one process runs at the same time
    threads: int = key(5, check_int, 1, 1024)
    #: queues to serve; None = every queue of kind "python"
    queues: tuple[str, ...] | None = key(None, _queue_names)
    #: seconds that running jobs get to finish after SIGTERM
    grace: float = key(25.0, check_number, 0)
    #: a process is replaced after this many jobs; None = never
    max_jobs: int | None = key(None, check_int, 1)
    #: a process is replaced when it uses more than this many MiB of memory; None = never
    max_rss: int | None = key(None, check_int, 1)
    #: also do the housekeeping (wake, reap) of the queues
    dispatcher: bool = key(True, check_flag)
    #: milliseconds of measured work that a process may hold beyond its free threads
    prefetch_ms: float = key(50.0, check_number, 0, unit="milliseconds")
    #: seconds between two renewals of the leases; at least three of them must fit into LEASE
    heartbeat: float = key(5.0, check_number, 0.01)
    #: dotted path of the function that chooses between shards with due work; None = by the weights of their queues
    scheduler: str | None = key(None, check_dotted_path)
    #: seconds that a database connection is kept between jobs; None = leave Django's CONN_MAX_AGE alone
    conn_max_age: float | None = key(60.0, check_number, 0, optional=True)
    #: check a kept database connection before its first use by a job
    conn_health_checks: bool = key(True, check_flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConf(Section):
    """``DELAYQ["EVENTS"]``: the stream of finished attempts."""

    #: events kept in the stream of each shard
    cap: int = key(10_000, check_int, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConf(Section):
    """``DELAYQ["MIRROR"]``: the tables of failed jobs and of the morgue, whose secrets are masked (see masking)."""

    #: copy failed jobs and the morgue into the tables; None = if ``django.contrib.admin`` is installed
    enabled: bool | None = key(None, check_flag)
    #: days after which a row is removed, counted from the failure or burial; None = as long as Redis has the job
    keep_days: float | None = key(None, check_number, 0.001, unit="days")
    #: maximum rows of one queue in each of the two tables, the oldest are removed first. Divided among the shards
    max_rows: int = key(1_000_000, check_int, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConf(Section):
    """``DELAYQ["HOOKS"]``: dotted paths of functions of the project that a worker calls."""

    #: called without arguments in each worker process, after Django is set up and before its first job; an error ends
    #: the process
    worker_init: str | None = key(None, check_dotted_path)
    #: called with the error before a process ends by a fatal error, or although jobs still run in it (flush logs);
    #: there is little time left. It may take no argument
    last_words: str | None = key(None, check_dotted_path)
    #: called with the exception of a failed attempt; returns the error to store. A text replaces its message, a dict
    #: adds fields, bytes are stored as they are. If it fails itself, that is logged and the usual form is stored
    format_error: str | None = key(None, check_dotted_path)
    #: called with the job and the exception of each failure, to send them to an error tracker
    report_error: str | None = key(None, check_dotted_path)

    def paths(self) -> dict[str, str]:
        """Return the configured hooks by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConf(Section):
    """``DELAYQ["ADMIN"]``: the pages of django.contrib.admin."""

    #: register them with the default site; False = the project calls ``django_delayq.admin.register(site)``
    register: bool = key(True, check_flag)
    #: words in names of arguments, payload fields and options whose values are masked for all users (see masking)
    sensitive: tuple[str, ...] = key(SENSITIVE, check_texts)
    #: actions on more jobs than this are run by a worker
    bulk_threshold: int = key(500, check_int, 0, 10_000)
    #: lists stop counting at this number
    count_cap: int = key(10_000, check_int, 100)
    #: seconds after its due time from which a waiting job is shown as late
    late_after: float = key(60.0, check_number, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxConf(Section):
    """``DELAYQ["OUTBOX"]``: handling of durable jobs between the database and Redis."""

    #: accept durable jobs; False = a call that requests one is refused
    enabled: bool = key(True, check_flag)
    #: seconds that a request waits for Redis after a commit; then durable jobs are left to the relay, others are lost
    budget: float = key(0.2, check_number, 0.01, 1)
    #: databases whose outbox is processed; the same in every process of the deployment
    databases: tuple[str, ...] = key(("default",), _databases)
    #: number of rows that are claimed, sent or looked up together
    batch: int = key(500, check_int, 1, 10_000)
    #: consecutive errors of one row after which it is refused and waits for an operator
    max_tries: int = key(10, check_int, 1, 1_000_000)
    #: seconds after which a job that was sent, but is unknown to Redis, counts as lost and is sent again
    resubmit_after: float = key(60.0, check_number, 0.1)
    #: seconds between two checks that Redis still has a job that was sent
    recheck_every: float = key(600.0, check_number, 1)
    #: days that a refused row is kept
    keep_days: float = key(30.0, check_number, 0, unit="days")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxConf(Section):
    """``DELAYQ["INBOX"]``: retention of records of ``@exactly_once`` and of API requests that create durable jobs."""

    #: days that an entry is kept: longer than a job may be delayed and retried
    keep_days: float = key(30.0, check_number, 0.001, unit="days")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConf(Section):
    """``DELAYQ["API"]``: the HTTP API, if the project includes ``django_delayq.api.urls``."""

    #: dotted paths of Django REST framework's authentication classes; None = tokens, if ``rest_framework.authtoken`` is
    #: installed, and sessions
    authentication: tuple[str, ...] | None = key(None, check_dotted_paths)
    #: dotted path of ``allow(request, action, queue) -> bool``, called after the permission checks; ``queue`` is "" for
    #: requests that concern no queue
    allow: str | None = key(None, check_dotted_path)
    #: action (view, produce, consume, operate, admin) → rate for each user, like "1000/min"
    throttle: Mapping[str, str] = key({}, _throttle)
    #: bytes of the largest request body
    max_body: int = key(4 * 1024 * 1024, check_int, 1024, 1 << 30)
    #: maximum nesting depth of a request's JSON
    max_depth: int = key(64, check_int, 8, 200)
    #: maximum number of jobs that one request may produce or refer to
    max_jobs: int = key(1000, check_int, 1, 10_000)
    #: longest wait of a reserve, in seconds
    max_wait: float = key(20.0, check_number, 0, 20)
    #: maximum number of waiting reserves in one process; further ones are answered at once
    max_waiting: int = key(500, check_int, 0, 100_000)
    #: maximum number of waiting reserves of one user
    max_waiting_per_user: int = key(100, check_int, 0, 100_000)
    #: seconds for which the response to an Idempotency-Key is kept
    keep_answers: float = key(86_400.0, check_number, 1, 30 * 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConf(Section):
    """``DELAYQ["METRICS"]``: metrics for Prometheus and OpenTelemetry."""

    #: anyone may read ``/metrics``; False = requires the permission to view the HTTP API
    public: bool = key(False, check_flag)
    #: measure every script call; True = the metrics show by script how long callers wait for Redis
    scripts: bool = key(False, check_flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConf(Section):
    """``DELAYQ["PIPELINE"]``: the data pipeline on Spark (:mod:`django_delayq.pipeline`)."""

    #: folder (or URL that Spark and deltalake can write to) of the history and of Spark's checkpoints
    root: str = key(".delayq/history", check_text)
    #: Spark's master: ``local[*,4]`` runs here with four tries for each task; or ``spark://host:7077`` and others
    master: str = key("local[*,4]", check_text)
    #: Spark's own options, added to and overriding the defaults of a session
    conf: Mapping[str, str] = key({}, _spark_conf)
    #: name of the history's checkpoint below its root
    consumer: str = key("history", check_text)
    #: task or queue → seconds by which an attempt may be late; a later one counts as missed. "*" = all others
    sla: Mapping[str, float] = key({"*": 60.0}, _sla)
    #: days that events are kept as they were read; None = forever
    keep_events_days: float | None = key(30.0, check_number, 0.001, unit="days", optional=True)
    #: days that finished attempts are kept; None = forever
    keep_attempts_days: float | None = key(180.0, check_number, 0.001, unit="days", optional=True)
    #: days that the hourly metrics, and the records of the pipeline's runs, are kept; None = forever
    keep_hours_days: float | None = key(365.0, check_number, 0.001, unit="days", optional=True)
