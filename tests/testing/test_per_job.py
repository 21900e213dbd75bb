"""Options of one job in the kit: the scripts are the real ones, so a lease and the counts are too."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import Queue, connections, current_job, schedule, task
from django_delayq.core.task import registry
from django_delayq.testing import Fake


@pytest.mark.usefixtures("delayq_fake")
def test_a_job_has_its_own_lease_and_its_counts_in_the_kit(delayq_fake: Fake, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    feed = Queue("feed")
    feed.put(b"x", id="a", ttr=300, delay=-5)
    (job,) = feed.reserve()
    assert 290 < job.seconds_left <= 300
    assert job.bury("no")
    inspector, live = connections.broker().inspector, connections.queue("feed")
    assert live.kick("a") == "kicked"
    view = inspector.get("feed", "a")
    assert view is not None and view.created_ms is not None
    assert {name: view.history[name] for name in ("buries", "kicks", "reserves")} == {
        "buries": 1,
        "kicks": 1,
        "reserves": 0,
    }


def test_a_false_is_a_retry_in_the_kit(delayq_fake: Fake) -> None:
    answers = [False, True]

    @task(name="kit.ask", retry_on_false=True, retry_in=0, id="ask-{number}")
    def ask(number: int) -> Any:
        job = current_job()
        assert job is not None and job.created is not None and job.id == "ask-5"
        return answers.pop(0)

    try:
        schedule(ask, 5)
        report = delayq_fake.run_due()
    finally:
        registry.remove(ask)
    assert [ran.outcome for ran in report.runs] == ["failed", "succeeded"] and answers == []
