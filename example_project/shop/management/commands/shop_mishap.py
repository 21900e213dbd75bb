"""``manage.py shop_mishap``: simulates an operator's mistake, for demos of its repair."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_delayq import cancel
from shop.models import Order
from shop.tasks import cancel_order


class Command(BaseCommand):
    help = "Deletes the cancellation jobs of some unpaid orders, so that these orders stay unpaid. For demos."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--orders", type=int, default=7, help="how many (default 7)")

    def handle(self, *args: Any, orders: int, **options: Any) -> None:
        unpaid = Order.objects.filter(status=Order.Status.PLACED).order_by("pk")
        lost = [pk for pk in unpaid.values_list("pk", flat=True)[:orders] if cancel(cancel_order, id=f"order-{pk}")]
        if len(lost) < orders:
            raise CommandError(f"Only {len(lost)} unpaid orders had a cancellation. Place some: shop_traffic --pay 0")
        self.stdout.write(f"the cancellations of {len(lost)} orders are lost: {', '.join(map(str, lost))}")
