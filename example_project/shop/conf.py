"""The shop's own settings, each with its default, read at the moment of use so that ``override_settings`` works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings


def cancel_after() -> timedelta:
    """How long an order may stay unpaid."""
    return _span("SHOP_CANCEL_AFTER", timedelta(minutes=30))


def remind_before() -> timedelta:
    """How long before its cancellation the customer is reminded."""
    return _span("SHOP_REMIND_BEFORE", timedelta(minutes=10))


def restock_after() -> timedelta:
    """How long a delivery of new goods takes."""
    return _span("SHOP_RESTOCK_AFTER", timedelta(hours=1))


def warehouse_after() -> timedelta:
    """How long news of an order are collected before the warehouse is told of them in one call."""
    return _span("SHOP_WAREHOUSE_AFTER", timedelta(minutes=1))


def warehouse_failure_rate() -> float:
    """The share of the calls for which the warehouse is too busy, 0 … 1."""
    return float(getattr(settings, "SHOP_WAREHOUSE_FAILURE_RATE", 0.1))


def report_every() -> timedelta:
    """The time between two reports. Read once, when the tasks are loaded."""
    return _span("SHOP_REPORT_EVERY", timedelta(days=1))


def campaign_hour() -> int:
    """The local hour at which the nightly campaign starts. Read once, when the tasks are loaded."""
    return int(getattr(settings, "SHOP_CAMPAIGN_HOUR", 3))


def campaign_spread() -> timedelta:
    """The span over which the messages of one campaign go out."""
    return _span("SHOP_CAMPAIGN_SPREAD", timedelta(minutes=15))


def mailbox() -> str | None:
    """The folder in which the greetings of the night are written; None = they are notifications of the shop."""
    folder = getattr(settings, "SHOP_MAILBOX", None)
    return str(folder) if folder else None


def nowhere_is_back() -> bool:
    """Whether the provider that is down takes messages again."""
    return bool(getattr(settings, "SHOP_NOWHERE_IS_BACK", False))


def gateway() -> dict[str, Any]:
    """Arguments of :class:`shop.gateway.FakeGateway`."""
    return dict(getattr(settings, "SHOP_GATEWAY", {}))


def _span(name: str, default: timedelta) -> timedelta:
    value = getattr(settings, name, default)
    return value if isinstance(value, timedelta) else timedelta(seconds=float(value))
