"""``delayq_pipeline jobs`` and ``delayq_pipeline reconcile``, on the example shop."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any, Final

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pyspark.sql import SparkSession

from django_delayq import schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.outcomes import fail
from django_delayq.models import OutboxJob, PipelineRun
from shop.models import Customer, Order
from shop.tasks import remind_customer

QUEUE = "notifications"


@pytest.fixture
def run(spark: SparkSession, transactional_db: None, delayq: DjangoBroker) -> Callable[..., tuple[dict[str, Any], str]]:
    """``run("jobs", "cancel", …)``: the last line, and what people are told."""

    def call(*arguments: str) -> tuple[dict[str, Any], str]:
        out, told = StringIO(), StringIO()
        call_command("delayq_pipeline", *arguments, stdout=out, stderr=told, no_color=True)
        assert out.getvalue().count("\n") == 1
        found: dict[str, Any] = json.loads(out.getvalue())
        return found, told.getvalue()

    return call


def orders(n: int, **fields: Any) -> list[int]:
    customer, _ = Customer.objects.get_or_create(name="Ada", email="ada@example.com")
    now = timezone.now()
    usual = {"created_at": now - timedelta(hours=1), "expires_at": now + timedelta(hours=1)}
    return [Order.objects.create(customer=customer, **{**usual, **fields}).pk for _ in range(n)]


def remind(*pks: int) -> None:
    for pk in pks:
        schedule(remind_customer, pk, id=f"remind-{pk}", delay=3600)


def waiting(broker: DjangoBroker) -> list[str]:
    return sorted(view.id for view in broker.inspector.page(QUEUE, "waiting", limit=100).jobs)


def last_run() -> PipelineRun:
    return PipelineRun.objects.latest("pk")


#: the command that compares the orders of the shop with their reminders
RECONCILE: Final = (
    "reconcile",
    "--model",
    "shop.Order",
    "--filter",
    '{"status": "placed"}',
    "--created",
    "created_at",
    "--task",
    "shop.remind_customer",
    "--id",
    "remind-{pk}",
    "--due",
    "expires_at",
    "--args",
    "pk",
)


def test_missing_reminders_are_put_back(run: Any, delayq: DjangoBroker) -> None:
    pks = orders(5)
    orders(1, status="paid")
    orders(1, created_at=timezone.now())
    remind(*pks[:2])
    missing = sorted(f"remind-{pk}" for pk in pks[2:])
    told, text = run(*RECONCILE, "--dry-run")
    assert told.pop("seconds") > 0
    run_id = told.pop("run_id")
    assert told == {
        "state": "dry run",
        "rows": 5,
        "known": 2,
        "missing": 3,
        "buried": 0,
        "bad": 0,
        "first": missing,
        "outcomes": {},
    }
    assert "5 rows need a job, 2 jobs are known: 3 are missing" in text
    assert len(waiting(delayq)) == 2
    row = last_run()
    assert (row.kind, row.state, row.run_id, row.rows, row.created) == ("reconcile", "finished", run_id, 5, 0)

    told, _ = run(*RECONCILE)
    assert (told["state"], told["outcomes"]) == ("finished", {"created": 3})
    assert waiting(delayq) == sorted(f"remind-{pk}" for pk in pks)
    row = last_run()
    assert (row.queue, row.task, row.created, row.detail["missing"]) == (QUEUE, "shop.remind_customer", 3, 3)
    view = delayq.inspector.get(QUEUE, missing[0])
    assert view is not None
    assert json.loads(view.job.args) == [int(missing[0].partition("-")[2])]

    told, text = run(*RECONCILE)
    assert (told["missing"], told["outcomes"]) == (0, {})


def test_a_durable_job_that_is_still_in_the_outbox_is_not_missing(run: Any, delayq: DjangoBroker) -> None:
    (pk,) = orders(1)
    OutboxJob.objects.create(
        key="00000000-0000-4000-8000-000000000000",
        queue=QUEUE,
        job_id=f"remind-{pk}",
        task="shop.remind_customer",
        due_ms=1,
        record=b"",
    )
    assert run(*RECONCILE, "--dry-run")[0]["missing"] == 0
    OutboxJob.objects.all().delete()
    assert run(*RECONCILE, "--dry-run")[0]["missing"] == 1


def test_jobs_that_no_row_needs_are_told_and_cancelled_only_on_demand(run: Any, delayq: DjangoBroker) -> None:
    kept, paid = orders(1)[0], orders(1, status="paid")[0]
    remind(kept, paid, 10_001)
    told, text = run(*RECONCILE, "--report-orphans")
    assert told["orphans"] == 2
    assert "cancelled" not in told
    assert "2 live jobs of the task that no row needs" in text
    assert run(*RECONCILE, "--cancel-orphans", "--dry-run")[0]["orphans"] == 2
    with pytest.raises(CommandError, match="repeat the command with --yes"):
        run(*RECONCILE, "--cancel-orphans")
    told, _ = run(*RECONCILE, "--cancel-orphans", "--yes")
    assert told["cancelled"] == {"cancelled": 2}
    assert waiting(delayq) == [f"remind-{kept}"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"--task": "shop.remind"}, "there is no task 'shop.remind' here. Did you mean 'shop.remind_customer'?"),
        ({"--task": "shop.sync_order"}, "is merged: its jobs need a --payload"),
        ({"--model": "shop.Orders"}, "App 'shop' doesn't have a 'Orders' model"),
        ({"--id": "remind-{number}"}, "Cannot resolve keyword 'number'"),
        ({"--created": "created"}, "Cannot resolve keyword 'created'"),
        ({"--filter": '{"state": 1}'}, "Cannot resolve keyword 'state'"),
        ({"--filter": "status=placed"}, "--filter must be JSON like"),
        ({"--grace": "soon"}, "is no duration; write it like"),
    ],
)
def test_what_cannot_be_compared_is_wrong_use_and_told_at_once(run: Any, changed: dict[str, str], text: str) -> None:
    arguments = list(RECONCILE)
    for name, value in changed.items():
        if name in arguments:
            arguments[arguments.index(name) + 1] = value
        else:
            arguments += [name, value]
    with pytest.raises(CommandError, match=text) as error:
        run(*arguments)
    assert error.value.returncode == 2 or "--grace" in changed
    assert not PipelineRun.objects.exists()


def test_jobs_are_shown_and_cancelled(run: Any, delayq: DjangoBroker) -> None:
    remind(1, 2, 3)
    where = ("jobs", "cancel", "--where", "id <> 'remind-3'")
    told, text = run(*where, "--dry-run")
    groups = [{"queue": QUEUE, "task": "shop.remind_customer", "state": "waiting", "jobs": 2}]
    assert {name: told[name] for name in ("verb", "selected", "state", "groups", "outcomes")} == {
        "verb": "cancel",
        "selected": 2,
        "state": "dry run",
        "groups": groups,
        "outcomes": {},
    }
    assert "remind-1" in text
    assert "remind-3" not in text
    assert not PipelineRun.objects.exists()
    with pytest.raises(CommandError, match="repeat the command with --yes"):
        run(*where)
    told, _ = run(*where, "--yes")
    assert (told["state"], told["outcomes"]) == ("finished", {"cancelled": 2})
    assert waiting(delayq) == ["remind-3"]
    row = last_run()
    assert (row.kind, row.state, row.run_id, row.rows, row.total) == ("jobs", "finished", told["run_id"], 2, 2)
    assert row.detail == {
        "verb": "cancel",
        "where": "id <> 'remind-3'",
        "queues": [],
        "outcomes": {"cancelled": 2},
    }


def test_failed_jobs_are_retried_and_rescheduled(run: Any, delayq: DjangoBroker) -> None:
    remind(1, 2)
    queue = delayq.queue(QUEUE)
    (job,) = queue.reserve_id("remind-1", worker="w", early=True).jobs
    assert queue.settle([fail(job, 1, 2, delay_ms=3_600_000)]) == [True]
    assert run("jobs", "retry", "--where", "true", "--delay", "2h", "--yes")[0]["outcomes"] == {"retried": 1}
    told, _ = run("jobs", "reschedule", "--where", "failures = 0", "--at", "2031-01-01T00:00:00+01:00", "--yes")
    assert told["outcomes"] == {"moved": 1}
    view = delayq.inspector.get(QUEUE, "remind-2")
    assert view is not None
    assert view.job.due_ms == 1_924_988_400_000
    told, text = run("jobs", "discard", "--where", "true", "--yes")
    assert (told["selected"], told["outcomes"]) == (0, {})
    assert "discard is for jobs in the morgue" in text


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (("cancel", "--where", "taks = 'x'"), "the condition cannot be used", 1),
        (("reschedule", "--where", "true"), "either a delay from now or a moment", 2),
        (("cancel", "--where", "true", "--at", "2031-01-01T00:00:00Z"), "cancel takes no time", 2),
        (
            ("reschedule", "--where", "true", "--at", "tomorrow"),
            "--at: 'tomorrow' is no moment; write",
            2,
        ),
        (("reschedule", "--where", "true", "--at", "2031-01-01T00:00:00"), "has no time zone", 2),
    ],
)
def test_what_cannot_be_done_is_told(run: Any, arguments: tuple[str, ...], text: str, code: int) -> None:
    with pytest.raises(CommandError, match=text) as error:
        run("jobs", *arguments, "--yes")
    assert error.value.returncode == code
