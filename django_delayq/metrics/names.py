"""List of all metrics: name, meaning, and what to do about it. The table in the documentation is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import redis_names
from .metric import Metric, counter, gauge, histogram

# -- the deployment --------------------------------------------------------------------------------------------------

UP: Final = gauge(
    "delayq_up",
    "delayq.up",
    "1",
    "1: Redis answered. 0: it did not, and nothing else is exported; check Redis and the network.",
)
INFO: Final = gauge(
    "delayq_info",
    "delayq.info",
    "1",
    "Always 1; the release of django_delayq in the responding process.",
    "version",
)
SCRAPE: Final = gauge(
    "delayq_scrape_seconds",
    "delayq.scrape.duration",
    "s",
    "Duration of this collection. Near the scrape timeout: scrape less often, or raise the timeout.",
)
CLOCK_SKEW: Final = gauge(
    "delayq_clock_skew_seconds",
    "delayq.clock.skew",
    "s",
    "Clock of the responding machine minus Redis's clock, about. Jobs follow Redis's clock; above a second: check NTP "
    "on both.",
)

PRODUCERS_PAUSED: Final = gauge(
    "delayq_producers_paused",
    "delayq.producers.paused",
    "1",
    "1: the producers of all queues are paused, so no queue takes new jobs. Resume: delayq_queue resume-producers.",
)

# -- queues ----------------------------------------------------------------------------------------------------------

JOBS: Final = gauge(
    "delayq_jobs",
    "delayq.jobs",
    "{job}",
    "Jobs by state: delayed, ready, reserved (running), gated (new content behind a running attempt) and morgue. "
    "Ready grows: add workers. Morgue grows: repair its jobs.",
    "queue",
    "state",
)
FAILED: Final = gauge(
    "delayq_failed_jobs",
    "delayq.failed_jobs",
    "{job}",
    "Jobs that failed at least once and wait for their next attempt; also counted as delayed or ready.",
    "queue",
)
QUARANTINED: Final = gauge(
    "delayq_quarantined_jobs",
    "delayq.quarantined_jobs",
    "{job}",
    "Jobs whose process died during an attempt and that wait to run alone in one; also counted as delayed or ready. "
    "Stays above 0: no worker with a supervisor serves the queue, or its quarantine processes are busy.",
    "queue",
)
PARKED: Final = gauge(
    "delayq_parked_jobs",
    "delayq.parked_jobs",
    "{job}",
    "Due jobs that wait for a free permit of their task (`concurrency`); also counted as ready. Grows: raise the "
    "limit, or make the task faster.",
    "queue",
)
LAG: Final = gauge(
    "delayq_lag_seconds",
    "delayq.lag",
    "s",
    "Seconds by which the longest waiting job is overdue, except those in quarantine or behind a limit. Grows: too few "
    "workers, none, or the queue is paused.",
    "queue",
)
PRIORITY_LAG: Final = gauge(
    "delayq_priority_lag_seconds",
    "delayq.priority.lag",
    "s",
    "The same for each priority of a queue that has used several. Grows for one while more urgent ones stay low: it "
    "starves; add workers, or set starve_after.",
    "queue",
    "priority",
)
SHARDS: Final = gauge("delayq_queue_shards", "delayq.queue.shards", "{shard}", "Shards of the queue.", "queue")
UNREACHABLE: Final = gauge(
    "delayq_queue_unreachable_shards",
    "delayq.queue.unreachable_shards",
    "{shard}",
    "Shards on nodes of a cluster that do not answer. Above 0 the queue has no other values.",
    "queue",
)
PAUSED: Final = gauge(
    "delayq_queue_paused",
    "delayq.queue.paused",
    "1",
    "1: the queue is paused in this direction (in: new jobs are refused, out: no jobs are reserved).",
    "queue",
    "direction",
)
QUEUE_WORKERS: Final = gauge(
    "delayq_queue_workers",
    "delayq.queue.workers",
    "{worker}",
    "Worker processes that serve the queue. 0 for a queue with ready jobs: start one. Queues of kind pull have none.",
    "queue",
    merge="max",
)
LONGEST_RUN: Final = gauge(
    "delayq_longest_run_seconds",
    "delayq.longest_run",
    "s",
    "Duration of the oldest running attempt, as of the last heartbeat. Longer than any should take: dump that worker's "
    "stacks.",
    "queue",
)
HOLD: Final = gauge(
    "delayq_reaper_hold_seconds",
    "delayq.reaper.hold",
    "s",
    "Seconds until leases are reaped again after an outage or a restart of Redis, or a jump of its clock.",
    "queue",
)
MARKS: Final = gauge(
    "delayq_settled_marks",
    "delayq.settled_marks",
    "{job}",
    "Ended durable jobs that are not recorded in the database yet. Grows: no dispatcher runs.",
    "queue",
)

SCHEDULED: Final = counter(
    "delayq_scheduled_total",
    "delayq.scheduled",
    "{job}",
    "Scheduled jobs: created, changed (the id was waiting or running already) or refused (tries that found the "
    "queue paused, or their shard or id full; a job that found room later counts, too).",
    "queue",
    "result",
)
RESERVED: Final = counter(
    "delayq_reserved_total", "delayq.reserved", "{job}", "Reserved jobs, with any outcome.", "queue"
)
SETTLED: Final = counter(
    "delayq_settled_total",
    "delayq.settled",
    "{job}",
    "Ends of leases by outcome. acked: done. failed, timeout, crashed: counted attempts. buried: to the morgue. "
    "released: back, not counted (a stop, a lost worker). expired: too late to be of use. superseded: newer content "
    "took the place.",
    "queue",
    "outcome",
)
STALE: Final = counter(
    "delayq_stale_settlements_total",
    "delayq.stale_settlements",
    "{job}",
    "Settlements after the lease was lost, which changed nothing. More than a few: processes freeze for longer than a "
    "lease, or cannot reach Redis.",
    "queue",
)
INTERVENTIONS: Final = counter(
    "delayq_interventions_total",
    "delayq.interventions",
    "{job}",
    "Jobs changed by callers, people and limits: cancelled, run_now, deleted and killed (failed jobs), kicked and "
    "discarded (out of the morgue), trimmed (the morgue was full, or they were too old).",
    "queue",
    "verb",
)
LOST_BODIES: Final = counter(
    "delayq_lost_bodies_total",
    "delayq.lost_bodies",
    "{job}",
    "Jobs whose content Redis has lost. Above 0: run delayq_fsck, and check Redis's eviction policy.",
    "queue",
)

LATENESS: Final = histogram(
    "delayq_start_lateness_seconds",
    "From the due time to the start of each attempt. Late with idle workers: check Redis; late with busy workers: "
    "add workers.",
    "queue",
)
RUN: Final = histogram("delayq_run_seconds", "Duration of each attempt.", "queue", "task")

# -- workers ---------------------------------------------------------------------------------------------------------

WORKERS: Final = gauge(
    "delayq_workers",
    "delayq.workers",
    "{worker}",
    "Worker processes: running, stopping, lost (no heartbeat for 30 seconds). None running: start one.",
    "state",
)
DISPATCHERS: Final = gauge(
    "delayq_dispatchers",
    "delayq.dispatchers",
    "{worker}",
    "Processes with a dispatcher. 0: no expired lease is reaped and no outbox is relayed; start one.",
)
WORKER_THREADS: Final = gauge(
    "delayq_worker_threads", "delayq.worker.threads", "{thread}", "Threads of the live workers."
)
WORKER_BUSY: Final = gauge(
    "delayq_worker_busy",
    "delayq.worker.busy",
    "{thread}",
    "Threads that run a job now. All threads busy while the lag grows: add workers.",
)
WORKER_MEMORY: Final = gauge(
    "delayq_worker_resident_bytes", "delayq.worker.memory", "By", "Resident memory of all live workers together."
)

# -- the outbox of durable jobs --------------------------------------------------------------------------------------

OUTBOX: Final = gauge(
    "delayq_outbox_rows",
    "delayq.outbox.rows",
    "{row}",
    "Durable jobs in the database: waiting (to be sent), sent, buried, refused (see delayq_reconcile --refused).",
    "state",
)
OUTBOX_AGE: Final = gauge(
    "delayq_outbox_oldest_age_seconds",
    "delayq.outbox.oldest_age",
    "s",
    "Age of the oldest row that waits to be sent; 0 = none. Grows: no dispatcher runs, or Redis refuses.",
)

METRICS: Final = tuple(
    value for value in (*globals().values(), *vars(redis_names).values()) if isinstance(value, Metric)
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
    """Return the metrics as a Markdown table for the documentation."""
    lines = ["| name | labels | OpenTelemetry | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        otel = f"`{metric.otel}`" if metric.otel else ""
        lines.append(f"| `{metric.name}` ({metric.kind}) | {labels} | {otel} | {metric.help} |")
    return "\n".join(lines)
