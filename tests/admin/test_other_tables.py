"""Outbox, inbox and bulk actions; and sites of the project's own."""

from __future__ import annotations

import html
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.urls import path
from django.utils import timezone

from django_delayq.admin import PAGES, register
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.models import BulkAction, FailedJob, InboxEntry, OutboxJob
from django_delayq.outbox.rows import pack_job
from django_delayq.settings.conf import Conf
from tests.admin.mirrors import BULK, INBOX, OUTBOX, failed_row, ids, messages_of
from tests.admin.support import cells, tags_of, without_seconds

pytestmark = pytest.mark.django_db


def outbox_row(ident: str, **fields: Any) -> OutboxJob:
    new = fields.pop(
        "new", NewJob(ident, "x.pay", encode_args((5,), {"token": "t-1"}), options=b'{"context":{"pin":1}}')
    )
    due_ms = int((timezone.now() + timedelta(minutes=9, seconds=30)).timestamp() * 1000)
    return OutboxJob.objects.create(
        **{
            "queue": "orders",
            "job_id": ident,
            "task": "x.pay",
            "key": uuid.uuid4(),
            "due_ms": due_ms,
            "record": pack_job(new),
            **fields,
        }
    )


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_outboxjob", "view_inboxentry", "view_bulkaction", "stop_bulkaction"))
    return client


def test_the_outbox_says_what_is_still_to_be_told_to_redis(viewer: Client) -> None:
    past = int((timezone.now() - timedelta(hours=2)).timestamp() * 1000)
    outbox_row("new")
    outbox_row("stuck", state="moved", due_ms=past, tries=3, error="QueueFull: no room\nmore")
    outbox_row("sent", state="sent", due_ms=past, sent_at=timezone.now())
    assert list(map(without_seconds, cells(viewer.get(OUTBOX).content))) == [
        ["sent", "orders", "x.pay", "sent", "2 h ago", "now", "0"],
        [
            "stuck",
            "orders",
            "x.pay QueueFull: no room",
            "to be rescheduled",
            "2 h ago late",
            "now",
            "3",
        ],
        ["new", "orders", "x.pay", "to be sent", "in 9 min", "now", "0"],
    ]
    assert ids(viewer.get(f"{OUTBOX}?state__exact=moved")) == ["stuck"]


def test_the_outbox_is_searched_by_id_and_by_key(viewer: Client) -> None:
    rows = [outbox_row(ident, queue=f"q{place}") for place, ident in enumerate(("a", "b", "b", "bb"))]
    found = {
        term: ids(viewer.get(OUTBOX, {"q": term})) for term in ("a", " b ", "c", str(rows[3].key), rows[0].key.hex)
    }
    assert found == {"a": ["a"], " b ": ["b", "b"], "c": [], str(rows[3].key): ["bb"], rows[0].key.hex: ["a"]}


def test_the_outbox_is_searched_in_every_queue_however_many_there_are(viewer: Client) -> None:
    for place in range(60):
        outbox_row(f"job-{place}", queue=f"q{place:02}")
    assert ids(viewer.get(OUTBOX, {"q": "job-59"})) == ["job-59"]


def test_the_content_of_an_outbox_row_is_masked(viewer: Client) -> None:
    plain = outbox_row("a")
    merged = outbox_row(
        "b", new=NewJob("b", "x.pay", payload=Payload(encode({"n": 5, "token": "t-1"}), "7", new_key()))
    )
    damaged = outbox_row("c", record=b"\xff\x00")
    pages = {row.job_id: viewer.get(f"{OUTBOX}{row.pk}/change/").content.decode() for row in (plain, merged, damaged)}
    for page in pages.values():
        tags_of(page.encode())
        assert "t-1" not in page
    assert pages["a"].count("••••••") == 2
    assert "&quot;n&quot;: 5" in pages["b"]


