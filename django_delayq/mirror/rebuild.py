"""Rebuild of the index mirrors from scratch: ``manage.py delayq_reconcile --mirror``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .. import connections
from ..core.bulk import Progress
from ..settings.conf import conf
from .duty import delete_rows
from .index_mirror import IndexMirror, cursors_of, table
from .review import review
from .rows import FAILED, MORGUE


def rebuild(queues: Iterable[str] | None = None, progress: Progress | None = None) -> dict[str, int]:
    """Delete cursors and rows, and copy everything that Redis has, unless mirrors are switched off (``MIRROR``).

    Dispatchers may keep running.

    Args:
        queues: names of queues; None = all, including removed ones.
        progress: called after each shard with the number of rows copied and the number that Redis had at the start.

    Returns:
        Number of rows after the rebuild, by place (``failed``, ``morgue``).

    Raises:
        QueueUnavailable: Redis cannot be reached. Rows copied before that are kept.
    """
    broker = connections.broker()
    live = {queue.name: queue for queue in broker.queues()}
    selected = None if queues is None else set(queues)
    counts: Counter[str] = Counter({FAILED.name: 0, MORGUE.name: 0})
    stored = [one for one in broker.inspector.all_counts() if selected is None or one.queue in selected]
    total = sum(one.failed + one.morgue for one in stored)
    for place in (FAILED, MORGUE):
        rows, cursors = table(place), cursors_of(place)
        names = {*rows.order_by().values_list("queue", "shard").distinct(), *cursors.values_list("queue", "shard")}
        for name, number in sorted(names):
            if selected is None or name in selected:
                delete_rows((name, number, place.name))
        for name in _copied(live, selected):
            for number in live[name].numbers:
                mirror = IndexMirror(conf().mirror, live[name], number, place)
                for _ in (*mirror.copy(), *review(mirror)):
                    pass
                counts[place.name] += mirror.rows.count()
                if progress:
                    progress(counts.total(), max(total, counts.total()))
    return dict(counts)


def _copied(live: Iterable[str], selected: set[str] | None) -> Iterable[str]:
    if not conf().is_mirrored:
        return ()
    return live if selected is None else selected & set(live)
