"""Read access to the shop's records in Django's admin."""

from __future__ import annotations

from django.contrib import admin

from .models import Campaign, Customer, Event, Notification, Order, OrderLine, Payment, Product


class OrderLineInline(admin.TabularInline):
    model = OrderLine
    extra = 0


class PaymentInline(admin.TabularInline):
    model = Payment
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("__str__", "customer", "status", "created_at", "expires_at", "closed_at")
    list_filter = ("status",)
    list_select_related = ("customer",)
    search_fields = ("customer__name",)
    date_hierarchy = "created_at"
    inlines = (OrderLineInline, PaymentInline)


for model, columns, filters, searched in (
    (Customer, ("name", "email"), (), ("name", "email")),
    (Product, ("name", "price", "stock"), (), ("name",)),
    (Payment, ("reference", "order", "amount", "status", "checks", "settled_at"), ("status",), ("reference",)),
    (Notification, ("text", "customer", "kind", "sent_at"), ("kind",), ("text", "customer__name")),
    (Campaign, ("subject", "starts_at", "planned"), (), ()),
    (Event, ("at", "source", "request", "order", "text"), ("source",), ("text", "request")),
):
    admin.site.register(
        model, list_display=columns, list_filter=filters, search_fields=searched, list_select_related=True
    )
