"""The history over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_delayq.core.job import NewJob
from django_delayq.history.rows import FIELDS
from django_delayq.models.history import HourlyStat, PipelineRun
from tests.history.past import HOUR, NOON, hour_of, seed
from tests.support.api_caller import Caller


def only_mail(request: Any, action: str, queue: str) -> bool:
    """A project's own rule."""
    return queue in ("", "mail")


@pytest.fixture
def past(delayq: Any, db: None) -> None:
    """Six hours of two queues."""
    seed(
        *(
            hour_of(NOON + HOUR * more, queue, f"shop.{queue}", failed=1)
            for more in range(3)
            for queue in ("orders", "mail")
        )
    )


def test_hours_are_listed_page_by_page_the_latest_first(api: Caller, past: None) -> None:
    status, first = api.get("v1/history/hours?limit=4")
    assert status == 200
    assert [one["hour"] for one in first["hours"]] == [
        "2026-11-20T14:00:00.000Z",
        "2026-11-20T14:00:00.000Z",
        "2026-11-20T13:00:00.000Z",
        "2026-11-20T13:00:00.000Z",
    ]
    assert set(first["hours"][0]) == set(FIELDS)
    assert (first["hours"][0]["runs"], first["hours"][0]["failed"], first["hours"][0]["lateness_p50_ms"]) == (3, 1, 20)
    _, second = api.get(f"v1/history/hours?limit=4&cursor={first['cursor']}")
    assert len(second["hours"]) == 2
    assert second["cursor"] is None


def test_hours_are_filtered_by_queue_task_and_time(api: Caller, past: None) -> None:
    def hours(query: str) -> list[str]:
        status, body = api.get(f"v1/history/hours?{query}")
        assert status == 200, body
        return sorted(f"{one['hour'][11:13]} {one['queue']}" for one in body["hours"])

    assert hours("queue=mail") == ["12 mail", "13 mail", "14 mail"]
    assert hours("task=shop.orders&from=2026-11-20T13:00:00Z") == ["13 orders", "14 orders"]
    assert hours("to=2026-11-20T15:00:00%2B02:00&queue=mail") == ["12 mail"]
    assert hours(f"from={NOON.timestamp() + 3600}&to={NOON.timestamp() + 7200}") == ["13 mail", "13 orders"]
    assert (hours("queue=nobody"), len(hours("queue=&task="))) == ([], 6)


def run_of(run_id: str, **more: Any) -> PipelineRun:
    now = timezone.now()
    return PipelineRun.objects.create(
        **{
            "run_id": run_id,
            "kind": "history",
            "state": "finished",
            "ended_at": now,
            "started_at": now,
            "seen_at": now,
            **more,
        }
    )


def test_runs_are_listed_and_filtered(api: Caller, delayq: Any) -> None:
    now = timezone.now()
    run_of("a", detail={"redis": "redis://u:hush@h/0", "password": "hush"}, error="redis://u:hush@h/0 is away")
    run_of("b", kind="bulk", state="running", ended_at=None, total=10, rows=4)
    run_of(
        "c",
        kind="bulk",
        state="running",
        ended_at=None,
        seen_at=now - timedelta(minutes=66),
        started_at=now - timedelta(minutes=76),
    )

    def names(query: str) -> list[str]:
        return [one["run_id"] for one in api.get(f"v1/history/runs?{query}")[1]["runs"]]

    assert names("") == ["c", "b", "a"]
    assert names("kind=bulk") == ["c", "b"]
    assert (names("state=running"), names("state=died"), names("state=finished")) == (["b"], ["c"], ["a"])
    assert names("run_id=a") == ["a"]
    _, body = api.get("v1/history/runs?limit=2")
    assert [one["run_id"] for one in body["runs"]] == ["c", "b"]
    assert names(f"limit=2&cursor={body['cursor']}") == ["a"]
    assert [one["state"] for one in body["runs"]] == ["died", "running"]
    assert body["runs"][0]["seconds"] == pytest.approx(600, abs=1)
    assert "hush" not in str(api.get("v1/history/runs?run_id=a"))


def test_a_projects_own_rule_leaves_queues_out(api: Caller, past: None, delayq: Any, settings: Any) -> None:
    for name in ("mail", "orders"):
        delayq.queue(name).schedule(NewJob("a", f"shop.{name}"))
    run_of("a", queue="orders")
    run_of("b", queue="mail", detail={"rows": 1})
    run_of("c", detail={"orders": 5}, error="orders is away")
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.only_mail"}}
    assert {one["queue"] for one in api.get("v1/history/hours")[1]["hours"]} == {"mail"}
    assert api.get("v1/history/hours?queue=orders")[1]["hours"] == []
    runs = api.get("v1/history/runs")[1]["runs"]
    assert [(one["run_id"], one["detail"], one["error"]) for one in runs] == [("c", {}, ""), ("b", {"rows": 1}, "")]


def test_without_a_history_everything_is_empty(api: Caller, delayq: Any) -> None:
    assert api.get("v1/history/hours") == (200, {"hours": [], "cursor": None})
    assert api.get("v1/history/runs") == (200, {"runs": [], "cursor": None})
    assert not HourlyStat.objects.exists()
