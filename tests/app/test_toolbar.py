"""The panel of the real debug toolbar: what a request scheduled, and what that cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.test import Client, override_settings

from django_delayq.core.broker import Broker

pytest.importorskip("debug_toolbar")
pytestmark = pytest.mark.django_db(transaction=True)

PANEL = "django_delayq.toolbar.JobsPanel"


@pytest.fixture
def site(delayq: Broker, settings: Any) -> Iterator[Client]:
    """A browser's view of a site with the toolbar and our panel."""
    with override_settings(
        INSTALLED_APPS=[*settings.INSTALLED_APPS, "debug_toolbar"],
        MIDDLEWARE=["debug_toolbar.middleware.DebugToolbarMiddleware", *settings.MIDDLEWARE],
        DEBUG_TOOLBAR_PANELS=[PANEL],
        DEBUG_TOOLBAR_CONFIG={"SHOW_TOOLBAR_CALLBACK": "tests.app.test_toolbar.always", "IS_RUNNING_TESTS": False},
        ROOT_URLCONF="tests.app.toolbar_urls",
        DELAYQ={**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": ["django_delayq.toolbar.watch"]},
    ):
        from debug_toolbar.toolbar import DebugToolbar

        DebugToolbar._panel_classes = None
        DebugToolbar.get_panel_classes()
        yield Client()
        DebugToolbar._panel_classes = None


def always(request: Any) -> bool:
    return True


def look(site: Client, address: str) -> tuple[str, str, list[list[str]]]:
    """Title and subtitle in the side bar, and the rows of the panel, of a request."""
    page = site.get(address).content.decode()
    bar = re.search(r'id="djdt-JobsPanel".*?</li>', page, re.DOTALL)
    assert bar is not None, "the panel is not in the side bar"
    (request,) = re.findall(r'data-(?:request|store)-id="([^"]+)"', page)
    word = "request_id" if "data-request-id" in page else "store_id"
    answer = site.get("/__debug__/render_panel/", {word: request, "panel_id": "JobsPanel"})
    content = json.loads(answer.content)["content"]
    title = re.search(r"<h3>(.*?)</h3>", page, re.DOTALL)
    rows = [
        [unescape(re.sub(r"<br>", " ", cell)) for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", content, re.DOTALL)
    ]
    return title[1] if title else "", re.sub(r"<[^>]+>|\s+", " ", bar[0]), [row for row in rows if row]


def test_a_job_is_listed_with_its_fate_and_where_it_came_from(site: Client, delayq: Broker) -> None:
    title, _, rows = look(site, "/plain/")
    assert title == "1 job scheduled"
    (row,) = rows
    assert row[:3] == ["toolbar.pack", "order-5", "parcels"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", row[3])
    assert row[4:7] == ["created", "no", ""]
    assert re.fullmatch(r"<code>.*/tests/app/toolbar_urls.py:\d+ in plain</code>", row[8])
    view = delayq.inspector.get("parcels", "order-5")
    assert view is not None
    assert view.state == "delayed"


def test_every_scheduled_job_is_listed(site: Client, delayq: Broker) -> None:
    title, _, rows = look(site, "/every_verb/")
    assert title == "6 jobs scheduled"
    assert [(row[2], *row[4:7]) for row in rows] == [
        ("parcels", "created", "yes", ""),
        ("parcels", "created", "yes", "yes"),
        ("crm2", "created", "no", ""),
        *[("parcels", "collected", "no", "")] * 3,
    ]
    places = {re.sub(r"</?code>|:\d+", "", row[8]).rpartition("/")[2] for row in rows}
    assert places == {"toolbar_urls.py in every_verb"}


def test_what_was_refused_is_no_job_but_is_told(site: Client) -> None:
    title, _, rows = look(site, "/refused/")
    assert title == "1 job scheduled"
    assert rows[1][4].startswith("IdTaken: a job with id 'taken' already lives")


def test_stored_text_is_only_text(site: Client) -> None:
    page = site.get("/hostile/").content.decode()
    (request,) = re.findall(r'data-(?:request|store)-id="([^"]+)"', page)
    word = "request_id" if "data-request-id" in page else "store_id"
    answer = site.get("/__debug__/render_panel/", {word: request, "panel_id": "JobsPanel"})
    panel = json.loads(answer.content)["content"]
    assert "<script>alert" not in page + panel
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in panel


def test_a_request_without_jobs_says_so(site: Client) -> None:
    title, _, rows = look(site, "/quiet/")
    assert (title, rows) == ("0 jobs scheduled", [])


def test_a_coroutine_is_watched_too(site: Client) -> None:
    title, _, rows = look(site, "/coroutine/")
    assert title == "1 job scheduled"
    assert rows[0][1] == "async"
    assert rows[0][8] == "<code></code>"  # its frame is on no stack


def test_outside_of_requests_nobody_is_told(site: Client) -> None:
    from tests.app.toolbar_tasks import pack

    look(site, "/plain/")
    assert pack.schedule(1).outcome == "created"
    assert look(site, "/quiet/")[2] == []


def test_the_package_does_not_import_the_toolbar() -> None:
    program = (
        "import sys, django; django.setup(); import django_delayq.admin, django_delayq.runtime.wiring; "
        "print('debug_toolbar' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": "."},
    )
    assert said.stdout.strip() == "False"
