"""Identity, configuration and shared objects of a worker process, for its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.outcomes import Which
    from ..core.task import Registry
    from .changes import Changes
    from .child import Scoreboard
    from .config import WorkerConfig
    from .hooks import Hooks
    from .redis_health import RedisHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Worker process as its parts see it."""

    #: name in the registry of workers and on leases
    name: str
    #: name of this start of the program, the same for all its processes
    program: str
    config: WorkerConfig
    broker: Broker
    registry: Registry
    hooks: Hooks
    health: RedisHealth
    #: mailbox in which the process notes changes for its duties
    changes: Changes
    #: the jobs that it runs. Jobs that wait for quarantine run one at a time, in separate processes
    which: Which = "all"
    #: scoreboard on which its supervisor reads what it runs; None without one
    board: Scoreboard | None = None

    @property
    def lease(self) -> float:
        """Duration of a lease in seconds."""
        return self.broker.lease_ms / 1000
