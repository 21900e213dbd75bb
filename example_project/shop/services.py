"""Actions of a customer. Each function is one transaction; its jobs are sent when that commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from django_delayq import cancel, schedule

from . import conf
from .models import Customer, Order, OrderLine, Payment, Product
from .story import tell
from .tasks import RESTOCK_BELOW, cancel_order, remind_customer, restock, tell_warehouse, watch
from .words import span

if TYPE_CHECKING:
    from django_delayq.scheduling import JobHandle


class OutOfStock(Exception):
    """Error for an insufficient stock; the message says how much is left."""


class NotPayable(Exception):
    """Error for an order that is paid, being paid or cancelled already."""


def place_order(customer: Customer, quantities: Mapping[Product, int]) -> tuple[Order, JobHandle]:
    """Place an order and schedule its cancellation.

    Args:
        customer: the buyer.
        quantities: number of pieces by product, at least one.

    Returns:
        The order, and the handle of its cancellation; its outcome is "outbox" while the queue is unavailable.

    Raises:
        OutOfStock: nothing was ordered.
    """
    delay = conf.cancel_after()
    with transaction.atomic():
        order = Order.objects.create(customer=customer, expires_at=timezone.now() + delay)
        for product, quantity in quantities.items():
            _take(product.pk, quantity)
            OrderLine.objects.create(order=order, product=product, quantity=quantity, price=product.price)
        what = ", ".join(f"{quantity}\N{NO-BREAK SPACE}× {product}" for product, quantity in quantities.items())
        tell(f"placed by {customer}: {what}; cancelled in {span(delay)} unless paid", order)
        tell_warehouse(order)
        handle = watch(order, delay)  # sent when this block has committed
    return order, handle


def _take(product_id: int, quantity: int) -> None:
    """Take goods off the shelf; order new ones when few are left (one delivery at a time)."""
    product = Product.objects.select_for_update().get(pk=product_id)
    if quantity > product.stock:
        raise OutOfStock(f"Only {product.stock} × {product} left. A delivery is on its way.")
    product.stock -= quantity
    product.save(update_fields=("stock",))
    if product.stock < RESTOCK_BELOW:
        schedule(restock, product.pk, delay=conf.restock_after(), id=f"restock-{product.pk}", on_conflict="ignore")


@transaction.atomic
def pay_order(order_id: int) -> Payment:
    """Pay for an order: cancel its cancellation, and start checking the payment with the gateway.

    Raises:
        NotPayable: too late, or already done.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.status != Order.Status.PLACED:
        raise NotPayable(f"Order {order.pk} cannot be paid: it is {order.get_status_display()}.")
    order.move_to(Order.Status.PAYING)
    # Saving its row schedules the first request to the gateway (see apps.py).
    payment = Payment.objects.create(order=order, amount=order.total, reference=f"pay-{order.pk}-{uuid4().hex[:8]}")
    tell("payment started, the cancellation is taken back", order)
    cancel(cancel_order, id=f"order-{order.pk}")
    cancel(remind_customer, id=f"reminder-{order.pk}")
    tell_warehouse(order)
    return payment
