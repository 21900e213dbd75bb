"""Warnings that need an operator's attention, as sentences that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .formatting import duration

if TYPE_CHECKING:
    from .snapshot import Snapshot

#: names that are listed; further ones are only counted
_MOST_NAMES: Final = 4
#: fraction of maxmemory above which a warning is shown
_NEARLY_FULL: Final = 0.9


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
        saved = redis.rdb_last_save_seconds
        ago = "–" if saved is None else _("%s ago") % duration(saved)
        text = _(
            "Redis keeps no append-only file: if it crashes, it loses every job since its last snapshot "
            "(%s). Set “appendonly yes”."
        )
        warnings.append(text % ago)
    elif not redis.aof_ok:
        warnings.append(_("Redis could not write its append-only file: check if its disk is full."))
    if not redis.rdb_ok:
        warnings.append(_("Redis could not write its last snapshot: check its log, and if its disk is full."))
    if (redis.maxmemory_policy or "").startswith("allkeys"):
        warnings.append(
            _("maxmemory-policy %s deletes jobs when memory is full: set “noeviction”.") % redis.maxmemory_policy
        )
    if redis.maxmemory and (redis.used_memory or 0) > _NEARLY_FULL * redis.maxmemory:
        full = f"{100 * (redis.used_memory or 0) / redis.maxmemory:.0f} %"
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
