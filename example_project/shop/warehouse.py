"""The warehouse that packs what was ordered: another company's system, slow and at times too busy to listen."""

from __future__ import annotations

import random

from . import conf


class WarehouseBusy(Exception):
    """It did not take the message; ask again later."""


def send(order_id: str, version: int, statuses: list[str], attempt: int) -> None:
    """Tell the warehouse what became of an order. It ignores a version that is not newer than the one that it knows.

    Like the gateway it is predictable: whether it is busy depends on the order, its version and the attempt.

    Raises:
        WarehouseBusy: nothing was taken.
    """
    if random.Random(f"{order_id}/{version}/{attempt}").random() < conf.warehouse_failure_rate():
        raise WarehouseBusy(f"the warehouse is too busy for order {order_id}: {', '.join(statuses)}")
