"""Example shop as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "Example shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the jobs that follow from saving or deleting rows anywhere: in a view, the admin, a shell."""
        from django.db.models.signals import post_delete, post_save

        from django_delayq import cancel_on, schedule_on

        from .models import Order, Payment
        from .tasks import cancel_order, check_payment

        schedule_on(
            post_save,
            sender=Payment,
            task=check_payment,
            delay=1,
            id=lambda payment: f"payment-{payment.pk}",
            args=lambda payment: (payment.pk,),
            when=lambda payment, created: created,
        )
        cancel_on(post_delete, sender=Order, task=cancel_order, id=lambda order: f"order-{order.pk}")
