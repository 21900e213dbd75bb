"""URLs of the shop. The ``…/live`` ones return the part of the page that changes."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "shop"
urlpatterns = [
    path("", views.products, name="products"),
    path("order/", views.place, name="place"),
    path("customer/", views.choose_customer, name="customer"),
    path("orders/", views.orders, name="orders"),
    path("orders/live", views.orders_live, name="orders_live"),
    path("orders/<int:pk>/", views.order, name="order"),
    path("orders/<int:pk>/live", views.order_live, name="order_live"),
    path("orders/<int:pk>/pay/", views.pay, name="pay"),
    path("notifications/", views.notifications, name="notifications"),
    path("what-happens/", views.what_happens, name="what_happens"),
    path("what-happens/live", views.what_happens_live, name="what_happens_live"),
    path("what-happens/campaign/", views.start_campaign, name="campaign"),
    path("what-happens/partner/", views.call_partner, name="partner"),
]
