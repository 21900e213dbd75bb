"""``delayq_reconcile --model``: a table against the queue without Spark, by the rules of the pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.settlement import bury
from django_delayq.models import OutboxJob
from django_delayq.repair import row_comparison
from shop.models import Customer, Order
from shop.tasks import cancel_order, remind_customer, sync_order

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)
ROWS = ("--model", "shop.Order", "--filter", '{"status": "placed"}', "--created", "created_at")
JOBS = ("--task", remind_customer.name, "--id", "order-{pk}", "--args", "pk", "--due", "expires_at")


@pytest.fixture
def orders(delayq: DjangoBroker) -> Callable[..., list[int]]:
    """``orders(3)``: that many placed orders, an hour old."""

    def place(n: int, age: timedelta = HOUR, **fields: Any) -> list[int]:
        customer, _ = Customer.objects.get_or_create(name="Ada", email="ada@example.com")
        now = datetime.now(UTC)
        times = {"created_at": now - age, "expires_at": now + HOUR}
        return [Order.objects.create(customer=customer, **{**times, **fields}).pk for _ in range(n)]

    return place


def call(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("delayq_reconcile", *arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def reconcile(*arguments: str, jobs: tuple[str, ...] = JOBS) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(call(*ROWS, *jobs, *arguments, "--json")[0])
    return result


def name(pk: int) -> str:
    return f"order-{pk}"


def remind(pk: int) -> None:
    schedule(remind_customer, pk, id=name(pk), delay=60)


def waiting(broker: DjangoBroker, queue: str) -> dict[str, Any]:
    return {view.id: view for view in broker.inspector.page(queue, "waiting", limit=100).jobs}


def test_what_is_missing_is_found_exactly_and_restored_once(
    delayq: DjangoBroker, orders: Callable[..., list[int]]
) -> None:
    pks = orders(6)
    orders(1, status="paid")
    orders(1, age=timedelta(minutes=1))
    for pk in pks[:4]:
        remind(pk)
    queue = delayq.queue(remind_customer.options.queue)
    for pk in pks[1:4]:
        (job,) = queue.reserve_id(name(pk), worker="w", early=True).jobs
        if pk == pks[2]:
            remind(pk)  # gated
        if pk == pks[3]:
            assert queue.settle([bury(job, 1, 2, reason="why")]) == [True]
    dry = reconcile("--dry-run")
    assert dry == {
        "state": "dry run",
        "rows": 6,
        "known": 5,
        "missing": 2,
        "buried": 1,
        "bad": 0,
        "first": sorted(map(name, pks[4:])),
        "outcomes": {},
    }
    assert call(*ROWS, *JOBS, "--dry-run")[0] == "dry run: 2 missing\n"
    assert {*waiting(delayq, queue.name)} == {name(pks[0])}, "a dry run changes nothing"
    assert reconcile()["outcomes"] == {"created": 2}
    there = waiting(delayq, queue.name)
    assert {*there} == {name(pk) for pk in (pks[0], *pks[4:])}
    view = there[name(pks[4])]
    expires = Order.objects.get(pk=pks[4]).expires_at
    assert view.arguments == ([pks[4]], {})
    assert view.job.due_ms == -(-round(expires.timestamp() * 1_000_000) // 1000)
    assert reconcile()["missing"] == 0
    assert reconcile("--include-morgue")["outcomes"] == {"created": 1}


def test_durable_jobs_in_the_outbox_are_known(delayq: DjangoBroker, orders: Callable[..., list[int]]) -> None:
    sent, refused, missing = orders(3)
    for pk in (sent, refused):
        schedule(cancel_order, pk, id=name(pk), delay=60)
    OutboxJob.objects.filter(job_id=name(refused)).update(state=OutboxJob.State.REFUSED)
    delayq.client.flushall()
    jobs = ("--task", cancel_order.name, "--id", "order-{pk}", "--args", "pk", "--due", "+2h")
    found = reconcile(jobs=jobs)
    assert (found["missing"], found["buried"], found["first"]) == (1, 1, [name(missing)])
    assert OutboxJob.objects.get(job_id=name(missing)).state == OutboxJob.State.SENT


def test_payloads_of_merged_tasks_are_restored(delayq: DjangoBroker, orders: Callable[..., list[int]]) -> None:
    (pk,) = orders(1)
    jobs = ("--task", sync_order.name, "--id", "{pk}", "--payload", "status", "--score", "version")
    assert reconcile(jobs=jobs)["outcomes"] == {"created": 1}
    (payload,) = delayq.inspector.payloads("warehouse", str(pk))
    assert (payload.data, payload.score) == (b'"placed"', "1")


def test_rows_that_cannot_have_a_job_do_not_stop_the_others(
    delayq: DjangoBroker, orders: Callable[..., list[int]]
) -> None:
    bad, good = orders(2)
    Order.objects.filter(pk=bad).update(expires_at=datetime(2100, 1, 1, tzinfo=UTC))
    out, err = call(*ROWS, *JOBS)
    assert out.strip() == "finished: 1 created"
    assert f"'{name(bad)}': " in err and "WARNING: 1 rows cannot have a job" in err
    assert {*waiting(delayq, remind_customer.options.queue)} == {name(good)}


def test_orphans_are_reported_and_cancelled_unless_a_row_needs_them(
    delayq: DjangoBroker, orders: Callable[..., list[int]]
) -> None:
    young, paid = orders(1, age=timedelta(0))[0], orders(1, status="paid")[0]
    remind(young)
    remind(paid)
    schedule(remind_customer, 5, id="other", delay=60)
    found = reconcile("--report-orphans")
    assert (found["orphans"], found["first_orphans"]) == (1, [name(paid)])
    found = reconcile("--cancel-orphans", "--yes")
    assert found["cancelled"] == {"cancelled": 1}
    assert {*waiting(delayq, remind_customer.options.queue)} == {name(young), "other"}


def test_more_rows_than_fit_are_left_to_the_pipeline(
    orders: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders(3)
    monkeypatch.setattr(row_comparison, "MOST_ROWS", 2)
    with pytest.raises(CommandError, match=r"3 rows are more than the 2 .*use delayq_pipeline reconcile"):
        call(*ROWS, *JOBS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "shop.Order", "--id", "{pk}", "--task", "shop.remind_customer"), "--model needs --created"),
        ((*ROWS, "--task", "shop.remind_customer"), "--model needs one --id"),
        ((*ROWS, *JOBS, "--outbox"), "--model is compared alone: leave --outbox out"),
        ((*ROWS, "--id", "{pk}", "--task", "shop.remind"), "there is no task 'shop.remind' here"),
        ((*ROWS, "--id", "{pkk}", "--task", "shop.remind_customer"), "Cannot resolve keyword 'pkk'"),
        ((*ROWS, "--id", "same", "--task", "shop.remind_customer"), "names no column"),
        ((*ROWS[:-1], "status", "--id", "{pk}", "--task", "shop.remind_customer"), "status is no date and no time"),
        (("--model", "shop.Nothing", *ROWS[2:], *JOBS), "Nothing"),
        (("--model", "shop.Order", "--filter", "5", *ROWS[4:], *JOBS), "must be field lookups like"),
    ],
)
def test_wrong_options_are_refused_with_exit_code_2(delayq: Any, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        call(*arguments)
    assert caught.value.returncode == 2
