"""Worker configuration: a frozen object passed in by the caller. The worker itself reads no settings or environment.

The caller has checked the values, and gives names or dotted paths of functions; the process that works loads them. A
supervisor passes its configuration to its children.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.options import Limits

if TYPE_CHECKING:
    from ..core.outcomes import Which
    from .shards import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of one worker. All times are in seconds."""

    #: names of the queues to reserve from
    queues: tuple[str, ...]
    #: also serve every other queue of the deployment, including queues that are created later
    all_queues: bool = False
    #: those of ``queues`` that no task and no setting names: each is served once it exists, and is never created
    awaited: frozenset[str] = frozenset()
    #: queues that are never reserved from, because other programs pull from them
    pulled: frozenset[str] = frozenset()
    #: queue name → how often it is visited compared with a queue of weight 1
    weights: Mapping[str, float] = field(default_factory=dict)
    #: queue name → limit of the jobs that run at the same time
    limits: Mapping[str, Limits] = field(default_factory=dict)
    #: jobs that one process runs at the same time; an ``async def`` job occupies a thread too
    threads: int = 5
    #: processes that the supervisor keeps running
    processes: int = 1
    #: maximum number of processes that the supervisor adds for jobs in quarantine, each for one job at a time
    quarantine: int = 2
    #: reserve and run jobs; False = housekeeping only (``delayq_dispatcher``)
    consumer: bool = True
    #: also run the dispatcher's housekeeping: wake consumers, reap leases, clean up
    dispatcher: bool = True
    #: time that running jobs get to finish once the worker is stopped
    grace: float = 25.0
    #: work that a process may hold beyond its free slots, in milliseconds of measured run time
    prefetch_ms: float = 50.0
    #: seconds between two renewals of the leases and two announcements of the process
    heartbeat: float = 5.0
    #: seconds between two checks of a process without a dispatcher, each of one shard in rotation, although nothing
    #: indicates work there
    safety_check: float = 5.0
    #: seconds between two checks of a dispatcher for old epochs
    epoch_check: float = 30.0
    #: seconds without a job after which a quarantine process ends
    quarantine_idle: float = 30.0
    #: number of jobs after which the process is replaced
    max_jobs: int | None = None
    #: memory use in MiB above which the process is replaced
    max_rss: float | None = None
    #: name in the worker registry and on leases; must be unique. Empty = host, pid and a random part
    name: str = ""
    #: name of this start of the program, the same for all its processes; empty = the name of the only one
    program: str = ""
    #: the jobs that the process runs: those that wait for quarantine, the others, or all where there is no supervisor
    which: Which = "all"
    #: index of this process among its supervisor's children
    index: int = 0
    #: end when no job is ready any more
    burst: bool = False
    #: end when Redis has been unavailable for so long; None = wait for it
    redis_patience: float | None = None
    #: function that chooses between shards with due work, or its dotted path; None = by the weights
    scheduler: str | Scheduler | None = None
    #: time zone of cron expressions that name none
    timezone: str = "UTC"

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> WorkerConfig:
        """Return the configuration with the fields of another one that were sent as JSON."""
        sets = {name: frozenset(fields[name]) for name in ("awaited", "pulled")}
        limits = {name: Limits(**limit) for name, limit in fields["limits"].items()}
        return cls(**{**fields, **sets, "queues": tuple(fields["queues"]), "limits": limits})
