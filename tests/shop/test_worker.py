"""The shop's jobs in a worker: request ids in jobs, hooks, merged updates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from django_delayq import connections, get_job, limits, run_now
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf
from django_delayq.testing import fake_queue

if TYPE_CHECKING:
    from shop.models import Order, Product

Place = Callable[..., "Order"]


@pytest.fixture
def work_off(shop: None, delayq: Any, settings: Any) -> Iterator[Callable[[], None]]:
    """``work_off()``: a worker of this process runs everything that is ready."""
    from shop.tracing import request_id

    settings.MIDDLEWARE = ["shop.tracing.mark_requests", *settings.MIDDLEWARE]
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": {"request": "shop.tracing.request_id"}}

    def work() -> None:
        worker = wiring.make_worker(wiring.make_config(conf(), threads=2, burst=True))
        worker.start()
        assert worker.done.wait(20)
        assert worker.stop(5)

    token = request_id.set("")
    yield work
    request_id.reset(token)


def test_the_click_that_an_order_came_from_is_known_to_all_jobs_that_follow_from_it(
    work_off: Callable[[], None], customer: Any, hourglass: Product, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    from shop import tasks, tracing
    from shop.models import Event, Order

    click = client.post("/order/", {"product": hourglass.pk, "quantity": 3})[tracing.HEADER]
    order = Order.objects.get()
    tracing.request_id.set("another")
    for task, ident in ((tasks.cancel_order, f"order-{order.pk}"), (tasks.sync_order, str(order.pk))):
        assert run_now(task, id=ident)
    mark = tracing.RequestFilter()
    caplog.handler.addFilter(mark)
    try:
        with caplog.at_level(logging.INFO, "shop"):
            work_off()
    finally:
        caplog.handler.removeFilter(mark)

    assert set(Event.objects.filter(order=order).values_list("request", flat=True)) == {click}
    told = [record for record in caplog.records if "CANCELLED" in record.getMessage()]
    assert [record.__dict__["request_id"] for record in told] == [click]
    # A job that a job schedules belongs to the same click.
    partner = get_job(tasks.tell_partner, id=f"partner-{order.pk}")
    assert partner is not None
    assert partner.job.options["context"] == {"request": click}
    assert f'<code class="click" title="The click that led to it">{click}</code>' in (
        client.get(f"/orders/{order.pk}/").content.decode()
    )


def test_updates_that_waited_are_one_call_to_the_warehouse(work_off: Callable[[], None], place: Place) -> None:
    from shop import services, tasks
    from shop.models import Event

    orders = [place() for _ in range(3)]
    for order in orders:
        services.pay_order(order.pk)
        assert run_now(tasks.sync_order, id=order.pk)
    work_off()

    calls = Event.objects.filter(text__startswith="the warehouse knows")
    assert sorted(calls.values_list("order", "text")) == [
        (order.pk, "the warehouse knows: placed → paying") for order in orders
    ]


def test_the_partner_gets_five_calls_a_second(shop: None) -> None:
    from django_delayq import schedule
    from shop import tasks

    with fake_queue() as fake:
        for order in range(8):
            schedule(tasks.tell_partner, order)
        began = fake.clock.now_ms
        report = fake.run_due(until=2, raise_errors=False)
        assert [round(ran.at.timestamp() * 1000) - began for ran in report.failed] == [200 * n for n in range(8)]


def test_when_the_partner_is_given_up_somebody_hears_of_it(work_off: Callable[[], None], place: Place) -> None:
    from django_delayq import schedule
    from shop import tasks
    from shop.models import Event

    order = place()
    limits.set(task="shop.tell_partner", rate=1, burst=2)  # the worker ends when nothing may start
    schedule(tasks.tell_partner, order.pk, id="p", retry_in=0)
    work_off()

    event = Event.objects.filter(order=order, source="worker").get()
    assert event.text == "gave up notifying the partner after 2 attempts; the job is in the morgue"
    assert connections.broker().inspector.graves("partners", "p")[0].reason == "exhausted"
