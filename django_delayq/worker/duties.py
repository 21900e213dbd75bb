"""Housekeeping of a dispatcher: the duties that its worker process carries out, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .depth_sampler import DepthSampler
from .dispatcher import EpochCleanup, ShardPoller, WorkerPruning
from .orphans import Orphans
from .reaper import LeaseReaper
from .recurring import RecurringTicker

if TYPE_CHECKING:
    from .loop import Duty
    from .process import Process
    from .scope import Scope
    from .shard_selector import ShardSelector


def dispatcher_duties(process: Process, scope: Scope, selector: ShardSelector | None) -> dict[str, Duty]:
    """Return the duties of a dispatcher that need no Django, by name.

    ``selector`` is that of the consumer in this process, if there is one.
    """
    broker, name = process.broker, process.name
    reaper = LeaseReaper(Orphans(process.registry, process.hooks, name))
    duties: dict[str, Duty] = {
        "shard-poller": ShardPoller(
            lambda: scope.queues,
            process.lease,
            process.config.heartbeat,
            process.health,
            selector,
            reaper=reaper,
            changes=process.changes,
        ),
        "reaper": reaper,
        "worker-pruning": WorkerPruning(broker, name),
        "depth-sampler": DepthSampler(broker, name),
        "epoch-cleanup": EpochCleanup(broker, lambda: scope.queues),
    }
    ticker = RecurringTicker(broker, process.registry, process.config.timezone)
    if ticker.works:
        duties["recurring-ticker"] = ticker
    return duties
