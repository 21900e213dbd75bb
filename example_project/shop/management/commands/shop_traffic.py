"""``manage.py shop_traffic``: simulated customers who place orders and pay for some of them, for demos."""

from __future__ import annotations

import heapq
import random
import signal
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from shop import conf, services
from shop.models import Customer, Product
from shop.tracing import new_request_id


class Command(BaseCommand):
    help = "Places orders at a given rate and pays some of them, for a bounded time."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rate", type=float, default=0.5, help="orders per second (default 0.5)")
        parser.add_argument("--pay", type=float, default=0.6, help="share of the orders that get paid (default 0.6)")
        parser.add_argument("--seconds", type=float, default=600, help="how long (default 600)")
        parser.add_argument("--seed", default=None, help="the same seed gives the same customers (default: random)")

    def handle(self, *args: Any, rate: float, pay: float, seconds: float, seed: str | None, **options: Any) -> None:
        if not Product.objects.exists() or not Customer.objects.exists():
            raise CommandError("The shop has no products. Run `manage.py shop_seed` first.")
        self.stop = threading.Event()
        previous = signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        try:
            placed, paid = self._serve(random.Random(seed), rate, pay, seconds)
        finally:
            signal.signal(signal.SIGTERM, previous)
        self.stdout.write(f"{placed} orders placed, {paid} payments started")

    def _serve(self, dice: random.Random, rate: float, pay: float, seconds: float) -> tuple[int, int]:
        """Return the numbers of orders placed and payments started, at the end of the time or on SIGTERM."""
        patience = conf.cancel_after().total_seconds()
        payments: list[tuple[float, int]] = []  # (time, order) of the orders that will be paid
        placed = paid = 0
        next_order = time.monotonic()
        end = next_order + seconds
        while (now := time.monotonic()) < end:
            if now >= next_order:
                order_id = self._order(dice)
                next_order = max(next_order + 1 / rate, now)
                if order_id:
                    placed += 1
                    # The first order is paid and the second is not, so that even a short demo shows both.
                    pays = placed == 1 or (placed != 2 and dice.random() < pay)
                    if pays:
                        heapq.heappush(payments, (now + patience * dice.uniform(0.1, 0.5), order_id))
            while payments and payments[0][0] <= now:
                paid += self._pay(heapq.heappop(payments)[1])
            soonest = min([end, next_order, *(when for when, _ in payments[:1])])
            if self.stop.wait(max(0.0, soonest - time.monotonic())):
                break
        return placed, paid

    def _order(self, dice: random.Random) -> int:
        new_request_id()
        customer = dice.choice(list(Customer.objects.order_by("pk")))
        products = dice.sample(list(Product.objects.order_by("pk")), dice.choice((1, 1, 2)))
        try:
            order, _ = services.place_order(customer, {product: dice.randint(1, 3) for product in products})
        except services.OutOfStock as error:
            self.stdout.write(str(error))
            return 0
        return int(order.pk)

    def _pay(self, order_id: int) -> bool:
        new_request_id()
        try:
            services.pay_order(order_id)
        except services.NotPayable as error:
            self.stdout.write(str(error))
            return False
        return True
