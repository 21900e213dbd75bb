"""URLs of the shop."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.products, name="products"),
    path("order/", views.place, name="place"),
    path("customer/", views.choose_customer, name="customer"),
    path("orders/", views.orders, name="orders"),
    path("orders/<int:pk>/", views.order, name="order"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
    path("notifications/", views.notifications, name="notifications"),
    path("what-happens/", views.what_happens, name="what_happens"),
    path("what-happens/campaign/", views.start_campaign, name="campaign"),
    path("what-happens/partner/", views.call_partner, name="partner"),
]
