"""Long lists: every row once, a number of SQL statements that does not grow, and no count of a whole table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.admin.mirrored import FailedJobAdmin
from django_delayq.models import BulkAction, FailedJob, InboxEntry, MorgueJob, OutboxJob
from tests.admin.mirrors import BULK, FAILED, INBOX, MORGUE, OUTBOX, failed_row, ids, many_rows, morgue_row

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(
        staff(
            *(f"view_{name}" for name in ("failedjob", "morguejob", "outboxjob", "inboxentry", "bulkaction")),
            "retry_failedjob",
        )
    )
    return client


@pytest.fixture
def small_pages(monkeypatch: Any) -> None:
    from django_delayq.admin.base import TableAdmin

    monkeypatch.setattr(TableAdmin, "list_per_page", 7)


def walk(client: Client, address: str) -> list[list[str]]:
    """The ids of each page."""
    first = client.get(address)
    number = first.context["cl"].paginator.num_pages
    sign = "&" if "?" in address else "?"
    return [ids(client.get(f"{address}{sign}p={page}")) for page in range(1, number + 1)]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("query", ["", "?o=-5", "?o=5", "?queue=q3", "?age=day", "?q=n-1"])
def test_the_pages_have_every_row_once_in_order(viewer: Client, query: str) -> None:
    many_rows(30)
    newest_first = [f"n-{n}" for n in range(29, -1, -1)]
    wanted = newest_first[::-1] if query == "?o=5" else newest_first
    if "queue" in query:
        wanted = [ident for ident in wanted if int(ident[2:]) % 7 == 3]
    if "q=" in query:
        wanted = [ident for ident in wanted if ident.startswith("n-1")]
    pages = walk(viewer, FAILED + query)
    assert [ident for page in pages for ident in page] == wanted
    assert all(len(page) == 7 for page in pages[:-1])


@pytest.mark.usefixtures("small_pages")
def test_rows_of_one_moment_are_told_apart(viewer: Client) -> None:
    now = timezone.now()
    FailedJob.objects.bulk_create(failed_row(f"n-{n}", failed_at=now) for n in range(25))
    pages = walk(viewer, FAILED)
    assert sorted(ident for page in pages for ident in page) == sorted(f"n-{n}" for n in range(25))


@pytest.mark.parametrize("page", ["x", "-1", "0", "9" * 50])
def test_a_page_that_is_not_there_leads_back_to_the_beginning(viewer: Client, page: str) -> None:
    many_rows(30)
    answer = viewer.get(FAILED, {"p": page})
    assert answer.status_code == 200 or answer.url == f"{FAILED}?e=1"


def test_the_links_to_filters_begin_at_the_first_page(viewer: Client) -> None:
    many_rows(230)
    changelist = viewer.get(FAILED, {"p": "2", "queue": "q1"}).context["cl"]
    for spec in changelist.filter_specs:
        assert all("p=" not in choice["query_string"] for choice in spec.choices(changelist))


@pytest.mark.usefixtures("small_pages")
def test_counts_stop_at_the_cap_and_say_so(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.admin.base.COUNT_CAP", 100)
    many_rows(101)
    assert "100+ failed jobs" in viewer.get(FAILED).content.decode()
    assert len(ids(viewer.get(FAILED, {"p": "14"}))) == 7, "the last page is one of what is counted"
    FailedJob.objects.filter(job_id="n-0").delete()
    page = viewer.get(FAILED).content.decode()
    assert "100 failed jobs" in page and "100+ failed jobs" not in page


def test_choices_of_a_filter_are_those_that_exist_up_to_a_number(viewer: Client) -> None:
    MorgueJob.objects.bulk_create(morgue_row(f"n-{n}", task=f"t{n % 70:02}", reason="") for n in range(200))

    def offered(name: str) -> list[str]:
        specs = {spec.parameter_name: spec for spec in viewer.get(MORGUE).context["cl"].filter_specs}
        return [value for value, _label in specs[name].lookup_choices]

    assert offered("task") == [f"t{n:02}" for n in range(50)]
    assert offered("reason") == [""]
    page = viewer.get(f"{MORGUE}?task=t65")
    assert ids(page) == [f"n-{n}" for n in range(199, -1, -1) if n % 70 == 65]
    spec = next(spec for spec in page.context["cl"].filter_specs if spec.parameter_name == "task")
    assert [choice["display"] for choice in spec.choices(page.context["cl"]) if choice["selected"]] == ["t65"]


def statements(client: Client, address: str) -> list[str]:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert client.get(address).status_code == 200
    return [query["sql"] for query in seen.captured_queries if "django_delayq" in query["sql"]]


def test_the_number_of_statements_does_not_grow(viewer: Client) -> None:
    def fill(number: int) -> None:
        many_rows(number)
        many_rows(number, morgue_row)
        stamp = timezone.now()
        made = [failed_row(f"o{n}") for n in range(number)]
        OutboxJob.objects.bulk_create(
            OutboxJob(queue="q", job_id=row.job_id, key=row.key, due_ms=5, record=b"") for row in made
        )
        InboxEntry.objects.bulk_create(InboxEntry(queue="q", job_id=row.job_id, key=row.key) for row in made)
        BulkAction.objects.bulk_create(BulkAction(action="retry", target="FailedJob", created_at=stamp) for _ in made)

    addresses = (
        FAILED,
        f"{FAILED}?queue=q1&attempt=1&age=day&q=n",
        MORGUE,
        OUTBOX,
        f"{OUTBOX}?state__exact=sent",
        INBOX,
        BULK,
    )
    fill(2)
    few = {address: len(statements(viewer, address)) for address in addresses}
    for model in (FailedJob, MorgueJob, OutboxJob, InboxEntry, BulkAction):
        model.objects.all().delete()
    fill(300)
    many = {address: statements(viewer, address) for address in addresses}
    assert {address: len(found) for address, found in many.items()} == few
    assert max(few.values()) <= 7
    for sql in itertools.chain(*many.values()):
        assert "COUNT(*)" not in sql or "LIMIT 10001" in sql, "no more rows are counted"
        assert "DISTINCT" not in sql, f"it reads a whole index: {sql}"


# --- more rows than are counted


def test_a_filter_and_a_search_use_their_indexes() -> None:
    admin = FailedJobAdmin(FailedJob, None)  # type: ignore[arg-type]
    if connection.vendor == "postgresql":  # the plan of an empty table tells no more than which index would do
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        plan = FailedJob.objects.filter(**admin.search_lookups("n-1")).explain()
        assert "delayq_failed_id" in plan and "Index Cond" in plan, plan
        return
    plans = {
        name: FailedJob.objects.filter(**lookups).order_by("-failed_at", "-pk")[:101].explain()
        for name, lookups in {
            "delayq_failed_at": {},
            "delayq_failed_queue": {"queue": "q"},
            "delayq_failed_task": {"task": "t"},
            "delayq_failed_error": {"error_class": ""},
            "delayq_failed_attempt": {"failures": 1},
            "delayq_failed_id": admin.search_lookups("n-1"),
        }.items()
    }
    for name, plan in plans.items():
        assert f"USING INDEX {name}" in plan, plan
        assert ("TEMP B-TREE" in plan) is (name == "delayq_failed_id")
