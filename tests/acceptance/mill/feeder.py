"""A program that schedules durable jobs, each in a transaction of its own, until a file is there.

``python -m tests.acceptance.mill.feeder FILE``. It leaves a line for each job when its transaction has been committed
(``took``: how long the whole took), and for each job that was cancelled.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from pathlib import Path

import django

django.setup()

from django.db import transaction  # noqa: E402

from django_delayq import cancel, schedule  # noqa: E402

from .tasks import grind_on, stumble  # noqa: E402
from .trace import leave  # noqa: E402

#: s; how long a job that is to be cancelled lives
REGRET = 0.5


def feed(stop: Path, dice: random.Random) -> None:
    doomed: deque[tuple[float, str]] = deque()
    number = 0
    while not stop.exists():
        number += 1
        kind = dice.choice(("now", "now", "now", "soon", "dead", "doomed"))
        ident = f"{kind}-{number}"
        began = time.monotonic()
        with transaction.atomic():
            if kind == "dead":
                schedule(stumble, id=ident, durable=True, max_attempts=1)
            else:
                delay = {"now": 0.0, "soon": 1.5, "doomed": 600.0}[kind]
                schedule(grind_on, dice.choice((0.0, 0.0, 0.05)), id=ident, durable=True, delay=delay)
        leave("committed", id=ident, kind=kind, took=time.monotonic() - began)
        if kind == "doomed":
            doomed.append((time.monotonic() + REGRET, ident))
        while doomed and doomed[0][0] < time.monotonic():
            _, ident = doomed.popleft()
            with transaction.atomic():
                cancel(grind_on, id=ident)
            leave("cancelled", id=ident)
        time.sleep(0.005)
    for _, ident in doomed:
        with transaction.atomic():
            cancel(grind_on, id=ident)
        leave("cancelled", id=ident)


if __name__ == "__main__":
    feed(Path(sys.argv[1]), random.Random(7))
