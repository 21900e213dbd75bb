"""Read access to the shop's records in Django's admin."""

from __future__ import annotations

from django.contrib import admin

from .models import Campaign, Customer, Event, Notification, Order, OrderLine, Payment, Product


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ("name", "email")
    search_fields = ("name", "email")


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "price", "stock")
    search_fields = ("name",)


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


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    list_display = ("reference", "order", "amount", "status", "checks", "created_at", "settled_at")
    list_filter = ("status",)
    search_fields = ("reference",)


@admin.register(Notification)
class NotificationAdmin(admin.ModelAdmin):
    list_display = ("text", "customer", "kind", "sent_at")
    list_filter = ("kind",)
    list_select_related = ("customer",)
    search_fields = ("text", "customer__name")


@admin.register(Campaign)
class CampaignAdmin(admin.ModelAdmin):
    list_display = ("subject", "starts_at", "planned")


@admin.register(Event)
class EventAdmin(admin.ModelAdmin):
    list_display = ("at", "source", "request", "order", "text")
    list_filter = ("source",)
    list_select_related = ("order",)
    search_fields = ("text", "request")
