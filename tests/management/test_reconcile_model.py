"""``delayq_reconcile --model``: a table against the queue without Spark, by the rules of the pipeline."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import ack, bury
from django_delayq.core.queue import Queue
from django_delayq.models import OutboxJob
from django_delayq.repair import row_comparison
from django_delayq.repair.row_comparison import RowComparison, RowJobs
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
        "first_bad": [],
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


def many_jobs(broker: DjangoBroker, n: int, *, task: str = "elsewhere") -> None:
    news = (NewJob(f"order-{10**9 + number}", task, delay_ms=3_600_000) for number in range(n))
    broker.queue(remind_customer.options.queue).count_many(news)


def peak_kib(deed: Callable[[], object]) -> float:
    """Return the memory that ``deed`` has needed at its most."""
    tracemalloc.start()
    try:
        deed()
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


def test_the_comparison_needs_no_more_memory_for_a_longer_queue(
    delayq: DjangoBroker, orders: Callable[..., list[int]]
) -> None:
    orders(2)
    many_jobs(delayq, 1)  # a call of a script takes the same buffers for any queue
    comparison = RowComparison(row_jobs_of_orders())
    assert comparison.look().missing == 2  # what is loaded once is loaded
    short = peak_kib(comparison.look)
    many_jobs(delayq, 10_000)
    found: list[int] = []
    long = peak_kib(lambda: found.append(comparison.look().known))
    assert found == [10_000]
    assert long < short + 200, "10,000 ids are 1,150 KiB"


def row_jobs_of_orders() -> RowJobs:
    return RowJobs(
        model=Order,
        task=remind_customer,
        queue=remind_customer.options.queue,
        id="order-{pk}",
        created="created_at",
        args=("pk",),
    )


def test_a_row_whose_job_ends_during_the_comparison_is_not_missing(
    delayq: DjangoBroker, orders: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job runs between the read of the row and the look for the job."""
    done, missing = orders(2)
    remind(done)
    look = row_comparison.live_ids

    def run_it_first(queue: Queue, idents: Any) -> set[str]:
        queue.run_now(name(done))
        (job,) = queue.reserve_id(name(done), worker="w").jobs
        Order.objects.filter(pk=done).update(status="paid")
        assert queue.settle([ack(job, 1, 2)]) == [True]
        return look(queue, idents)

    monkeypatch.setattr(row_comparison, "live_ids", run_it_first)
    assert reconcile("--dry-run")["first"] == [name(missing)]


def test_the_comparison_needs_no_more_memory_for_a_longer_table(
    delayq: DjangoBroker, orders: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_comparison, "_PAGE", 50)
    orders(60)
    comparison = RowComparison(row_jobs_of_orders())
    assert comparison.look().missing == 60  # what is loaded once is loaded
    short = peak_kib(comparison.look)
    orders(3_000)
    found: list[int] = []
    long = peak_kib(lambda: found.append(comparison.look().missing))
    assert found == [3_060]
    assert long < short + 200, "3,000 jobs are 1,500 KiB"


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_pages_are_compared_alone_and_rows_of_one_job_count_once(
    delayq: DjangoBroker, orders: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(row_comparison, "_PAGE", page)
    remind(orders(7)[3])
    comparison = RowComparison(row_jobs_of_orders())
    counts = comparison.look()
    assert (counts.rows, counts.missing, len(counts.first)) == (7, 6, 6)
    assert comparison.put_back() == {"created": 6}
    assert comparison.look().missing == 0
    shared = RowComparison(replace(row_jobs_of_orders(), id="customer-{customer_id}"))
    assert (shared.look().rows, shared.look().missing) == (7, 1)
    assert shared.put_back() == {"created": 1}


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
