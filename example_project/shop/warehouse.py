"""Simulated warehouse: another company's system, slow and sometimes too busy."""

from __future__ import annotations

import random

from . import conf


class WarehouseBusy(Exception):
    """Error for a message that was not accepted; retry later."""


def send(order_id: str, version: int, statuses: list[str], attempt: int) -> None:
    """Send the updates of an order to the warehouse, which ignores versions that it already has.

    Like the gateway it is predictable: a failure depends only on the order, its version and the attempt.

    Raises:
        WarehouseBusy: nothing was accepted.
    """
    if random.Random(f"{order_id}/{version}/{attempt}").random() < conf.number("WAREHOUSE_FAILURE_RATE", 0.1):
        raise WarehouseBusy(f"the warehouse is too busy for order {order_id}: {', '.join(statuses)}")
