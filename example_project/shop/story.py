"""Event log of the shop: one row for the pages, one log line for the terminal, one notification for the customer."""

from __future__ import annotations

import logging

from django_delayq import current_job

from .models import Event, Notification, Order
from .tracing import request_id

logger = logging.getLogger("shop")


def tell(text: str, order: Order | None = None) -> None:
    """Record ``text`` (about ``order``, if given), by the worker inside a job, else by the shop."""
    source = Event.Source.SHOP if current_job() is None else Event.Source.WORKER
    Event.objects.create(order=order, source=source, request=request_id.get(), text=text)
    logger.info("%s: %s", order, text) if order is not None else logger.info("%s", text)


def notify(order: Order, kind: Notification.Kind, text: str, *, key: str = "") -> bool:
    """Send the customer of ``order`` a message, once per ``key`` (default: per kind and order).

    Returns:
        True if it was sent now; False if an earlier attempt at the same job had already sent it.
    """
    _, sent = Notification.objects.get_or_create(
        key=key or f"{kind}-{order.pk}",
        defaults={"customer_id": order.customer_id, "order": order, "kind": kind, "text": text},
    )
    return sent