def test_the_inbox_lists_what_was_done(viewer: Client) -> None:
    keys = [uuid.uuid4() for _ in range(3)]
    for place, key in enumerate(keys):
        InboxEntry.objects.create(
            key=key,
            queue="orders",
            job_id=f"i{place}",
            task="t",
            created_at=timezone.now() - timedelta(hours=30 * place),
        )
    assert [row[2] for row in cells(viewer.get(INBOX).content)] == ["i0", "i1", "i2"]
    assert [row[2] for row in cells(viewer.get(f"{INBOX}?age=day").content)] == ["i0"]
    assert [row[2] for row in cells(viewer.get(INBOX, {"q": str(keys[1])}).content)] == ["i1"]
    assert cells(viewer.get(INBOX, {"q": "i1"}).content) == []
    assert viewer.get(f"{INBOX}{keys[1]}/change/").status_code == 200


# --- bulk actions


def order(**fields: Any) -> BulkAction:
    given = {"action": "discard", "target": "FailedJob", "filters": {"queue": "orders"}, "total": 2000, **fields}
    return BulkAction.objects.create(**given)


def test_a_bulk_action_tells_how_far_it_is(viewer: Client) -> None:
    made = order(state="running", done=500, counts={"discarded": 480, "gone": 20})
    order(
        state="done",
        done=1,
        total=1,
        created_at=timezone.now() - timedelta(hours=2),
        filters={"queue": "orders", "error_class": "KeyError", "failed_at__lte": "2030-01-31T12:00:00+00:00"},
    )
    order(state="done", done=5, total=5, created_at=timezone.now() - timedelta(hours=1), action="retry")
    assert [row[:3] for row in cells(viewer.get(BULK).content)] == [
        ["Discard 2 000 jobs", "running", "25 % 500 of 2 000"],
        ["Retry 5 jobs", "done", "100 % 5 of 5"],
        ["Discard 1 job", "done", "100 % 1 of 1"],
    ]
    page = viewer.get(f"{BULK}{BulkAction.objects.get(total=1).pk}/change/").content.decode()
    said = html.unescape(page)
    assert all(text in said for text in ('"FailedJob"', '"error_class": "KeyError"', '"2030-01-31T12:00:00+00:00"'))
    page = viewer.get(f"{BULK}{made.pk}/change/").content.decode()
    tags_of(page.encode())
    assert "500 of 2\u202f000" in page and "480 jobs were discarded." in page
    assert "django_delayq/live.js" in page and "data-ended" not in page
    assert '<meta http-equiv="refresh"' in page


def test_one_that_has_ended_is_not_asked_for_again_and_has_no_button(viewer: Client) -> None:
    for state in ("done", "stopped", "failed"):
        made = order(
            state=state,
            error="KeyError: 5" if state == "failed" else "",
            ended_at=timezone.now() - timedelta(minutes=3),
        )
        page = viewer.get(f"{BULK}{made.pk}/change/").content.decode()
        assert ">3 min ago</time>" in page
        assert page.count("KeyError: 5") == (state == "failed")
        assert "data-ended" in page and "refresh" not in page and ">Stop</button>" not in page
        assert viewer.post(f"{BULK}{made.pk}/stop/", follow=True).context is not None
        made.refresh_from_db()
        assert made.state == state


def test_the_button_stops_it_and_is_in_the_log(viewer: Client) -> None:
    made = order(state="running")
    assert ">Stop</button>" in viewer.get(f"{BULK}{made.pk}/change/").content.decode()
    answer = viewer.post(f"{BULK}{made.pk}/stop/", follow=True)
    assert messages_of(answer) == [("success", "It will stop after the current chunk.")]
    made.refresh_from_db()
    assert made.state == "stopped"
    assert LogEntry.objects.get().get_change_message() == "Stopped."


@pytest.mark.parametrize("counts", [[], "x", None])
def test_strange_contents_of_an_order_have_a_page(viewer: Client, counts: Any) -> None:
    made = order(counts=counts or [], filters=[], options=[], total=0)
    assert viewer.get(f"{BULK}{made.pk}/change/").status_code == 200
    assert viewer.get(BULK).status_code == 200


# --- sites and settings


class urls:
    """A project that has a site of its own, and only that."""

    site = AdminSite(name="ops")
    urlpatterns: list[Any] = []  # noqa: RUF012


