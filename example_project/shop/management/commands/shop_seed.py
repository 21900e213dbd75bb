"""``manage.py shop_seed``: fill the shelf and invite the customers. Running it again changes nothing."""

from __future__ import annotations

from argparse import ArgumentParser
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

from shop import catalogue
from shop.models import Customer, Product

STOCK = 40


class Command(BaseCommand):
    help = "Creates the products and customers of the example shop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--demo-user",
            action="store_true",
            help="also create the superuser admin with the password admin (only for a demo on this machine)",
        )

    def handle(self, *args: Any, demo_user: bool, **options: Any) -> None:
        for slug, name, description, price in catalogue.PRODUCTS:
            Product.objects.get_or_create(
                slug=slug,
                defaults={"name": name, "description": description, "price": Decimal(price), "stock": STOCK},
            )
        for name in catalogue.CUSTOMERS:
            Customer.objects.get_or_create(email=f"{name.split()[0].lower()}@example.com", defaults={"name": name})
        users = get_user_model().objects
        if demo_user and not users.filter(username="admin").exists():
            users.create_superuser("admin", "admin@example.com", "admin")
        self.stdout.write(f"{Product.objects.count()} products, {Customer.objects.count()} customers")
