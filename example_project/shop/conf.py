"""Settings of the shop with their defaults: from Django's settings, else from the environment, at the moment of use."""

from __future__ import annotations

import os
from datetime import timedelta
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


def cancel_after() -> timedelta:
    """Return the time after which an unpaid order is cancelled."""
    return _span("CANCEL_AFTER", 30 * 60)


def remind_before() -> timedelta:
    """Return the time between the reminder of the customer and the cancellation."""
    return _span("REMIND_BEFORE", 10 * 60)


def restock_after() -> timedelta:
    """Return the duration of a delivery of new goods."""
    return _span("RESTOCK_AFTER", 60 * 60)


def warehouse_after() -> timedelta:
    """Return the time for which updates of an order are collected before one call to the warehouse."""
    return _span("WAREHOUSE_AFTER", 60)


def report_every() -> timedelta:
    """Return the time between two reports. Read once, when the tasks are loaded."""
    return _span("REPORT_EVERY", 24 * 60 * 60)


def campaign_hour() -> int:
    """Return the local hour at which the nightly campaign starts. Read once, when the tasks are loaded."""
    return int(number("CAMPAIGN_HOUR", 3))


def campaign_spread() -> timedelta:
    """Return the period over which the messages of one campaign are sent."""
    return _span("CAMPAIGN_SPREAD", 15 * 60)


def mailbox() -> str | None:
    """Return the folder for the nightly greetings; None = they become notifications of the shop."""
    return str(value("MAILBOX")) if value("MAILBOX") else None


def nowhere_is_back() -> bool:
    """Return True if the provider that is down accepts messages again."""
    return bool(number("NOWHERE_IS_BACK", 0))
