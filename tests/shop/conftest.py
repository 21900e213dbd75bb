"""A seeded shop on the run's Redis. Jobs are looked at in Redis, and run by calling their task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shop import services
from shop.models import Customer, Order, Product


@pytest.fixture
def shop(transactional_db: None, delayq: Any, settings: Any) -> None:
    """An empty shop: real commits, the run's Redis, a gateway that always says yes."""
    settings.ROOT_URLCONF = "shop_site.urls"
    settings.SHOP_CANCEL_AFTER = 30 * 60
    settings.SHOP_REMIND_BEFORE = 10 * 60
    settings.SHOP_WAREHOUSE_FAILURE_RATE = 0.0
    settings.SHOP_GATEWAY_FAILURE_RATE = settings.SHOP_GATEWAY_REFUSAL_RATE = 0.0


@pytest.fixture
def customer(shop: None) -> Customer:
    return Customer.objects.create(name="Ada Lindqvist", email="ada@example.com")


@pytest.fixture
def hourglass(shop: None) -> Product:
    return Product.objects.create(name="Hourglass", slug="hourglass", description="Sand.", price="24.00", stock=40)


@pytest.fixture
def place(customer: Customer, hourglass: Product) -> Callable[..., Order]:
    """``place()`` or ``place(3)``: an order of so many hourglasses."""

    def order(quantity: int = 1) -> Order:
        return services.place_order(customer, {hourglass: quantity})[0]

    return order
