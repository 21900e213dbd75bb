"""One turn of a relay in a process of its own, which may die at a step: ``python -m tests.app.relay_program STEP``.

Steps: claimed, told, marked (the row is changed, but not committed), committed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from django_delayq import connections  # noqa: E402
from django_delayq.outbox.claims import ClaimedBatch, Outbox  # noqa: E402
from django_delayq.outbox.protocol import Claim, RowResult  # noqa: E402
from django_delayq.outbox.relay import Relay  # noqa: E402
from django_delayq.outbox.sender import OutboxSender  # noqa: E402
from django_delayq.settings import conf  # noqa: E402


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalSender(OutboxSender):
    """Its part in that."""

    def send(self, hand: ClaimedBatch) -> Any:
        if Mortal.step == "claimed":
            die()
        yield from super().send(hand)
        if Mortal.step == "told":
            die()


class Mortal(Relay):
    """A relay that dies behind a step."""

    step = ""

    def _settle(self, hand: ClaimedBatch, results: dict[int, RowResult]) -> None:
        super()._settle(hand, results)
        if self.step == "committed":
            die()


def settle(*args: Any) -> Any:
    settled(*args)
    die()


if __name__ == "__main__":
    Mortal.step = sys.argv[1]
    settled = Claim.settle
    if Mortal.step == "marked":
        Claim.settle = settle  # type: ignore[method-assign]
    relay = Mortal(conf.conf(), Outbox("default"), connections.broker())
    relay._sender = MortalSender(conf.conf(), connections.broker())
    while relay.run() == 0.0:
        pass
