"""Tables for the tests of reading tables."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models
from django.utils import timezone


class Shouted(models.CharField):
    """A field that does something of its own to what it reads."""

    def from_db_value(self, value: str | None, expression: object, connection: object) -> str | None:
        return value and value.upper()


class Coded(models.CharField):
    """A field whose values are of a class of its own."""

    def from_db_value(self, value: str, expression: object, connection: object) -> Code:
        return Code(value)


class Code:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"<{self.text}>"


class Strange(models.Field):
    """A kind of field that nobody has heard of."""

    def db_type(self, connection: Any) -> str:
        return "text"


class Shelf(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=40)

    class Meta:
        app_label = "stock"


class Kept(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().filter(thrown_away=False)


class Item(models.Model):
    name = models.CharField(max_length=80)
    note = models.TextField(null=True)  # noqa: DJ001
    count = models.IntegerField(default=0)
    big = models.BigIntegerField(default=0)
    ratio = models.FloatField(null=True)
    price = models.DecimalField(max_digits=12, decimal_places=3, null=True)
    huge = models.DecimalField(max_digits=60, decimal_places=2, null=True)
    fresh = models.BooleanField(null=True)
    made = models.DateTimeField(default=timezone.now)
    day = models.DateField(null=True)
    at = models.TimeField(null=True)
    span = models.DurationField(null=True)
    code = models.UUIDField(null=True)
    data = models.JSONField(null=True)
    raw = models.BinaryField(null=True)
    ip = models.GenericIPAddressField(null=True)
    shouted = Shouted(max_length=20, null=True)
    coded = Coded(max_length=20, default="c")
    shelf = models.ForeignKey(Shelf, models.CASCADE, null=True, related_name="items")
    thrown_away = models.BooleanField(default=False)

    objects = Kept()

    class Meta:
        app_label = "stock"
        ordering = ("name",)


class Label(models.Model):
    text = models.CharField(max_length=40, primary_key=True)

    class Meta:
        app_label = "stock"


class Riddle(models.Model):
    what = Strange()

    class Meta:
        app_label = "stock"


class Ticket(models.Model):
    """Ticket that needs a job while it is open."""

    name = models.CharField(max_length=80, null=True)  # noqa: DJ001
    customer = models.BigIntegerField(null=True)
    state = models.CharField(max_length=10, default="open")
    created = models.DateTimeField()
    day = models.DateField(null=True)
    due = models.DateTimeField(null=True)

    class Meta:
        app_label = "stock"


MODELS = (Shelf, Item, Label, Riddle, Ticket)
