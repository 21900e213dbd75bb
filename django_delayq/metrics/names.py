"""Every metric there is: its name, what it says, and what to do about it. The documentation is made of this list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

#: labels whose values users make, so that somebody has to count them
OPEN: Final = frozenset({"queue", "task", "type"})
#: values of open labels that a metric has at most; what is beyond is added up under OTHER
MOST_LABELS: Final = 500
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: in Prometheus, in base units; counters end in ``_total``.
        otel: in OpenTelemetry; "" = it is not there.
        unit: in OpenTelemetry (UCUM).
        help: what it says, and what to do with it.
        labels: in the order of the values.
        merge: what becomes of the values of two queues: their sum, or the larger one.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    otel: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    merge: Literal["sum", "max"] = "sum"

    @property
    def open_labels(self) -> int:
        """How many of its labels, the first ones, have values that users make."""
        return sum(label in OPEN for label in self.labels)

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which its values are exported to Prometheus."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def _gauge(name: str, otel: str, unit: str, help: str, *labels: str, merge: Literal["sum", "max"] = "sum") -> Metric:
    return Metric(name, "gauge", otel, unit, help, labels, merge)


def _counter(name: str, otel: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", otel, unit, help, labels)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    # The interface of OpenTelemetry has no histogram that is read off; see tracing.py for what stands in its place.
    return Metric(name, "histogram", "", "s", help, labels)


# -- the deployment --------------------------------------------------------------------------------------------------

UP: Final = _gauge(
    "delayq_up",
    "delayq.up",
    "1",
    "1: Redis answered. 0: it did not, and nothing else is exported; look at Redis and at the way to it.",
    merge="max",
)
INFO: Final = _gauge(
    "delayq_info", "delayq.info", "1", "Always 1; the release of django_delayq that answers.", "version", merge="max"
)
SCRAPE: Final = _gauge(
    "delayq_scrape_seconds",
    "delayq.scrape.duration",
    "s",
    "How long it took to collect all this. Near the scrape timeout: scrape less often, or give it more time.",
    merge="max",
)
CLOCK_SKEW: Final = _gauge(
    "delayq_clock_skew_seconds",
    "delayq.clock.skew",
    "s",
    "How far the clock of the answering machine is ahead of Redis's, as far as the time of the question tells. Jobs "
    "follow Redis's clock; beyond a second look at NTP on both.",
    merge="max",
)

# -- queues ----------------------------------------------------------------------------------------------------------

JOBS: Final = _gauge(
    "delayq_jobs",
    "delayq.jobs",
    "{job}",
    "Jobs by state: delayed, ready, reserved (they run), gated (new content behind a run) and morgue. Ready grows: "
    "add workers. Morgue grows: somebody has to look at it.",
    "queue",
    "state",
)
FAILED: Final = _gauge(
    "delayq_failed_jobs",
    "delayq.failed_jobs",
    "{job}",
    "Jobs that failed at least once and wait for their next attempt; also counted as delayed or ready.",
    "queue",
)
QUARANTINED: Final = _gauge(
    "delayq_quarantined_jobs",
    "delayq.quarantined_jobs",
    "{job}",
    "Jobs whose process died under them and that wait to run alone in one; also counted as delayed or ready. It stays "
    "above 0: no worker with a supervisor serves the queue, or its quarantine processes are busy.",
    "queue",
)
LAG: Final = _gauge(
    "delayq_lag_seconds",
    "delayq.lag",
    "s",
    "How long the job that waits longest is overdue, quarantined ones left out. It grows: too few workers, none at "
    "all, or the queue is paused.",
    "queue",
    merge="max",
)
SHARDS: Final = _gauge("delayq_queue_shards", "delayq.queue.shards", "{shard}", "Shards of the queue.", "queue")
PAUSED: Final = _gauge(
    "delayq_queue_paused",
    "delayq.queue.paused",
    "1",
    "1: somebody paused the queue in this direction (in: it takes nothing, out: it gives nothing).",
    "queue",
    "direction",
    merge="max",
)
QUEUE_WORKERS: Final = _gauge(
    "delayq_queue_workers",
    "delayq.queue.workers",
    "{worker}",
    "Worker processes that serve the queue. 0 for a queue with ready jobs: start one. Queues of kind pull have none.",
    "queue",
    merge="max",
)
LONGEST_RUN: Final = _gauge(
    "delayq_longest_run_seconds",
    "delayq.longest_run",
    "s",
    "How long the oldest run goes on, as workers last said. Longer than any run may take: dump that worker's stacks.",
    "queue",
    merge="max",
)
HOLD: Final = _gauge(
    "delayq_reaper_hold_seconds",
    "delayq.reaper.hold",
    "s",
    "How long no lease is reaped yet, because Redis was away, began anew, or its clock jumped. It ends by itself.",
    "queue",
    merge="max",
)
MARKS: Final = _gauge(
    "delayq_settled_marks",
    "delayq.settled_marks",
    "{job}",
    "Ends of durable jobs that the dispatcher has not noted in the database yet. It grows: no dispatcher runs.",
    "queue",
)

SCHEDULED: Final = _counter(
    "delayq_scheduled_total",
    "delayq.scheduled",
    "{job}",
    "Jobs that came in: created, changed (the id was waiting or running already) or refused (the queue is full or "
    "paused).",
    "queue",
    "result",
)
RESERVED: Final = _counter(
    "delayq_reserved_total", "delayq.reserved", "{job}", "Jobs that were handed out, however they ended.", "queue"
)
SETTLED: Final = _counter(
    "delayq_settled_total",
    "delayq.settled",
    "{job}",
    "Ends of leases by outcome. acked: done. failed, timeout, crashed: counted attempts. buried: to the morgue. "
    "released: back, not counted (a stop, a lost worker). expired: too late to be of use. superseded: newer content "
    "took the place.",
    "queue",
    "outcome",
)
STALE: Final = _counter(
    "delayq_stale_settlements_total",
    "delayq.stale_settlements",
    "{job}",
    "Ends that came after the lease was lost and changed nothing. More than a few: processes stand still for longer "
    "than a lease, or cannot reach Redis.",
    "queue",
)
INTERVENTIONS: Final = _counter(
    "delayq_interventions_total",
    "delayq.interventions",
    "{job}",
    "What callers, people and limits did to jobs: cancelled, run_now, deleted and killed (failed jobs), kicked and "
    "discarded (out of the morgue), trimmed (the morgue was full, or they were too old).",
    "queue",
    "verb",
)
LOST_BODIES: Final = _counter(
    "delayq_lost_bodies_total",
    "delayq.lost_bodies",
    "{job}",
    "Jobs whose content Redis had lost. Anything above 0: run delayq_fsck, and look at Redis's eviction policy.",
    "queue",
)

LATENESS: Final = _histogram(
    "delayq_start_lateness_seconds",
    "From the due time to the start of each attempt. Late with idle workers: look at Redis; late with busy ones: add "
    "workers.",
    "queue",
)
RUN: Final = _histogram("delayq_run_seconds", "How long each attempt ran.", "queue", "task")

# -- workers ---------------------------------------------------------------------------------------------------------

WORKERS: Final = _gauge(
    "delayq_workers",
    "delayq.workers",
    "{worker}",
    "Worker processes: running, stopping, lost (not heard of for 30 seconds). None running: start one.",
    "state",
)
DISPATCHERS: Final = _gauge(
    "delayq_dispatchers",
    "delayq.dispatchers",
    "{worker}",
    "Processes that do the housekeeping. 0: no expired lease is reaped and no outbox is relayed; start one.",
)
WORKER_THREADS: Final = _gauge(
    "delayq_worker_threads", "delayq.worker.threads", "{thread}", "Jobs that the live workers can run at once."
)
WORKER_BUSY: Final = _gauge(
    "delayq_worker_busy",
    "delayq.worker.busy",
    "{thread}",
    "Threads that run a job now. As many as there are threads, while the lag grows: add workers.",
)
WORKER_MEMORY: Final = _gauge(
    "delayq_worker_resident_bytes", "delayq.worker.memory", "By", "Resident memory of all live workers together."
)

# -- Redis -----------------------------------------------------------------------------------------------------------

REDIS_INFO: Final = _gauge(
    "delayq_redis_info",
    "delayq.redis.info",
    "1",
    "Always 1; the server (of a cluster, the first of its masters; its numbers are those of all).",
    "version",
    "mode",
    "role",
    "policy",
    merge="max",
)
REDIS_MEMORY: Final = _gauge(
    "delayq_redis_memory_used_bytes",
    "delayq.redis.memory.used",
    "By",
    "Memory that Redis uses. Near delayq_redis_memory_max_bytes schedule() is refused; give it more in time.",
)
REDIS_MEMORY_PEAK: Final = _gauge(
    "delayq_redis_memory_peak_bytes", "delayq.redis.memory.peak", "By", "The most that it ever used.", merge="max"
)
REDIS_MEMORY_MAX: Final = _gauge(
    "delayq_redis_memory_max_bytes",
    "delayq.redis.memory.max",
    "By",
    "Its limit (maxmemory); 0 = it has none.",
    merge="max",
)
REDIS_UPTIME: Final = _gauge(
    "delayq_redis_uptime_seconds", "delayq.redis.uptime", "s", "Since its start; a fall is a restart.", merge="max"
)
REDIS_CLIENTS: Final = _gauge("delayq_redis_clients", "delayq.redis.clients", "{connection}", "Connections to Redis.")
REDIS_COMMANDS: Final = _gauge(
    "delayq_redis_commands_per_second", "delayq.redis.commands", "{command}/s", "What Redis does now, for all clients."
)
REDIS_EVICTED: Final = _counter(
    "delayq_redis_evicted_keys_total",
    "delayq.redis.evicted_keys",
    "{key}",
    "Keys that Redis threw away to make room. Anything above 0: set maxmemory-policy noeviction, then run delayq_fsck.",
)
REDIS_AOF: Final = _gauge(
    "delayq_redis_aof",
    "delayq.redis.aof",
    "1",
    "1: Redis keeps an append-only file. 0: a restart loses what came in since its last snapshot.",
    merge="max",
)
REDIS_SAVED: Final = _gauge(
    "delayq_redis_saved",
    "delayq.redis.saved",
    "1",
    "0: the last write of the append-only file or of a snapshot failed; look at the disk of Redis.",
    merge="max",
)
REDIS_SAVE_AGE: Final = _gauge(
    "delayq_redis_last_save_age_seconds", "delayq.redis.last_save_age", "s", "Since the last snapshot.", merge="max"
)
REDIS_REPLICAS: Final = _gauge(
    "delayq_redis_replicas",
    "delayq.redis.replicas",
    "{server}",
    "Replicas that follow. Fewer than there should be: a failover has less to choose from, or loses more.",
)
REDIS_ERRORS: Final = _counter(
    "delayq_redis_errors_total",
    "delayq.redis.errors",
    "{error}",
    "Calls to Redis that failed in workers and in processes that pull, by kind. transient: a restart or the network. "
    "overload: it is full. saturation: too few connections. config: a person has to act.",
    "class",
)
SCRIPT: Final = _histogram(
    "delayq_script_seconds",
    'How long callers waited for each script; only with METRICS = {"scripts": True}.',
    "script",
)
FSCK: Final = _gauge(
    "delayq_fsck_violations",
    "delayq.fsck.violations",
    "{violation}",
    "What the last delayq_fsck found. Anything above 0: run it again and read what it says.",
    merge="max",
)
FSCK_AT: Final = _gauge(
    "delayq_fsck_timestamp_seconds", "delayq.fsck.timestamp", "s", "When that was, Unix time.", merge="max"
)

# -- the outbox of durable jobs --------------------------------------------------------------------------------------

OUTBOX: Final = _gauge(
    "delayq_outbox_rows",
    "delayq.outbox.rows",
    "{row}",
    "Durable jobs in the database: waiting (to be sent), sent, buried, refused (somebody has to look at them).",
    "state",
)
OUTBOX_AGE: Final = _gauge(
    "delayq_outbox_oldest_age_seconds",
    "delayq.outbox.oldest_age",
    "s",
    "How long the oldest row waits to be sent; 0 = none does. It grows: no dispatcher runs, or Redis refuses.",
    merge="max",
)

METRICS: Final = (
    UP,
    INFO,
    SCRAPE,
    CLOCK_SKEW,
    JOBS,
    FAILED,
    QUARANTINED,
    LAG,
    SHARDS,
    PAUSED,
    QUEUE_WORKERS,
    LONGEST_RUN,
    HOLD,
    MARKS,
    SCHEDULED,
    RESERVED,
    SETTLED,
    STALE,
    INTERVENTIONS,
    LOST_BODIES,
    LATENESS,
    RUN,
    WORKERS,
    DISPATCHERS,
    WORKER_THREADS,
    WORKER_BUSY,
    WORKER_MEMORY,
    REDIS_INFO,
    REDIS_MEMORY,
    REDIS_MEMORY_PEAK,
    REDIS_MEMORY_MAX,
    REDIS_UPTIME,
    REDIS_CLIENTS,
    REDIS_COMMANDS,
    REDIS_EVICTED,
    REDIS_AOF,
    REDIS_SAVED,
    REDIS_SAVE_AGE,
    REDIS_REPLICAS,
    REDIS_ERRORS,
    SCRIPT,
    FSCK,
    FSCK_AT,
    OUTBOX,
    OUTBOX_AGE,
)

#: counter of a queue in Redis → the metric that exports it, and the value of its second label
COUNTERS: Final[Mapping[str, tuple[Metric, str]]] = {
    **{name: (SCHEDULED, name) for name in ("created", "changed", "refused")},
    "reserved": (RESERVED, ""),
    **{
        name: (SETTLED, name)
        for name in ("acked", "failed", "timeout", "crashed", "released", "buried", "expired", "superseded")
    },
    "late": (STALE, ""),
    **{
        name: (INTERVENTIONS, name)
        for name in ("cancelled", "run_now", "deleted", "killed", "kicked", "discarded", "trimmed")
    },
    "lost_body": (LOST_BODIES, ""),
}


def table() -> str:
    """The list as a table for the documentation."""
    lines = ["| name | labels | OpenTelemetry | what it says |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        otel = f"`{metric.otel}`" if metric.otel else ""
        lines.append(f"| `{metric.name}` ({metric.kind}) | {labels} | {otel} | {metric.help} |")
    return "\n".join(lines)
