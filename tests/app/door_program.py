"""A request that may die at a step: ``python -m tests.app.door_program STEP``.

Steps: inserted (the rows are not committed), committed, claimed, told (Redis has them, the rows do not say so).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402

from django_delayq import schedule, schedule_many  # noqa: E402
from django_delayq.outbox.push import Push  # noqa: E402
from tests.app.deeds import note, sync  # noqa: E402


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    step = sys.argv[1]
    if step == "claimed":
        take = Push.take
        Push.take = lambda *args: die(take(*args))  # type: ignore[method-assign]
    if step == "told":
        Push.settle = die  # type: ignore[method-assign]
    with transaction.atomic():
        if step == "committed":
            transaction.on_commit(die)
        schedule(note, "x", id="order-1", durable=True)
        schedule_many(note, [{"args": ["y"], "id": "order-2"}], durable=True)
        schedule(sync, id=7, payload={"n": 1}, durable=True)
        if step == "inserted":
            die()
