"""From placing an order to its end: what lies in Redis, and what the jobs do to the database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq import Retry, get_job
from django_delayq.core.codec import decode
from shop import gateway, services, tasks
from shop.gateway import GatewayBusy, GatewayDown, is_paid
from shop.models import Campaign, Customer, Event, Notification, Order, Product

Place = Callable[..., "Order"]


def waiting(task: Any, ident: str) -> float | None:
    """Seconds until the job of that id is due, or None when there is no such job."""
    view = get_job(task, id=ident)
    return None if view is None else view.due_ms / 1000 - timezone.now().timestamp()


def test_placing_an_order_schedules_its_cancellation_and_a_reminder(place: Place) -> None:
    order = place()

    assert waiting(tasks.cancel_order, f"order-{order.pk}") == pytest.approx(1800, abs=2)
    assert waiting(tasks.remind_customer, f"reminder-{order.pk}") == pytest.approx(1200, abs=2)


def test_an_order_that_is_rolled_back_leaves_no_job(customer: Any, hourglass: Product, delayq: Any) -> None:
    with suppress(RuntimeError), transaction.atomic():
        services.place_order(customer, {hourglass: 1})
        raise RuntimeError

    assert all(one.delayed == one.ready == 0 for one in delayq.inspector.all_counts())


def test_paying_takes_the_cancellation_back(place: Place) -> None:
    order = place()

    payment = services.pay_order(order.pk)

    assert waiting(tasks.cancel_order, f"order-{order.pk}") is None
    assert waiting(tasks.remind_customer, f"reminder-{order.pk}") is None
    assert waiting(tasks.check_payment, f"payment-{payment.pk}") is not None
    order.refresh_from_db()
    assert order.status == Order.Status.PAYING


def test_an_unpaid_order_is_cancelled_once_and_its_goods_come_back(place: Place, hourglass: Product) -> None:
    order = place(3)

    tasks.cancel_order(order.pk)
    tasks.cancel_order(order.pk)

    order.refresh_from_db()
    hourglass.refresh_from_db()
    assert order.status == Order.Status.CANCELLED
    assert hourglass.stock == 40
    assert [one.kind for one in Notification.objects.all()] == ["cancelled"]


@pytest.mark.parametrize("status", ["paying", "paid", "cancelled"])
def test_only_a_waiting_order_is_cancelled_or_reminded(place: Place, status: str) -> None:
    order = place()
    Order.objects.filter(pk=order.pk).update(status=status)

    tasks.cancel_order(order.pk)
    tasks.remind_customer(order.pk)

    order.refresh_from_db()
    assert order.status == status
    assert not Notification.objects.exists()


def test_an_order_cannot_be_paid_twice(place: Place) -> None:
    order = place()
    services.pay_order(order.pk)

    with pytest.raises(services.NotPayable, match="payment being checked"):
        services.pay_order(order.pk)


def test_a_checked_payment_makes_the_order_paid(place: Place) -> None:
    order = place()
    payment = services.pay_order(order.pk)

    tasks.check_payment(payment.pk)
    tasks.check_payment(payment.pk)

    order.refresh_from_db()
    payment.refresh_from_db()
    assert (order.status, payment.status, payment.checks) == (Order.Status.PAID, "paid", 1)
    assert [one.kind for one in Notification.objects.all()] == ["paid"]


def test_a_refused_payment_starts_the_clock_again(place: Place, settings: Any) -> None:
    settings.SHOP_GATEWAY_REFUSAL_RATE = 1.0
    order = place()
    payment = services.pay_order(order.pk)

    tasks.check_payment(payment.pk)

    order.refresh_from_db()
    assert order.status == Order.Status.PLACED
    assert order.expires_at - timezone.now() > timedelta(minutes=29)
    assert waiting(tasks.cancel_order, f"order-{order.pk}") == pytest.approx(1800, abs=2)


def test_an_unreachable_gateway_fails_the_check_and_is_counted(place: Place, settings: Any) -> None:
    settings.SHOP_GATEWAY_FAILURE_RATE = 1.0
    payment = services.pay_order(place().pk)

    for _ in range(6):
        with pytest.raises((gateway.GatewayDown, Retry)) as caught:
            tasks.check_payment(payment.pk)
        if isinstance(caught.value, Retry):
            assert caught.value.delay == 2

    payment.refresh_from_db()
    assert (payment.status, payment.checks) == ("pending", 6)


def test_the_gateway_answers_the_same_for_the_same_seed(settings: Any) -> None:
    def answers(seed: str) -> list[object]:
        settings.SHOP_GATEWAY_SEED, settings.SHOP_GATEWAY_FAILURE_RATE = seed, 0.5
        found: list[object] = []
        for n in range(300):
            try:
                found.append(is_paid("pay-1", n))
            except (GatewayDown, GatewayBusy) as error:
                found.append(type(error))
        return found

    first = answers("a")
    assert first == answers("a")
    assert first != answers("b")
    assert 0.35 < sum(isinstance(one, type) for one in first) / len(first) < 0.65


def test_nothing_is_ordered_when_too_little_is_left(customer: Any, hourglass: Product) -> None:
    with pytest.raises(services.OutOfStock, match="Only 40"):
        services.place_order(customer, {hourglass: 41})

    assert not Order.objects.exists()


def test_a_short_shelf_is_restocked_by_one_delivery(place: Place, hourglass: Product, delayq: Any) -> None:
    place(35)
    place(1)

    assert waiting(tasks.restock, f"restock-{hourglass.pk}") == pytest.approx(3600, abs=2)
    tasks.restock(hourglass.pk)
    tasks.restock(hourglass.pk)
    hourglass.refresh_from_db()
    assert hourglass.stock == 4 + tasks.RESTOCK_BY


def test_a_campaign_fans_out_one_message_per_customer(shop: None, delayq: Any) -> None:
    people = [Customer.objects.create(name=f"Nr. {n}", email=f"{n}@example.com") for n in range(4)]
    campaign, handle = tasks.plan_campaign("Good night", timezone.now())
    assert handle.outcome == "created"

    tasks.send_campaign(campaign.pk)
    tasks.send_campaign(campaign.pk)

    due = [waiting(tasks.send_message, f"campaign-{campaign.pk}-{one.pk}") for one in people]
    assert due == pytest.approx([0, 225, 450, 675], abs=2)
    assert Campaign.objects.get().planned == 4

    tasks.send_message(campaign.pk, people[0].pk)
    tasks.send_message(campaign.pk, people[0].pk)
    assert Notification.objects.filter(kind="campaign").count() == 1


def test_the_nightly_campaign_that_runs_twice_in_a_night_is_one(shop: None, delayq: Any) -> None:
    for _ in range(2):
        tasks.nightly_campaign()

    campaign = Campaign.objects.get()
    assert timezone.localtime(campaign.starts_at).hour == 3
    assert get_job(tasks.send_campaign, id=f"campaign-{campaign.pk}") is not None


def test_the_report_counts_the_orders_of_the_last_day(place: Place) -> None:
    tasks.check_payment(services.pay_order(place().pk).pk)
    tasks.cancel_order(place().pk)
    old = place()
    tasks.cancel_order(old.pk)
    Order.objects.filter(pk=old.pk).update(closed_at=timezone.now() - timedelta(days=2))

    tasks.report()

    assert Event.objects.first().text == "report of the last 1 d: 1 paid, 1 cancelled"  # type: ignore[union-attr]


def test_the_news_of_an_order_go_to_the_warehouse_in_one_call_in_their_order(place: Place, delayq: Any) -> None:
    order = place()
    tasks.check_payment(services.pay_order(order.pk).pk)

    view = get_job(tasks.sync_order, id=order.pk)
    assert view is not None
    assert view.payload_count == 3
    assert waiting(tasks.sync_order, str(order.pk)) == pytest.approx(60, abs=2)
    updates = [decode(one.data) for one in delayq.inspector.payloads("warehouse", str(order.pk))]
    assert updates == [{"version": n, "status": status} for n, status in enumerate(("placed", "paying", "paid"), 1)]

    tasks.sync_order({str(order.pk): updates})
    assert Event.objects.filter(order=order).first().text == (  # type: ignore[union-attr]
        "the warehouse knows: placed → paying → paid"
    )


def test_a_big_cancelled_order_is_told_to_the_partner(place: Place) -> None:
    small, big = place(1), place(3)
    tasks.cancel_order(small.pk)
    tasks.cancel_order(big.pk)

    assert waiting(tasks.tell_partner, f"partner-{small.pk}") is None
    assert waiting(tasks.tell_partner, f"partner-{big.pk}") is not None
