"""``manage.py shop_seed``: create products and customers. Running it again changes nothing."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from rest_framework.authtoken.models import Token

from shop import catalogue
from shop.models import Customer, Product

STOCK = 40


class Command(BaseCommand):
    help = "Creates the products and customers of the example shop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--demo-user",
            action="store_true",
            help="also create the superuser admin with the password admin, and for the HTTP API the token "
            "SHOP_API_TOKEN if there is one (only for a demo on this machine)",
        )

    def handle(self, *args: Any, demo_user: bool, **options: Any) -> None:
        for slug, name, description, price in catalogue.PRODUCTS:
            Product.objects.get_or_create(
                slug=slug,
                defaults={"name": name, "description": description, "price": Decimal(price), "stock": STOCK},
            )
        for name in catalogue.CUSTOMERS:
            Customer.objects.get_or_create(email=f"{name.split()[0].lower()}@example.com", defaults={"name": name})
        if demo_user:
            self._let_in(os.environ.get("SHOP_API_TOKEN", ""))
        self.stdout.write(f"{Product.objects.count()} products, {Customer.objects.count()} customers")

    def _let_in(self, token: str) -> None:
        users = get_user_model().objects
        admin = users.filter(username="admin").first() or users.create_superuser("admin", "admin@example.com", "admin")
        if token:
            Token.objects.update_or_create(user=admin, defaults={"key": token})
