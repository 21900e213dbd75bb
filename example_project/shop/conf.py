"""Settings of the shop with their defaults: from Django's settings, else from the environment, at the moment of use."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings


def value(name: str, default: Any = None) -> Any:
    """Return the setting ``SHOP_<name>``."""
    return getattr(settings, f"SHOP_{name}", os.environ.get(f"SHOP_{name}", default))


def number(name: str, default: float) -> float:
    """Return the setting ``SHOP_<name>`` as a number."""
    return float(value(name, default))


def _span(name: str, seconds: float) -> timedelta:
    return timedelta(seconds=number(name, seconds))


#: time after which an unpaid order is cancelled
cancel_after = partial(_span, "CANCEL_AFTER", 30 * 60)
#: time between the reminder of the customer and the cancellation
remind_before = partial(_span, "REMIND_BEFORE", 10 * 60)
#: duration of a delivery of new goods
restock_after = partial(_span, "RESTOCK_AFTER", 60 * 60)
#: time for which updates of an order are collected before one call to the warehouse
warehouse_after = partial(_span, "WAREHOUSE_AFTER", 60)
#: time between two reports; read once, when the tasks are loaded
report_every = partial(_span, "REPORT_EVERY", 24 * 60 * 60)
#: period over which the messages of one campaign are sent
campaign_spread = partial(_span, "CAMPAIGN_SPREAD", 15 * 60)


def campaign_hour() -> int:
    """Return the local hour at which the nightly campaign starts. Read once, when the tasks are loaded."""
    return int(number("CAMPAIGN_HOUR", 3))


def mailbox() -> str | None:
    """Return the folder for the nightly greetings; None = they become notifications of the shop."""
    return str(value("MAILBOX")) if value("MAILBOX") else None


def nowhere_is_back() -> bool:
    """Return True if the provider that is down accepts messages again."""
    return bool(number("NOWHERE_IS_BACK", 0))
