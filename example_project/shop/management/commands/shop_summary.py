"""``manage.py shop_summary``: counts of what happened in the shop."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Max, Sum

from shop.models import Event, Notification, Order, Payment


class Command(BaseCommand):
    help = "Counts orders, payments and messages, as one line of JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", type=float, default=0, help="only what happened after this Unix time")

    def handle(self, *args: Any, since: float, **options: Any) -> None:
        start = datetime.fromtimestamp(since, UTC)
        closed = Order.objects.filter(closed_at__gte=start)
        cancelled = closed.filter(status=Order.Status.CANCELLED)
        # An earlier order may have waited for a worker to be started; that is not lateness.
        fresh = cancelled.filter(expires_at__gte=start)
        late = [(order.closed_at - order.expires_at).total_seconds() for order in fresh if order.closed_at]
        payments = Payment.objects.filter(created_at__gte=start)
        counts = {
            "placed": Order.objects.filter(created_at__gte=start).count(),
            "paid": closed.filter(status=Order.Status.PAID).count(),
            "cancelled": cancelled.count(),
            "cancelled_by_worker": Event.objects.filter(
                order__in=cancelled, source=Event.Source.WORKER, text__startswith="CANCELLED"
            ).count(),
            "waiting": Order.objects.filter(status__in=(Order.Status.PLACED, Order.Status.PAYING)).count(),
            "payment_checks": payments.aggregate(n=Sum("checks"))["n"] or 0,
            "most_checks": payments.aggregate(n=Max("checks"))["n"] or 0,
            "refused": payments.filter(status=Payment.Status.REFUSED).count(),
            "warehouse_calls": Event.objects.filter(at__gte=start, text__startswith="the warehouse knows").count(),
            "messages": Notification.objects.filter(sent_at__gte=start).count(),
            "earliest_s": round(min(late), 3) if late else None,
            "latest_s": round(max(late), 3) if late else None,
        }
        self.stdout.write(json.dumps(counts))
