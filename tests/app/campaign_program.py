"""A caller of a campaign: ``python -m tests.app.campaign_program NUMBER SEED FILE``, until its standard input ends.

It schedules durable and plain jobs into one queue, and cancels, moves, purges and runs jobs of all callers. Each call
is a line in the file: verb, id, begin and end (monotonic, the same for all processes), and the reply.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import django

django.setup()

from django.db import transaction  # noqa: E402

from django_delayq import cancel, connections, reschedule, run_now, schedule  # noqa: E402
from django_delayq.core.bulk import Changed  # noqa: E402
from django_delayq.core.errors import DelayQError  # noqa: E402
from django_delayq.outbox import row_verbs  # noqa: E402
from tests.app.deeds import note  # noqa: E402

QUEUE = "campaign"
CALLERS = 3
#: s; no job is due during a campaign unless it is run now
FAR = 3600.0
VERBS = ("durable",) * 6 + ("plain",) * 3 + ("cancel", "reschedule", "run_now") * 2


class Caller:
    """One process; ``dice`` decides what it does."""

    def __init__(self, number: int, dice: random.Random, log: TextIO) -> None:
        self.number = number
        self.dice = dice
        self.log = log
        self.made = 0

    def step(self) -> None:
        """Do one thing."""
        sweep = self.dice.random()
        if sweep < 0.012:
            self.call("purge", "", lambda: row_verbs.cancel_all(connections.queue(QUEUE)))
        elif sweep < 0.024:
            self.call("run_all", "", lambda: row_verbs.run_all_now(connections.queue(QUEUE)))
        else:
            self.change(self.dice.choice(VERBS))

    def change(self, verb: str) -> None:
        if verb in ("durable", "plain"):
            self.made += 1
            ident = f"{verb}-{self.number}-{self.made}"
            self.call(
                verb, ident, lambda: schedule(note, "x", id=ident, queue=QUEUE, delay=FAR, durable=verb == "durable")
            )
            return
        kind, owner = self.dice.choice(("durable", "plain")), self.dice.randrange(CALLERS)
        ident = f"{kind}-{owner}-{self.dice.randint(max(1, self.made - 30), self.made + 1)}"
        deeds: dict[str, Callable[[], object]] = {
            "cancel": lambda: cancel(ident, queue=QUEUE),
            "reschedule": lambda: reschedule(ident, queue=QUEUE, delay=2 * FAR),
            "run_now": lambda: run_now(ident, queue=QUEUE),
        }
        self.call(verb, ident, deeds[verb])

    def call(self, verb: str, ident: str, deed: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            with transaction.atomic() if self.dice.random() < 0.5 and ident else threading.Lock():
                reply = deed()
            said = reply.counts if isinstance(reply, Changed) else getattr(reply, "outcome", reply)
        except DelayQError as error:
            said = type(error).__name__
        line = {"verb": verb, "id": ident, "began": began, "ended": time.monotonic(), "reply": said}
        self.log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    number, seed, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with open(path, "w", buffering=1) as log:
        caller = Caller(number, random.Random(seed * CALLERS + number), log)
        while not over.is_set():
            caller.step()
