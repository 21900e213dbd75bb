"""shop_seed, shop_traffic, shop_summary."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.template.loader import get_template

from django_delayq import get_job
from shop import catalogue, services, tasks
from shop.models import Customer, Order, Product


def test_seeding_twice_changes_nothing(shop: None) -> None:
    for _ in range(2):
        call_command("shop_seed", stdout=StringIO())

    assert Product.objects.count() == len(catalogue.PRODUCTS)
    assert Customer.objects.count() == len(catalogue.CUSTOMERS)
    assert not get_user_model().objects.exists()


def test_the_demo_user_is_made_only_when_asked_for(shop: None) -> None:
    for _ in range(2):
        call_command("shop_seed", "--demo-user", stdout=StringIO())

    user = get_user_model().objects.get()
    assert (user.username, user.is_superuser, user.check_password("admin")) == ("admin", True, True)


def test_every_product_has_a_picture_of_its_own(shop: None) -> None:
    for slug, *_ in catalogue.PRODUCTS:
        assert "<svg" in get_template(f"shop/art/{slug}.svg").render()


def test_traffic_places_orders_and_pays_the_first_but_not_the_second(shop: None, settings: Any) -> None:
    settings.SHOP_CANCEL_AFTER = 1
    call_command("shop_seed", stdout=StringIO())

    out = StringIO()
    call_command("shop_traffic", rate=50, pay=0.5, seconds=3, seed="1", stdout=out)

    first, second, *more = Order.objects.order_by("pk")
    assert (first.status, second.status) == (Order.Status.PAYING, Order.Status.PLACED)
    assert len(more) > 5
    assert get_job(tasks.cancel_order, id=f"order-{second.pk}") is not None
    assert f"{len(more) + 2} orders placed" in out.getvalue()


def test_traffic_in_an_empty_shop_says_what_to_do(shop: None) -> None:
    with pytest.raises(CommandError, match="shop_seed"):
        call_command("shop_traffic", seconds=1, stdout=StringIO())


def test_the_summary_counts_what_happened_since(place: Any) -> None:
    tasks.check_payment(services.pay_order(place().pk).pk)
    tasks.cancel_order(place().pk)
    place()

    out = StringIO()
    call_command("shop_summary", stdout=out)
    counts = json.loads(out.getvalue())
    assert (counts["placed"], counts["paid"], counts["cancelled"], counts["waiting"]) == (3, 1, 1, 1)
    assert counts["cancelled_by_worker"] == 0  # called by this test, not by a worker

    out = StringIO()
    call_command("shop_summary", "--since", "32503680000", stdout=out)
    assert (json.loads(out.getvalue())["placed"], json.loads(out.getvalue())["cancelled"]) == (0, 0)
