"""Settings of the shop with their defaults, read at the moment of use so that ``override_settings`` works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings


def cancel_after() -> timedelta:
    """Return the time after which an unpaid order is cancelled."""
    return _span("SHOP_CANCEL_AFTER", timedelta(minutes=30))


def remind_before() -> timedelta:
    """Return the time between the reminder of the customer and the cancellation."""
    return _span("SHOP_REMIND_BEFORE", timedelta(minutes=10))


def restock_after() -> timedelta:
    """Return the duration of a delivery of new goods."""
    return _span("SHOP_RESTOCK_AFTER", timedelta(hours=1))


def warehouse_after() -> timedelta:
    """Return the time for which updates of an order are collected before one call to the warehouse."""
    return _span("SHOP_WAREHOUSE_AFTER", timedelta(minutes=1))


def warehouse_failure_rate() -> float:
    """Return the share of calls for which the warehouse is too busy, 0 … 1."""
    return float(getattr(settings, "SHOP_WAREHOUSE_FAILURE_RATE", 0.1))


def report_every() -> timedelta:
    """Return the time between two reports. Read once, when the tasks are loaded."""
    return _span("SHOP_REPORT_EVERY", timedelta(days=1))


def campaign_hour() -> int:
    """Return the local hour at which the nightly campaign starts. Read once, when the tasks are loaded."""
    return int(getattr(settings, "SHOP_CAMPAIGN_HOUR", 3))


def campaign_spread() -> timedelta:
    """Return the period over which the messages of one campaign are sent."""
    return _span("SHOP_CAMPAIGN_SPREAD", timedelta(minutes=15))


def mailbox() -> str | None:
    """Return the folder for the nightly greetings; None = they become notifications of the shop."""
    folder = getattr(settings, "SHOP_MAILBOX", None)
    return str(folder) if folder else None


def nowhere_is_back() -> bool:
    """Return True if the provider that is down accepts messages again."""
    return bool(getattr(settings, "SHOP_NOWHERE_IS_BACK", False))


def gateway() -> dict[str, Any]:
    """Return the arguments of :class:`shop.gateway.FakeGateway`."""
    return dict(getattr(settings, "SHOP_GATEWAY", {}))


def _span(name: str, default: timedelta) -> timedelta:
    value = getattr(settings, name, default)
    return value if isinstance(value, timedelta) else timedelta(seconds=float(value))
