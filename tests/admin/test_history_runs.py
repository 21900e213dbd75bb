"""The pages of the pipeline's runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_delayq.models.history import PipelineRun
from tests.admin.support import cells, tags_of

PAGE = "/admin/django_delayq/pipelinerun/"
pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(client: Client, staff: Callable[..., Any]) -> Client:
    """Client of a user who may only see pipeline runs."""
    client.force_login(staff("view_pipelinerun"))
    return client


def run_of(run_id: str = "r", **more: Any) -> PipelineRun:
    now = timezone.now()
    return PipelineRun.objects.create(**{"run_id": run_id, "kind": "bulk", "started_at": now, "seen_at": now, **more})


def four() -> dict[str, PipelineRun]:
    """One of each kind of end, and one that goes on."""
    now = timezone.now()
    return {
        "finished": run_of("a", kind="history", state="finished", rows=5, total=5, ended_at=now),
        "failed": run_of("b", state="failed", error="LookupError: no file\nat all", ended_at=now),
        "running": run_of("c", rows=250, total=1000, created=240, known=10),
        "died": run_of("d", seen_at=now - timedelta(minutes=66), started_at=now - timedelta(minutes=76)),
    }


def listed(client: Client, query: str = "") -> dict[str, list[str]]:
    answer = client.get(PAGE + query)
    assert answer.status_code == 200
    tags_of(answer.content)
    return {row[0].split()[-1]: row for row in cells(answer.content)}


def test_only_who_may_sees_them_and_nobody_changes_them(client: Client, staff: Callable[..., Any]) -> None:
    run = run_of()
    pages = [PAGE, f"{PAGE}{run.pk}/change/"]
    assert {client.get(one).status_code for one in pages} == {302}
    client.force_login(staff("view_hourlystat"))
    assert {client.get(one).status_code for one in pages} == {403}
    client.force_login(staff("view_pipelinerun"))
    assert {client.get(one).status_code for one in pages} == {200}
    assert client.get(f"{PAGE}add/").status_code == 403
    assert client.post(f"{PAGE}{run.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.post(f"{PAGE}{run.pk}/change/", {"run_id": "x"}).status_code == 403
    run.refresh_from_db()
    assert run.run_id == "r"


def test_the_list_says_how_each_is(reader: Client) -> None:
    four()
    rows = listed(reader)
    assert {name: row[1] for name, row in rows.items()} == {"a": "finished", "b": "failed", "c": "running", "d": "died"}
    assert [rows["c"][place] for place in (0, 3, 4, 5)] == ["bulk load c", "25 % · 250", "240", "10"]
    assert rows["b"][2] == "LookupError: no file"
    assert rows["d"][6] == "10 min", "until its last heartbeat"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?state=running", "c"),
        ("?state=died", "d"),
        ("?state=failed", "b"),
        ("?state=stopped", ""),
        ("?kind__exact=history", "a"),
        ("?kind__exact=bulk&state=running", "c"),
        ("?q=b", "b"),
        ("?q=nobody", ""),
        ("?state=odd", "abcd"),
        ("?kind__exact=odd", ""),
    ],
)
def test_runs_are_filtered(reader: Client, query: str, names: str) -> None:
    four()
    assert set(listed(reader, query)) == set(names)


def test_a_run_that_goes_on_has_a_bar(reader: Client) -> None:
    runs = four()
    html = reader.get(f"{PAGE}{runs['running'].pk}/change/").content.decode()
    assert '<progress class="delayq-bar" max="100" value="25"' in html and "1\u202f000" in html
    unknown = reader.get(f"{PAGE}{run_of('e', rows=7).pk}/change/").content.decode()
    assert "<progress" not in unknown


def test_errors_and_details_are_text_without_secrets(reader: Client) -> None:
    run = run_of(
        "<b>x</b>",
        state="failed",
        error="redis://u:hush@h/0 <script>alert(1)</script> password=hush",
        detail={"redis": "redis://u:hush@h/0", "<i>": {"token": "hush", "deep": ["<u>"]}},
    )
    for address in (PAGE, f"{PAGE}{run.pk}/change/"):
        content = reader.get(address).content
        tags_of(content)
        assert b"hush" not in content, address
        for evil in (b"<script>alert", b"<b>x", b"<i>", b"<u>"):
            assert evil not in content, address


def test_details_of_any_shape_are_shown(reader: Client) -> None:
    for detail in ({}, [], [1, "two"], "text", {"a": None}):
        run = run_of(detail=detail)
        assert reader.get(f"{PAGE}{run.pk}/change/").status_code == 200


def test_what_is_gone_is_said_to_be(reader: Client) -> None:
    assert reader.get(f"{PAGE}x/change/").status_code == 302
    assert reader.get(f"{PAGE}999/change/").status_code == 302
