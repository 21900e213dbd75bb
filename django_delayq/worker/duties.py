"""Housekeeping of a dispatcher: the duties that its worker process carries out, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .depth_sampler import DepthSampler
from .dispatcher import EpochCleanup, ShardPoller, WorkerPruning
from .orphans import Orphans
from .reaper import LeaseReaper
from .recurring import RecurringTicker

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.task import Registry
    from .changes import Changes
    from .config import WorkerConfig
    from .hooks import Hooks
    from .loop import Duty
    from .redis_health import RedisHealth
    from .scope import Scope
    from .shard_selector import ShardSelector


def dispatcher_duties(
    broker: Broker,
    registry: Registry,
    config: WorkerConfig,
    hooks: Hooks,
    *,
    name: str,
    scope: Scope,
    health: RedisHealth,
    selector: ShardSelector | None,
    changes: Changes,
) -> dict[str, Duty]:
    """Return the duties of a dispatcher that need no Django, by name.

    ``selector`` is that of the consumer in this process, if there is one.
    """
    reaper = LeaseReaper(Orphans(registry, hooks, name))
    duties: dict[str, Duty] = {
        "shard-poller": ShardPoller(
            lambda: scope.queues,
            broker.lease_ms / 1000,
            config.heartbeat,
            health,
            selector,
            reaper=reaper,
            changes=changes,
        ),
        "reaper": reaper,
        "worker-pruning": WorkerPruning(broker, name),
        "depth-sampler": DepthSampler(broker, name),
        "epoch-cleanup": EpochCleanup(broker, lambda: scope.queues),
    }
    ticker = RecurringTicker(broker, registry, config.timezone, changes=changes.branch("lost"))
    if ticker.works:
        duties["recurring-ticker"] = ticker
    return duties
