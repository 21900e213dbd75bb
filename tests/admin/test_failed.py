"""Failed jobs: the list, its filters and search, and the page of one job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.errors import QueueUnavailable
from django_delayq.models import FailedJob
from tests.admin.mirrors import FAILED, failed_jobs, failed_row, ids
from tests.admin.support import Yard, cells, tags_of, without_seconds
from tests.app import deeds  # noqa: F401  # registers its tasks

pytestmark = pytest.mark.django_db


def unavailable(*_: Any) -> None:
    raise QueueUnavailable("Redis does not answer")


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_failedjob"))
    return client


def test_the_list_says_what_failed_why_and_when_it_is_tried_again(viewer: Client) -> None:
    failed_row(
        "order-5",
        ago=timedelta(minutes=3),
        task="deeds.rest",
        options=b'{"max_attempts":7}',
        due_at=timezone.now() + timedelta(hours=2, seconds=30),
    ).save()
    answer = viewer.get(FAILED)
    assert list(map(without_seconds, cells(answer.content))) == [
        ["order-5", "orders", "deeds.rest GatewayDown gateway answered 503", "3 of 7", "3 min ago in 2 h"]
    ]
    assert b'title="shop.gateway.GatewayDown: gateway answered 503\nsecond line"' in answer.content
    assert f'datetime="{FailedJob.objects.get().due_at.isoformat()}"'.encode() in answer.content
    tags_of(answer.content)


def test_the_list_explains_what_its_jobs_wait_for(viewer: Client) -> None:
    assert "<h2>Waiting for retry ·" in viewer.get(FAILED).content.decode()


def test_attempts_are_those_of_the_job_else_of_its_task_else_unknown(viewer: Client) -> None:
    failed_row("own", task="deeds.rest", options=b'{"max_attempts":7}', ago=timedelta(1)).save()
    failed_row("tasks", task="shop.restock", ago=timedelta(2)).save()
    failed_row("unknown", task="nobody.knows", crashes=2, ago=timedelta(3)).save()
    failed_row("damaged", task="nobody.knows", options=b"\xff{", ago=timedelta(4)).save()
    failed_row("long", options=b'{"max_attempts":7,"context":{"x":"' + b"x" * 9000 + b'"}}', ago=timedelta(5)).save()
    assert [row[3] for row in cells(viewer.get(FAILED).content)] == ["3 of 7", "3 of 5", "3 (2 crashed)", "3", "3"]


def test_what_waits_too_long_is_late(viewer: Client) -> None:
    failed_row("soon", due_at=timezone.now() - timedelta(seconds=20)).save()
    failed_row("late", due_at=timezone.now() - timedelta(minutes=9), ago=timedelta(hours=1)).save()
    assert [without_seconds(row)[4] for row in cells(viewer.get(FAILED).content)] == [
        "now 20 s ago",
        "1 h ago 9 min ago late",
    ]


def test_what_runs_now_is_not_late(delayq: Broker, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = failed_jobs(delayq, 2)
    FailedJob.objects.update(due_at=timezone.now() - timedelta(minutes=9))
    assert delayq.queue("orders").reserve_id(jobs[0].job_id, worker="w", early=True)
    assert {row[0]: row[4].rpartition(" ")[2] for row in cells(viewer.get(FAILED).content)} == {
        "job-0": "running",
        "job-1": "late",
    }
    assert viewer.get(f"{FAILED}{jobs[0].pk}/change/").context["state"].label == "reserved"
    monkeypatch.setattr(type(delayq.inspector), "leases", unavailable)
    assert {row[4].rpartition(" ")[2] for row in cells(viewer.get(FAILED).content)} == {"late"}


def test_each_filter_leaves_what_it_says(viewer: Client) -> None:
    failed_row("a", queue="orders", task="t.one", error_class="KeyError", failures=1).save()
    failed_row("b", queue="crm", task="t.two", error_class="", failures=4, ago=timedelta(hours=3)).save()
    failed_row("c", queue="crm", task="t.one", error_class="KeyError", failures=30, ago=timedelta(days=30)).save()
    found = {
        asked: ids(viewer.get(f"{FAILED}?{asked}"))
        for asked in (
            "queue=crm",
            "task=t.one",
            "error_class=KeyError",
            "error_class=",
            "attempt=1",
            "attempt=3-5",
            "attempt=26",
            "age=hour",
            "age=day",
            "age=week",
            "age=older",
            "queue=crm&task=t.one",
            "queue=nowhere",
            "attempt=x",
            "age=x",
        )
    }
    assert found == {
        "queue=crm": ["b", "c"],
        "task=t.one": ["a", "c"],
        "error_class=KeyError": ["a", "c"],
        "error_class=": ["b"],
        "attempt=1": ["a"],
        "attempt=3-5": ["b"],
        "attempt=26": ["c"],
        "age=hour": ["a"],
        "age=day": ["a", "b"],
        "age=week": ["a", "b"],
        "age=older": ["c"],
        "queue=crm&task=t.one": ["c"],
        "queue=nowhere": [],
        "attempt=x": ["a", "b", "c"],
        "age=x": ["a", "b", "c"],
    }


def test_a_search_finds_an_id_and_its_beginning_and_nothing_else(viewer: Client) -> None:
    for place, ident in enumerate(("order-5", "order-51", "order_5", "Order-5", "xorder-5", "order%", "заказ-5")):
        failed_row(ident, ago=timedelta(place)).save()
    terms = ("order-5", " order-51 ", "order%", "заказ", "5", "order-5x")
    assert {term: ids(viewer.get(FAILED, {"q": term})) for term in terms} == {
        "order-5": ["order-5", "order-51"],
        " order-51 ": ["order-51"],
        "order%": ["order%"],
        "заказ": ["заказ-5"],
        "5": [],
        "order-5x": [],
    }


def test_the_page_of_a_job_tells_everything_about_it(delayq: Broker, viewer: Client) -> None:
    (row,) = failed_jobs(delayq, 1, task="deeds.note", message="no answer from https://ada:hunter2@crm/x")
    page = viewer.get(f"{FAILED}{row.pk}/change/").content.decode()
    tags_of(page.encode())
    assert viewer.get(f"{FAILED}{row.pk}/change/").context["state"].label == "delayed"
    assert "deeds.note" in page and row.key.hex in page
    assert "https://ada:••••••@crm/x" in page and "hunter2" not in page
    assert '<th scope="row">text</th><td><pre>0</pre></td>' in page
    assert "File &quot;/srv/crm.py&quot;, line 12, in sync\n" in page


def test_the_page_of_a_merged_job_lists_its_payloads_by_their_scores(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq, "crm")
    yard.add("42", {"n": "later", "token": "abc"}, "7", task="deeds.sync")
    yard.add("42", {"n": "first"}, "3", task="deeds.sync")
    yard.failed(yard.take_one())
    mirror.rebuild()
    page = viewer.get(f"{FAILED}{FailedJob.objects.get().pk}/change/").content.decode()
    assert cells(page.encode(), "dq-payloads") == [
        ["3", '{ "n": "first" }'],
        ["7", '{ "n": "later", "token": "••••••" }'],
    ]
    assert "abc" not in page


def test_arguments_are_masked_by_the_names_of_the_parameters(viewer: Client, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"sensitive": ["text"]}}
    row = failed_row("a", task="deeds.note", args=encode_args(("whisper",), {"times": 3}))
    row.save()
    page = viewer.get(f"{FAILED}{row.pk}/change/").content.decode()
    assert "whisper" not in page and "••••••" in page


def test_context_and_options_are_masked_too(viewer: Client) -> None:
    options = {"context": {"trace": "t-77", "session": "s-88"}, "max_attempts": 9, "expires_ms": 1_900_000_000_000}
    row = failed_row("a", options=encode(options))
    row.save()
    page = viewer.get(f"{FAILED}{row.pk}/change/").content.decode()
    assert "t-77" in page and "s-88" not in page and "2030-03-17" in page


@pytest.mark.parametrize("args", [None, b"\xff\xfe\x00raw", b'{"$dt":"2030-01-01"}', b"[" * 5000, b'{"a":5}'])
def test_whatever_is_stored_has_a_page(viewer: Client, args: bytes | None) -> None:
    row = failed_row("a", args=args, options=b"[1]", error_traceback="\x01\x1b[31m no traceback", error_class="")
    row.save()
    assert viewer.get(f"{FAILED}{row.pk}/change/").status_code == 200
    assert viewer.get(FAILED).status_code == 200


@pytest.mark.broken_on_purpose
def test_without_redis_the_page_says_so_and_shows_what_was_copied(viewer: Client) -> None:
    row = failed_row("a")
    row.save()
    page = viewer.get(f"{FAILED}{row.pk}/change/").content.decode()
    assert "Redis does not answer" in page and "gateway answered 503" in page


def test_the_page_says_what_became_of_the_job_since(delayq: Broker, viewer: Client) -> None:
    rows = {row.job_id: row for row in failed_jobs(delayq, 4)}
    yard = Yard(delayq)
    yard.queue.cancel("job-0")
    yard.queue.cancel("job-1")
    yard.put("job-1", 5)
    yard.queue.run_now("job-2")
    job = next(job for job in yard.take() if job.id == "job-2")
    words = {ident: viewer.get(f"{FAILED}{row.pk}/change/").context["state"].label for ident, row in rows.items()}
    assert words == {
        "job-0": "gone: it was run, cancelled or removed",
        "job-1": "gone; another job has this id now",
        "job-2": "reserved",
        "job-3": "delayed",
    }
    yard.buried(job)
    assert viewer.get(f"{FAILED}{rows['job-2'].pk}/change/").context["state"].label == "in the morgue"


@pytest.mark.parametrize("key", ["0", "999999", "x", "1/../2", "_", "1" * 400])
def test_what_is_no_row_is_nowhere(viewer: Client, key: str) -> None:
    answer = viewer.get(f"{FAILED}{key}/change/", follow=True)
    assert answer.redirect_chain == [("/admin/", 302)]
    assert "doesn’t exist" in answer.content.decode()