def test_a_site_of_the_projects_own_gets_every_page(settings: Any, admin_client: Client, delayq: Any) -> None:
    site = AdminSite(name="ops")
    register(site)
    register(site)
    assert set(site._registry) == set(PAGES)
    urls.urlpatterns = [path("ops/", site.urls)]
    settings.ROOT_URLCONF = urls
    row = failed_row()
    row.save()
    answer = admin_client.get("/ops/django_delayq/failedjob/")
    assert ids(answer) == ["a"]
    page = admin_client.get(f"/ops/django_delayq/failedjob/{row.pk}/change/").content.decode()
    assert 'action="/ops/django_delayq/failedjob/"' in page and '"/admin/' not in page
    for model in ("morguejob", "outboxjob", "inboxentry", "bulkaction"):
        assert admin_client.get(f"/ops/django_delayq/{model}/").status_code == 200


@pytest.mark.parametrize("missing", list(PAGES))
def test_a_site_without_one_of_the_pages_shows_all_others(
    settings: Any, admin_client: Client, delayq: Any, missing: Any
) -> None:
    site = AdminSite(name="ops")
    register(site)
    site.unregister(missing)
    urls.urlpatterns = [path("ops/", site.urls)]
    settings.ROOT_URLCONF = urls
    failed_row().save()
    delayq.queue("orders").schedule(NewJob("a", "shop.slow"))
    for model in set(PAGES) - {missing}:
        page = f"/ops/django_delayq/{model._meta.model_name}/"
        assert admin_client.get(page, follow=True).status_code == 200, page
    if missing is not FailedJob:
        assert admin_client.get(f"/ops/django_delayq/failedjob/{FailedJob.objects.get().pk}/change/").status_code == 200


def test_a_large_action_of_a_site_without_the_page_of_its_progress_returns_to_the_list(
    settings: Any, admin_client: Client, delayq: Any
) -> None:
    site = AdminSite(name="ops")
    register(site)
    site.unregister(BulkAction)
    urls.urlpatterns = [path("ops/", site.urls)]
    settings.ROOT_URLCONF = urls
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"bulk_threshold": 0}}
    failed_row().save()
    fields = {
        "action": "discard",
        "_selected_action": [FailedJob.objects.get().pk],
        "select_across": "1",
        "confirmed": "1",
    }
    answer = admin_client.post("/ops/django_delayq/failedjob/", fields, follow=True)
    assert answer.redirect_chain == [("/ops/django_delayq/failedjob/", 302)]
    assert messages_of(answer) == [("info", "A worker carries out this action.")]
    assert BulkAction.objects.count() == 1


def test_pages_that_the_project_registered_itself_stay() -> None:
    class Mine(ModelAdmin):  # type: ignore[type-arg]
        pass

    site = AdminSite(name="ops")
    site.register(FailedJob, Mine)
    register(site)
    assert type(site._registry[FailedJob]) is Mine


def test_the_settings_are_read_and_checked() -> None:
    made = Conf.read(
        "DELAYQ", {"ADMIN": {"register": False, "sensitive": ["vat"], "bulk_threshold": 5, "late_after": 1}}
    ).admin
    assert (made.register, made.sensitive, made.bulk_threshold, made.late_after) == (False, ("vat",), 5, 1)
    for wrong in (
        {"register": 1},
        {"sensitive": "password"},
        {"bulk_threshold": -1},
        {"late": 5},
        {"late_after": "1"},
    ):
        with pytest.raises((Misconfigured, ImproperlyConfigured), match=r"DELAYQ\['ADMIN'\]"):
            Conf.read("DELAYQ", {"ADMIN": wrong})


def test_a_project_may_leave_registration_to_itself() -> None:
    import subprocess
    import sys
    from pathlib import Path

    program = (
        "from tests import settings\n"
        "settings.DELAYQ['ADMIN'] = {'register': False}\n"
        "import django; django.setup()\n"
        "from django.contrib import admin\n"
        "print(sorted(m.__name__ for m in admin.site._registry if m._meta.app_label == 'django_delayq'))\n"
    )
    root = Path(__file__).resolve().parents[2]
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, env=env, check=True
    )
    assert done.stdout == "[]\n"


def test_the_menu_lists_the_dashboard_first_and_the_pipeline_last(client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff(superuser=True))
    (app,) = (app for app in client.get("/admin/").context["app_list"] if app["app_label"] == "django_delayq")
    assert [entry["model"] for entry in app["models"]] == list(PAGES)
