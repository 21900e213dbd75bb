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
from django_delayq.outbox import push  # noqa: E402
from django_delayq.outbox.duties import Relay  # noqa: E402
from django_delayq.settings import conf  # noqa: E402


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_behind(function: Any) -> Any:
    def mortal(*args: Any) -> Any:
        function(*args)
        die()

    return mortal


if __name__ == "__main__":
    step = sys.argv[1]
    if step in ("claimed", "told", "committed"):
        method = {"claimed": "take", "told": "send", "committed": "settle"}[step]
        setattr(push.Push, method, dying_behind(getattr(push.Push, method)))
    else:
        push.write = dying_behind(push.write)
    relay = Relay(conf.conf(), "default", connections.broker())
    while relay.run() == 0.0:
        pass
