"""``delayq_pipeline jobs``, on the example shop."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pyspark.sql import SparkSession

from django_delayq import schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.outcomes import fail
from django_delayq.models import PipelineRun
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
    assert "No job matches. discard: delete jobs from the morgue." in text


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (("cancel", "--where", "taks = 'x'"), "the condition cannot be used", 1),
        (("reschedule", "--where", "true"), "either a delay from now or a moment", 2),
        (("cancel", "--where", "true", "--at", "2031-01-01T00:00:00Z"), "cancel takes no due", 2),
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
