"""A program that orders: each order is a row and a durable job in one transaction, until a file is there.

``python -m tests.acceptance.mill.buyer NAME FILE``. The rows say what was committed: ``order ID``, and ``regret ID`` if
the order's job was cancelled in a later transaction. Whatever happens to the database, the program goes on.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import django

django.setup()

from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: E402

from django_delayq import cancel, schedule  # noqa: E402

from .models import Sack  # noqa: E402
from .tasks import charge  # noqa: E402

#: kinds of orders and how often each is drawn
KINDS = {"now": 6, "soon": 4, "refused": 2, "regretted": 2}
#: s; until the job of an order is due
DELAYS = {"now": 0.0, "soon": 1.5, "refused": 0.0, "regretted": 600.0}
#: s; until an order is regretted
REGRET_SECONDS = 1.0
PAUSE_SECONDS = 0.01


class Refused(Exception):
    """End of a transaction that is rolled back."""


def order(ident: str, kind: str, seconds: float) -> None:
    with transaction.atomic():
        Sack.objects.create(name=f"order {ident}")
        schedule(charge, seconds, id=ident, durable=True, delay=DELAYS[kind])
        if kind == "refused":
            raise Refused


def regret(ident: str) -> None:
    with transaction.atomic():
        if not Sack.objects.filter(name=f"order {ident}").exists():
            return  # its commit did not arrive
        if not Sack.objects.filter(name=f"regret {ident}").exists():
            Sack.objects.create(name=f"regret {ident}")
        cancel(charge, id=ident)


def attempt(step: Callable[[], None]) -> bool:
    """Return False if the database failed meanwhile: nobody can tell whether the transaction was committed."""
    try:
        step()
    except Refused:
        return True
    except (DatabaseError, InterfaceError):
        connection.close()
        time.sleep(0.1)
        return False
    return True


def buy(name: str, stop: Path, dice: random.Random) -> None:
    regrets: deque[tuple[float, str]] = deque()
    number = 0
    while not stop.exists():
        number += 1
        (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
        ident, seconds = f"{name}-{kind}-{number}", dice.choice((0.0, 0.0, 0.05))
        attempt(partial(order, ident, kind, seconds))
        if kind == "regretted":
            regrets.append((time.monotonic() + REGRET_SECONDS, ident))
        while regrets and regrets[0][0] < time.monotonic() and attempt(partial(regret, regrets[0][1])):
            regrets.popleft()
        time.sleep(PAUSE_SECONDS)
    while regrets:
        if attempt(partial(regret, regrets[0][1])):
            regrets.popleft()


if __name__ == "__main__":
    buy(sys.argv[1], Path(sys.argv[2]), random.Random(sys.argv[1]))
