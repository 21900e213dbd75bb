"""Facts of the dashboard as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .formatting import NOTHING, duration, grouped, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..status import RedisStatus, WorkerStatus

#: names that are listed; further ones are only counted
_MOST_NAMES: Final = 4

Facts = list[tuple[str, str]]


def _ago(seconds: float | None) -> str:
    return NOTHING if seconds is None else _("%s ago") % duration(seconds)


def worker_facts(worker: WorkerStatus) -> str:
    """Return the host, process and queues of a worker in one line."""
    names = ", ".join(worker.queues[:_MOST_NAMES])
    if len(worker.queues) > _MOST_NAMES:
        names = _("%(names)s and %(n)d more") % {"names": names, "n": len(worker.queues) - _MOST_NAMES}
    parts = [
        worker.host,
        _("pid %d") % worker.pid if worker.pid is not None else "",
        names,
        size(worker.rss_mib * 2**20) if worker.rss_mib is not None else "",
    ]
    return " · ".join(filter(None, parts))


def redis_facts(redis: RedisStatus) -> Facts:
    """Return (name, text) of the main facts about the server."""
    server = [
        redis.version,
        redis.mode if redis.mode != "standalone" else "",
        redis.role if redis.role != "master" else "",
        ngettext("%d node", "%d nodes", redis.nodes) % redis.nodes if redis.nodes > 1 else "",
    ]
    memory = NOTHING if redis.used_memory is None else size(redis.used_memory)
    if redis.used_memory_peak is not None:
        memory = _("%(used)s, peak %(peak)s") % {"used": memory, "peak": size(redis.used_memory_peak)}
    limit = size(redis.maxmemory) if redis.maxmemory else _("no limit")
    log = _("append-only file: on") if redis.aof else _("append-only file: off")
    saved = _("last snapshot: %s") % _ago(redis.rdb_last_save_seconds)
    return [
        (_("Server"), ", ".join(filter(None, server)) or NOTHING),
        (_("Up for"), NOTHING if redis.uptime_seconds is None else duration(redis.uptime_seconds)),
        (_("Memory"), memory),
        (_("Limit"), f"{limit}, {redis.maxmemory_policy or '–'}"),
        (_("Persistence"), f"{log}; {saved}"),
        (_("Clients"), NOTHING if redis.clients is None else grouped(redis.clients)),
        (_("Commands per second"), NOTHING if redis.ops_per_sec is None else grouped(redis.ops_per_sec)),
    ]


def outbox_facts(stock: Mapping[str, Any] | None) -> Facts:
    """Return (name, text) about durable jobs; empty if the outbox is."""
    if stock is None or not any(stock.values()):
        return []
    waiting = grouped(stock["waiting"])
    if stock["oldest_waiting_seconds"] is not None:
        since = duration(stock["oldest_waiting_seconds"])
        waiting = _("%(n)s, the oldest for %(time)s") % {"n": waiting, "time": since}
    return [
        (_("To be sent"), waiting),
        (_("Sent, not done yet"), grouped(stock["sent"])),
        (_("In the morgue"), grouped(stock["buried"])),
        (_("Refused"), grouped(stock["refused"])),
    ]
