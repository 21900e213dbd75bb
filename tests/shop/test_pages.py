"""The pages as a browser sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client, override_settings

from django_delayq import get_job
from django_delayq.models import OutboxJob
from shop import services, tasks
from shop.models import Customer, Order, Product

Place = Callable[..., "Order"]


def test_every_page_of_an_empty_shop_opens(shop: None, client: Client) -> None:
    for path in ("/", "/orders/", "/notifications/", "/what-happens/"):
        assert client.get(path).status_code == 200, path
    for path in ("/orders/", "/what-happens/"):
        part = client.get(path, headers={"X-Live-Version": "older"})
        assert (part.status_code, b"<html" in part.content) == (200, False), path


def test_every_page_of_a_shop_in_use_opens(place: Place, client: Client) -> None:
    waiting, paid, cancelled, paying = place(), place(), place(3), place()
    tasks.check_payment(services.pay_order(paid.pk).pk)
    tasks.remind_customer(cancelled.pk)
    tasks.cancel_order(cancelled.pk)
    services.pay_order(paying.pk)

    pages = ["/", "/orders/", "/orders/?status=paid&page=2", "/orders/?status=nonsense&page=-1", "/notifications/"]
    pages += ["/what-happens/", *(f"/orders/{one.pk}/" for one in (waiting, paid, cancelled, paying))]
    for path in pages:
        answer = client.get(path)
        assert answer.status_code == 200, path
        text = answer.content.decode()
        assert not re.search(r"\bon\w+=|<script>|style=|https?://", text), f"{path}: inline code or a foreign address"


def test_ordering_by_a_click_leads_to_the_order_with_its_countdown(
    customer: Any, hourglass: Product, client: Client
) -> None:
    answer = client.post("/order/", {"product": hourglass.pk, "quantity": 2}, follow=True)

    order = Order.objects.get()
    assert answer.redirect_chain == [(f"/orders/{order.pk}/", 302)]
    assert f'data-countdown="{order.expires_ms}"' in answer.content.decode()
    assert get_job(tasks.cancel_order, id=f"order-{order.pk}") is not None


@pytest.mark.parametrize("form", [{}, {"product": "x", "quantity": 1}, {"quantity": 0}, {"quantity": 10}])
def test_a_wrong_order_form_orders_nothing(
    customer: Any, hourglass: Product, client: Client, form: dict[str, Any]
) -> None:
    answer = client.post("/order/", {"product": hourglass.pk, **form} if form else {}, follow=True)

    assert "Please choose a product" in answer.content.decode()
    assert not Order.objects.exists()


def test_paying_by_a_click_and_paying_again(place: Place, client: Client) -> None:
    order = place()

    text = client.post(f"/orders/{order.pk}/pay/", follow=True).content.decode()
    assert "payment being checked" in text
    assert get_job(tasks.cancel_order, id=f"order-{order.pk}") is None

    text = client.post(f"/orders/{order.pk}/pay/", follow=True).content.decode()
    assert "cannot be paid" in text


def test_changes_need_post_and_a_csrf_token(place: Place) -> None:
    order = place()
    strict = Client(enforce_csrf_checks=True)
    for path in (
        "/order/",
        "/customer/",
        f"/orders/{order.pk}/pay/",
        "/what-happens/campaign/",
        "/what-happens/partner/",
    ):
        assert strict.get(path).status_code == 405, path
        assert strict.post(path).status_code == 403, path
    assert Order.objects.get().status == Order.Status.PLACED


def test_a_live_part_is_sent_only_when_something_happened(place: Place, client: Client) -> None:
    order = place()
    path = f"/orders/{order.pk}/"
    first = client.get(path, headers={"X-Live-Version": ""})
    version = first["X-Live-Version"]
    assert (first.status_code, b"<html" in first.content) == (200, False)
    assert f'data-version="{version}"' in client.get(path).content.decode()

    assert client.get(path, headers={"X-Live-Version": version}).status_code == 204
    services.pay_order(order.pk)
    assert client.get(path, headers={"X-Live-Version": version}).status_code == 200


def test_somebody_else_can_be_chosen_to_shop_as(place: Place, client: Client) -> None:
    other = Customer.objects.create(name="Bruno Keller", email="bruno@example.com")
    client.post("/customer/", {"customer": other.pk})
    client.post("/order/", {"product": Product.objects.get().pk, "quantity": 1})

    assert Order.objects.latest("pk").customer == other
    client.post("/customer/", {"customer": 404})
    assert client.get("/").context["customer"] == other


def test_what_happens_shows_the_latest_events_and_where_the_jobs_are(place: Place, client: Client) -> None:
    order = place()

    text = client.get("/what-happens/").content.decode()

    assert f'<a href="/orders/{order.pk}/">order {order.pk}</a>' in text
    assert 'href="/admin/django_delayq/dashboard/"' in text


def test_a_campaign_and_a_call_of_the_partner_are_scheduled_by_clicks(
    place: Place, client: Client, delayq: Any
) -> None:
    client.post("/what-happens/campaign/")
    text = client.post("/what-happens/partner/", follow=True).content.decode()

    assert "The partner is being called" in text
    assert {one.queue: one.delayed + one.ready for one in delayq.inspector.all_counts()}["partners"] == 1
    assert {one.queue: one.delayed for one in delayq.inspector.all_counts()}["campaigns"] == 1


def test_without_redis_the_pages_say_so_and_the_order_stands(
    customer: Any, hourglass: Product, client: Client, settings: Any
) -> None:
    with override_settings(DELAYQ={**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}):
        text = client.post("/order/", {"product": hourglass.pk, "quantity": 1}, follow=True).content.decode()
        assert "what happens to it next waits" in text
        assert [row.job_id for row in OutboxJob.objects.all()] == [f"order-{Order.objects.get().pk}"]
        assert client.get("/what-happens/").status_code == 200
        assert "cannot be reached" in client.post("/what-happens/partner/", follow=True).content.decode()


def test_the_admin_shows_every_model_of_the_shop(place: Place, admin_client: Client) -> None:
    place()
    for name in ("customer", "product", "order", "payment", "notification", "campaign", "event"):
        assert admin_client.get(f"/admin/shop/{name}/").status_code == 200, name
    assert admin_client.get("/admin/shop/order/1/change/", follow=True).status_code == 200
