"""Facts and warnings of the dashboard as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .formatting import NOTHING, duration, grouped, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..status import RedisStatus, Snapshot, WorkerStatus

#: names that are listed; further ones are only counted
_MOST_NAMES: Final = 4
#: fraction of maxmemory above which a warning is shown
_NEARLY_FULL: Final = 0.9

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


def warnings_of(snapshot: Snapshot) -> list[str]:
    """Return warnings that need an operator's attention, as sentences."""
    redis, warnings = snapshot.redis, [str(part) for part in snapshot.unreachable]
    if snapshot.producers_paused_ms is not None:
        warnings.append(_("Producers are paused: no queue takes new jobs. Resume them on the page of the queues."))
    if redis.loading:
        warnings.append(_("Redis is loading its data: these numbers are incomplete until it has finished."))
    if redis.role == "replica":
        warnings.append(_("This Redis is a replica and refuses writes: configure the primary, or Sentinel."))
    if not redis.aof:
        text = _(
            "Redis keeps no append-only file: if it crashes, it loses every job since its last snapshot "
            "(%s). Set “appendonly yes”."
        )
        warnings.append(text % _ago(redis.rdb_last_save_seconds))
    elif not redis.aof_ok:
        warnings.append(_("Redis could not write its append-only file: check if its disk is full."))
    if not redis.rdb_ok:
        warnings.append(_("Redis could not write its last snapshot: check its log, and if its disk is full."))
    if (redis.maxmemory_policy or "").startswith("allkeys"):
        warnings.append(
            _("maxmemory-policy %s deletes jobs when memory is full: set “noeviction”.") % redis.maxmemory_policy
        )
    if redis.maxmemory and (redis.used_memory or 0) > _NEARLY_FULL * redis.maxmemory:
        full = percent((redis.used_memory or 0) / redis.maxmemory)
        warnings.append(_("%s of Redis's memory limit is used: new jobs are refused when it is full.") % full)
    return warnings + _worker_warnings(snapshot)


def _worker_warnings(snapshot: Snapshot) -> list[str]:
    warnings = []
    lost = [worker.name for worker in snapshot.workers if worker.lost]
    if lost:
        text = ngettext(
            "%(n)d worker has sent no heartbeat for a while: %(names)s",
            "%(n)d workers have sent no heartbeat for a while: %(names)s",
            len(lost),
        )
        warnings.append(text % {"n": len(lost), "names": ", ".join(lost[:_MOST_NAMES])})
    held = [queue for queue in snapshot.queues if queue.counts.hold_ms > 0]
    if held:
        seconds = max(queue.counts.hold_ms for queue in held) / 1000
        text = _(
            "After an outage of Redis or a clock jump, no job is taken from a silent worker "
            "for another %(time)s (%(names)s)."
        )
        names = ", ".join(queue.name for queue in held[:_MOST_NAMES])
        warnings.append(text % {"time": duration(seconds), "names": names})
    alone = [queue for queue in snapshot.queues if queue.counts.quarantine]
    if alone:
        number = sum(queue.counts.quarantine for queue in alone)
        text = ngettext(
            "%(n)d job waits to run alone in a process, because its last process died while running it (%(names)s).",
            "%(n)d jobs wait to run alone in a process, because their last processes died "
            "while running them (%(names)s).",
            number,
        )
        warnings.append(text % {"n": number, "names": ", ".join(queue.name for queue in alone[:_MOST_NAMES])})
    parked = [queue for queue in snapshot.queues if queue.counts.parked]
    if parked:
        number = sum(queue.counts.parked for queue in parked)
        text = ngettext(
            "%(n)d due job waits for a free permit of its task (%(names)s).",
            "%(n)d due jobs wait for a free permit of their task (%(names)s).",
            number,
        )
        warnings.append(text % {"n": number, "names": ", ".join(queue.name for queue in parked[:_MOST_NAMES])})
    for queue in [queue for queue in snapshot.queues if queue.starving][:_MOST_NAMES]:
        priority, seconds = queue.starving or (0, 0.0)
        text = _(
            "Jobs of priority %(priority)d of %(queue)s have waited %(time)s for more urgent ones: "
            "add workers, or set “starve_after”."
        )
        warnings.append(text % {"queue": queue.name, "priority": priority, "time": duration(seconds)})
    waiting = any(
        queue.counts.ready and queue.kind == "python" and queue.paused in ("", "in") for queue in snapshot.queues
    )
    if waiting and snapshot.has_registry and all(worker.lost for worker in snapshot.workers):
        warnings.append(_("Jobs are due and no worker is running. Start one: manage.py delayq_worker"))
    return warnings
