"""Check of ``delayq_check`` for pauses, which somebody may have forgotten to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..core.broker import Broker
from ..core.layouts import queue_policy
from ..core.registry import recurring_pauses
from ..status.formatting import duration, printable
from .findings import Finding

_EFFECTS: Final = {"in": "takes no new jobs", "out": "starts no jobs"}


def pauses(broker: Broker) -> Iterator[Finding]:
    """Report paused producers, queues and recurring tasks. A pause that ends by itself is not reported."""
    now_ms, found = broker.now_ms(), []
    since = broker.producers_paused_since()
    if since is not None:
        age = duration((now_ms - since) / 1000)
        found.append(
            f"producers are paused for {age}, so no queue takes new jobs: manage.py delayq_queue resume-producers"
        )
    for queue in broker.queues():
        orders = queue_policy(queue.layout, now_ms)
        lasting = [word for word in _EFFECTS if orders["paused"] in (word, "both") and word not in orders["until"]]
        if lasting:
            name, effects = printable(queue.name), " and ".join(_EFFECTS[word] for word in lasting)
            found.append(f"queue {name} is paused and {effects}: manage.py delayq_queue resume {name}")
    for task, paused_ms in sorted(recurring_pauses(broker).items()):
        name, age = printable(task), duration((now_ms - paused_ms) / 1000)
        found.append(f"recurring task {name} is paused for {age}: manage.py delayq_recurring resume {name}")
    for text in found:
        yield Finding("WARN", "pauses", text)
    if not found:
        yield Finding("OK", "pauses", "nothing is paused for good")
