"""Models of the shop: products, orders, payments, notifications."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.urls import reverse
from django.utils import timezone


class Customer(models.Model):
    name = models.CharField(max_length=80)
    email = models.EmailField(unique=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Product(models.Model):
    name = models.CharField(max_length=80)
    slug = models.SlugField(unique=True)
    description = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed", "waiting for payment"
        PAYING = "paying", "payment being checked"
        PAID = "paid", "paid"
        CANCELLED = "cancelled", "cancelled"

    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="orders")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PLACED)
    version = models.PositiveIntegerField(default=1, help_text="Counts the changes of the status.")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(help_text="Unpaid at this moment, the order is cancelled.")
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=("status", "-created_at"), name="shop_order_status"),)

    def __str__(self) -> str:
        return f"order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=(self.pk,))

    @property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines.all()), Decimal(0))

    @property
    def waits(self) -> bool:
        """True while the order's cancellation is scheduled."""
        return self.status == self.Status.PLACED

    @property
    def expires_ms(self) -> int:
        """:attr:`expires_at` in Unix milliseconds, for the browser's clock."""
        return int(self.expires_at.timestamp() * 1000)

    def move_to(self, status: Order.Status) -> None:
        """Save a new ``status`` as the next version of the order. Its row must be locked."""
        self.status = status
        self.version += 1
        if status in (self.Status.PAID, self.Status.CANCELLED):
            self.closed_at = timezone.now()
        self.save(update_fields=("status", "version", "expires_at", "closed_at"))


class OrderLine(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="+")
    quantity = models.PositiveIntegerField()
    price = models.DecimalField(max_digits=8, decimal_places=2, help_text="Of one piece, when it was ordered.")

    def __str__(self) -> str:
        return f"{self.quantity}\N{NO-BREAK SPACE}× {self.product}"

    @property
    def amount(self) -> Decimal:
        return self.price * self.quantity


class Payment(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending", "pending"
        PAID = "paid", "paid"
        REFUSED = "refused", "refused"

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="payments")
    reference = models.CharField(max_length=40, unique=True)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    checks = models.PositiveIntegerField(default=0, help_text="How often the gateway was asked.")
    created_at = models.DateTimeField(default=timezone.now)
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.reference


class Notification(models.Model):
    class Kind(models.TextChoices):
        REMINDER = "reminder", "reminder"
        CANCELLED = "cancelled", "cancellation"
        PAID = "paid", "receipt"
        REFUSED = "refused", "refused payment"
        CAMPAIGN = "campaign", "campaign"

    customer = models.ForeignKey(Customer, on_delete=models.CASCADE, related_name="notifications")
    order = models.ForeignKey(Order, on_delete=models.CASCADE, null=True, blank=True, related_name="notifications")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    key = models.CharField(max_length=80, unique=True, help_text="Makes sending it twice impossible.")
    text = models.CharField(max_length=300)
    sent_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.text


class Campaign(models.Model):
    subject = models.CharField(max_length=120)
    starts_at = models.DateTimeField()
    planned = models.PositiveIntegerField(default=0, help_text="How many messages were scheduled.")

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.subject


class Event(models.Model):
    """Line of the event log: what happened, and in which process."""

    class Source(models.TextChoices):
        SHOP = "shop", "shop"
        WORKER = "worker", "worker"

    order = models.ForeignKey(Order, on_delete=models.CASCADE, null=True, blank=True, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    source = models.CharField(max_length=10, choices=Source.choices)
    request = models.CharField(max_length=40, blank=True, help_text="The click that led to it.")
    text = models.CharField(max_length=300)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.text
