"""Views of the shop. None of them waits for a job: slow or delayed work is scheduled (see services and tasks)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_delayq import QueueUnavailable, schedule

from . import conf, live, services, tasks
from .forms import MOST_PIECES, CustomerForm, OrderForm
from .models import Customer, Event, Notification, Order, Product

PAGE = 15
NO_QUEUE = "The queue cannot be reached at the moment. Is Redis running?"


def _customer(request: HttpRequest) -> Customer | None:
    """Return the customer chosen in this browser, else the first one."""
    chosen = Customer.objects.filter(pk=request.session.get("customer")).first()
    return chosen or Customer.objects.order_by("pk").first()


def _page(request: HttpRequest, template: str, context: dict[str, Any], part: str = "") -> HttpResponse:
    """Render a whole page with the content common to all pages; or its ``part`` that changes, if it is requested."""
    if part and (response := live.part(request, part, context)) is not None:
        return response
    around = {"customer": _customer(request), "customers": Customer.objects.all(), "now_ms": int(time.time() * 1000)}
    return render(request, template, {**around, **context})


# --- shelf -----------------------------------------------------------------------------------------------------------
@require_safe
def products(request: HttpRequest) -> HttpResponse:
    context = {
        "products": Product.objects.all(),
        "quantities": range(1, MOST_PIECES + 1),
        "cancel_after": conf.cancel_after(),
    }
    return _page(request, "shop/products.html", context)


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST)
    customer = _customer(request)
    if customer is None or not form.is_valid():
        messages.error(request, f"Please choose a product and a quantity from 1 to {MOST_PIECES}.")
        return redirect("shop:products")
    try:
        order, handle = services.place_order(customer, {form.cleaned_data["product"]: form.cleaned_data["quantity"]})
    except services.OutOfStock as error:
        messages.error(request, str(error))
        return redirect("shop:products")
    if handle.outcome == "outbox":  # the job is stored in the database, so it is not lost
        messages.warning(request, f"Your order is placed; what happens to it next waits. {NO_QUEUE}")
    return redirect(order)


@require_POST
def choose_customer(request: HttpRequest) -> HttpResponse:
    form = CustomerForm(request.POST)
    if form.is_valid():
        request.session["customer"] = form.cleaned_data["customer"].pk
        messages.success(request, f"You are {form.cleaned_data['customer']} now.")
    return redirect("shop:products")


# --- orders ----------------------------------------------------------------------------------------------------------
@require_safe
def orders(request: HttpRequest) -> HttpResponse:
    status = request.GET.get("status", "")
    if status not in Order.Status.values:
        status = ""
    counts = dict(Order.objects.order_by().values_list("status").annotate(Count("pk")))
    tabs = [("", "all", sum(counts.values()))]
    tabs += [(value, label, counts.get(value, 0)) for value, label in Order.Status.choices]
    found = Order.objects.select_related("customer").prefetch_related("lines__product")
    page = Paginator(found.filter(status=status) if status else found, PAGE).get_page(request.GET.get("page"))
    last_event = Event.objects.order_by("-pk").values_list("pk", flat=True).first()
    context = {"page": page, "status": status, "tabs": tabs, "version": last_event or 0}
    return _page(request, "shop/orders.html", context, "shop/parts/orders.html")


@require_safe
def order(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Order.objects.select_related("customer").prefetch_related("lines__product"), pk=pk)
    events = list(found.events.all())
    context = {
        "order": found,
        "events": events,
        "payment": found.payments.first(),
        "messages_sent": found.notifications.all(),
        "cancel_after": conf.cancel_after(),
        "remind_before": conf.remind_before(),
        "version": f"{found.status}-{events[0].pk if events else 0}",
    }
    return _page(request, "shop/order.html", context, "shop/parts/order.html")


@require_POST
def pay(request: HttpRequest, pk: int) -> HttpResponse:
    get_object_or_404(Order, pk=pk)
    try:
        services.pay_order(pk)
    except services.NotPayable as error:
        messages.error(request, str(error))
    return redirect("shop:order", pk)


# --- messages --------------------------------------------------------------------------------------------------------
@require_safe
def notifications(request: HttpRequest) -> HttpResponse:
    found = Notification.objects.select_related("customer", "order")
    return _page(request, "shop/notifications.html", {"page": Paginator(found, PAGE).get_page(request.GET.get("page"))})


# --- what happens ----------------------------------------------------------------------------------------------------
@require_safe
def what_happens(request: HttpRequest) -> HttpResponse:
    events = list(Event.objects.select_related("order")[:12])
    context = {"events": events, "version": events[0].pk if events else 0}
    return _page(request, "shop/what_happens.html", context, "shop/parts/events.html")


@require_POST
def start_campaign(request: HttpRequest) -> HttpResponse:
    at = timezone.now() + timedelta(seconds=10)
    campaign, handle = tasks.plan_campaign("Good things take their time: a new hourglass is in", at)
    if handle.error is not None:
        messages.error(request, NO_QUEUE)
    else:
        messages.success(request, f"Campaign {campaign.pk} starts in 10 s, then one message per customer.")
    return redirect("shop:what_happens")


@require_POST
def call_partner(request: HttpRequest) -> HttpResponse:
    try:
        schedule(tasks.tell_partner, 0)
    except QueueUnavailable:
        messages.error(request, NO_QUEUE)
    else:
        messages.success(
            request, "The partner is being called. It is down: after two attempts the job is in the morgue."
        )
    return redirect("shop:what_happens")
