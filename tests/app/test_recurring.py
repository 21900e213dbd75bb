"""@task(every=…) and @task(cron=…) in a Django project: refused where they stand, fired by workers, shown by status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_delayq import task
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry
from django_delayq.runtime.wiring import make_config, make_worker
from django_delayq.settings.conf import conf
from tests.support.worker_stage import eventually


@pytest.fixture(autouse=True)
def _own_recurring_tasks() -> Iterator[None]:
    """Unregister the test's tasks afterwards; hide the recurring tasks of the installed apps meanwhile."""
    before = registry.tasks
    recurring = [one for one in registry if one.options.recurring]
    for one in recurring:
        registry.remove(one)
    yield
    for one in registry:
        if before.get(one.name) is not one:
            registry.remove(one)
    for one in recurring:
        registry.add(one)


def status(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_status", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_workers_of_the_project_use_its_time_zone(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert make_config(conf()).timezone == "Europe/Berlin"


def test_a_dispatcher_without_consumer_fires_too(delayq: Broker) -> None:
    @task(name="app.sweep", every=1)
    def sweep() -> None: ...

    worker = make_worker(make_config(conf(), consumer=False, dispatcher=True, queues=("default",)))
    worker.start()
    try:
        eventually(lambda: delayq.inspector.get("default", "recurring:app.sweep"), "the job of a tick")
    finally:
        worker.stop(1.0)


@pytest.mark.django_db
def test_status_shows_recurring_tasks_with_their_ticks(delayq: Broker, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"

    @task(name="app.sweep", every=timedelta(minutes=10), missed="skip")
    def sweep() -> None: ...

    @task(name="app.report", cron="0 3 * * mon", queue="reports")
    def report() -> None: ...

    delayq.queue("default").first_sight("recurring:app.sweep", "every 10m")
    before = json.loads(status("--json"))["recurring"]
    assert [
        (one["task"], one["queue"], one["schedule"], one["timezone"], one["missed"], one["last_tick"]) for one in before
    ] == [
        ("app.report", "reports", "0 3 * * mon", "Europe/Berlin", "once", None),
        ("app.sweep", "default", "every 10m", None, "skip", None),
    ]
    monday, soon = (datetime.fromisoformat(one["next_tick"]).timestamp() * 1000 for one in before)
    assert 0 < soon - delayq.now_ms() <= 600_000 < monday - delayq.now_ms() + 600_000
    assert soon % 600_000 == 0

    fire(delayq, "app.sweep", tick_ms=1_700_000_400_000)
    assert "reports" not in {queue.name for queue in delayq.queues()}, "looking brings no queue into being"
    lines = status().splitlines()
    (head,) = [place for place, line in enumerate(lines) if line.startswith("recurring task")]
    rows = [line.split("  ") for line in lines[head : head + 3]]
    rows = [[cell.strip() for cell in row if cell] for row in rows]
    assert rows[0] == ["recurring task", "schedule", "time zone", "last tick", "next tick"]
    assert rows[1][:4] == ["app.report", "0 3 * * mon", "Europe/Berlin", "–"]
    assert rows[1][4].endswith("03:00:00")
    assert rows[2][:4] == ["app.sweep", "every 10m", "UTC", "2023-11-14 22:20:00"]


def fire(broker: Broker, name: str, *, tick_ms: int) -> None:
    """Fire a tick as a dispatcher does."""
    from django_delayq.core.job import NewJob

    new = NewJob(f"recurring:{name}", name, due_ms=tick_ms, delay_ms=None)
    assert broker.queue("default").schedule_tick(new, tick_ms) == "created"
    assert broker.queue("default").schedule_tick(new, tick_ms) == "fired"


@pytest.mark.django_db
def test_status_without_recurring_tasks_says_nothing_of_them(delayq: Broker) -> None:
    assert json.loads(status("--json"))["recurring"] == []
    assert "recurring" not in status()
