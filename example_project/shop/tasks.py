"""Tasks of the shop, run by ``manage.py delayq_worker`` when they are due.

A task may run twice (at-least-once delivery), so each one first checks that its work is still to be done.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from django.db import transaction
from django.db.models import Count, F, Q
from django.utils import timezone

from django_delayq import Retry, current_job, exactly_once, schedule, schedule_many, task

from . import conf, gateway, mail, warehouse
from .models import Campaign, Customer, Notification, Order, Payment, Product
from .story import notify, tell
from .words import span

if TYPE_CHECKING:
    from django_delayq.scheduling import JobHandle
    from django_delayq.worker.attempt import CurrentJob

RESTOCK_BELOW = 10
RESTOCK_BY = 40
BIG_ORDER = 60  # minimum total of orders that the partner is notified of
NIGHTLY = "Good night: everything that takes time is 10 % off"


# --- orders ----------------------------------------------------------------------------------------------------------
@task(queue="orders", max_attempts=5, timeout=30, durable=True)  # stored durably, so it survives the loss of Redis
@exactly_once  # in a transaction, so that goods are restocked once, however often the job runs
def cancel_order(order_id: int) -> None:
    """Cancel an order that was not paid, and put its goods back on the shelf."""
    order = Order.objects.select_for_update().filter(pk=order_id).first()
    if order is None or order.status != Order.Status.PLACED:
        return  # paid meanwhile, or being paid
    for line in order.lines.all():
        Product.objects.filter(pk=line.product_id).update(stock=F("stock") + line.quantity)
    order.move_to(Order.Status.CANCELLED)
    tell_warehouse(order)
    notify(order, Notification.Kind.CANCELLED, f"Your order {order.pk} was not paid in time and is cancelled.")
    tell("CANCELLED, not paid in time", order)
    if order.total >= BIG_ORDER:
        schedule(tell_partner, order.pk, id=f"partner-{order.pk}")


@task(queue="notifications", max_attempts=5, timeout=30)
def remind_customer(order_id: int) -> None:
    """Remind the customer of an unpaid order that it will be cancelled soon."""
    with transaction.atomic():
        order = Order.objects.select_for_update().select_related("customer").filter(pk=order_id).first()
        if order is None or order.status != Order.Status.PLACED:
            return
        end = timezone.localtime(order.expires_at)
        text = f"Your order {order.pk} is still waiting: please pay before {end:%H:%M:%S}."
        if notify(order, Notification.Kind.REMINDER, text, key=f"reminder-{order.pk}-{order.expires_ms}"):
            tell(f"reminded {order.customer} to pay", order)


def watch(order: Order, delay: timedelta) -> JobHandle:
    """Schedule the cancellation of ``order`` after ``delay``, and the reminder that precedes it."""
    handle = schedule(cancel_order, order.pk, delay=delay, id=f"order-{order.pk}")
    until_reminder = delay - conf.remind_before()
    if until_reminder > timedelta(0):
        schedule(remind_customer, order.pk, delay=until_reminder, id=f"reminder-{order.pk}")
    return handle


@task(queue="orders", max_attempts=5, timeout=30, api=True)  # a supplier's program may call it over HTTP
def restock(product_id: int) -> None:
    """Add a delivery to the stock."""
    with transaction.atomic():
        product = Product.objects.select_for_update().get(pk=product_id)
        if product.stock >= RESTOCK_BELOW:
            return
        product.stock += RESTOCK_BY
        product.save(update_fields=("stock",))
        tell(f"{RESTOCK_BY} × {product} delivered")


# --- the warehouse ----------------------------------------------------------------------------------------------------
class Update(TypedDict):
    """Update for the warehouse: a status, and its version number."""

    version: int
    status: str


def tell_warehouse(order: Order) -> None:
    """Queue an update of the order. Updates that arrive meanwhile are sent in the same call, ordered by version."""
    update = Update(version=order.version, status=str(order.status))
    schedule(sync_order, id=order.pk, payload=update, score=order.version, delay=conf.warehouse_after())


@task(merge=True, queue="warehouse", max_attempts=8, timeout=30, retry_in="ladder")
def sync_order(updates_by_order: dict[str, list[Update]]) -> None:
    """Send the updates of an order to the warehouse in one call. There are never two concurrent calls for an order."""
    job = current_job()
    for order_id, updates in updates_by_order.items():
        statuses = [update["status"] for update in updates]
        warehouse.send(order_id, updates[-1]["version"], statuses, attempt=job.attempt if job is not None else 1)
        order = Order.objects.filter(pk=order_id).first()
        tell(f"the warehouse knows: {' → '.join(statuses)}", order)


# --- payments --------------------------------------------------------------------------------------------------------
def payment_backoff(n: int) -> float:
    """Return the seconds until the next request to a gateway that was down: 1, 2, 4 … 60."""
    return float(min(2**n, 60))


@task(queue="payments", max_attempts=10, timeout=10, retry_in=payment_backoff)
def check_payment(payment_id: int) -> None:
    """Ask the gateway for the result of a payment. If the gateway is down, the job fails and is retried."""
    payment = Payment.objects.select_related("order").get(pk=payment_id)
    if payment.status != Payment.Status.PENDING:
        return
    asked_before = payment.checks
    # Counted outside the transaction below, so that failed attempts are counted too.
    Payment.objects.filter(pk=payment_id).update(checks=F("checks") + 1)
    try:
        paid = gateway.is_paid(payment.reference, asked_before)
    except (gateway.GatewayBusy, gateway.GatewayDown) as error:
        job = current_job()
        if job is not None and job.lives <= 1:
            settle_payment(payment_id, paid=False, why="the gateway could not be reached")
            return
        tell(f"payment check {asked_before + 1} failed ({error}); it will be repeated", payment.order)
        if isinstance(error, gateway.GatewayBusy):
            raise Retry(str(error), delay=error.retry_after) from error
        raise
    settle_payment(payment_id, paid=paid, why="the bank refused")


def settle_payment(payment_id: int, *, paid: bool, why: str) -> None:
    """Store the result of a payment; ``why`` it was refused is sent to the customer."""
    with transaction.atomic():
        payment = Payment.objects.select_for_update().select_related("order").get(pk=payment_id)
        order = Order.objects.select_for_update().get(pk=payment.order_id)
        if payment.status != Payment.Status.PENDING:
            return
        payment.status = Payment.Status.PAID if paid else Payment.Status.REFUSED
        payment.settled_at = timezone.now()
        payment.save(update_fields=("status", "settled_at"))
        if paid:
            order.move_to(Order.Status.PAID)
            tell_warehouse(order)
            notify(order, Notification.Kind.PAID, f"Thank you: order {order.pk} is paid.")
            tell(f"PAID after {payment.checks} payment check{'s' if payment.checks != 1 else ''}", order)
            return
        delay = conf.cancel_after()
        order.expires_at = timezone.now() + delay
        order.move_to(Order.Status.PLACED)
        tell_warehouse(order)
        notify(
            order,
            Notification.Kind.REFUSED,
            f"The payment of order {order.pk} was refused ({why}).",
            key=f"refused-{payment.pk}",
        )
        tell(f"payment refused ({why}); the clock runs again", order)
        watch(order, delay)


# --- messages --------------------------------------------------------------------------------------------------------
@task(queue="campaigns", max_attempts=5, timeout=60)
def send_campaign(campaign_id: int) -> None:
    """Schedule one message per customer, spread evenly over a period."""
    with transaction.atomic():
        campaign = Campaign.objects.select_for_update().get(pk=campaign_id)
        if campaign.planned:
            return
        customers = list(Customer.objects.values_list("pk", flat=True))
        gap = conf.campaign_spread() / max(len(customers), 1)
        start = timezone.now()
        schedule_many(
            send_message,
            [
                {"args": [campaign.pk, pk], "id": f"campaign-{campaign.pk}-{pk}", "at": start + gap * n}
                for n, pk in enumerate(customers)
            ],
        )
        campaign.planned = len(customers)
        campaign.save(update_fields=("planned",))
        tell(f"campaign “{campaign}”: {len(customers)} messages scheduled")


def plan_campaign(subject: str, at: datetime) -> tuple[Campaign, JobHandle]:
    """Schedule a campaign for ``at``; a repeated call returns the same campaign."""
    with transaction.atomic():
        campaign, _ = Campaign.objects.get_or_create(subject=subject, starts_at=at)
        handle = schedule(send_campaign, campaign.pk, at=at, id=f"campaign-{campaign.pk}")
    return campaign, handle


@task(queue="notifications", max_attempts=5, timeout=30)
def send_message(campaign_id: int, customer_id: int) -> None:
    """Send one customer the message of a campaign, once."""
    campaign = Campaign.objects.get(pk=campaign_id)
    Notification.objects.get_or_create(
        key=f"campaign-{campaign_id}-{customer_id}",
        defaults={"customer_id": customer_id, "kind": Notification.Kind.CAMPAIGN, "text": campaign.subject},
    )


@task(queue="greetings", max_attempts=3, timeout=30, retry_in=1)
def greet(customer: int, address: str) -> None:
    """Send a customer, given by number, a greeting. ``shop_night`` and ``pipeline.py`` schedule it in bulk."""
    job = current_job()
    mail.deliver(customer, address, attempt=job.attempt if job is not None else 1)
    if conf.mailbox() is None:
        Notification.objects.get_or_create(
            key=job.id if job is not None else f"greeting-{customer}",
            defaults={"customer_id": customer, "kind": Notification.Kind.CAMPAIGN, "text": NIGHTLY},
        )


def partner_not_told(job: CurrentJob, error: BaseException) -> None:
    """Record that the last attempt has failed and the job is in the morgue."""
    order = Order.objects.filter(pk=job.args[0]).first()
    tell(f"gave up notifying the partner after {job.attempt} attempts; the job is in the morgue", order)


@task(queue="partners", rate="5/s", max_attempts=2, timeout=10, retry_in=3, on_exhausted=partner_not_told)
def tell_partner(order_id: int) -> None:
    """Notify a partner that goods came back. Its contract allows five calls a second, from all workers together.

    Its server never responds: after two attempts the job is in the morgue.
    """
    gateway.tell_partner(f"order {order_id} was cancelled")


# --- recurring tasks --------------------------------------------------------------------------------------------------
@task(queue="campaigns", cron=f"0 {conf.campaign_hour()} * * *", max_attempts=5, timeout=30)
def nightly_campaign() -> None:
    """Start tonight's campaign. A second call finds the same one; a missed tick is made up for later in the day."""
    tonight = timezone.localtime().replace(hour=conf.campaign_hour(), minute=0, second=0, microsecond=0)
    plan_campaign(NIGHTLY, tonight)


@task(queue="reports", every=conf.report_every(), missed="skip", max_attempts=3, timeout=30)
def report() -> None:
    """Count the recently closed orders by status. A missed report is skipped."""
    closed = Order.objects.filter(closed_at__gte=timezone.now() - conf.report_every())
    counts = closed.aggregate(
        paid=Count("pk", filter=Q(status=Order.Status.PAID)),
        cancelled=Count("pk", filter=Q(status=Order.Status.CANCELLED)),
    )
    tell(f"report of the last {span(conf.report_every())}: {counts['paid']} paid, {counts['cancelled']} cancelled")
