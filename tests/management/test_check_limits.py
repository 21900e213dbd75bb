"""delayq_check on tasks, and on limits: of a morgue, and of the time that a handler may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.checks import Error

from django_delayq import limits, task
from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury
from django_delayq.core.task import Registry, registry
from django_delayq.management import diagnosis
from django_delayq.status import Finding, warnings


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """``registered("name", timeout=5)``: a task until the test ends."""
    made: list[Any] = []

    def register(name: str, **options: Any) -> None:
        def handle() -> None: ...

        made.append(task(name=name, **options)(handle))

    yield register
    for one in made:
        registry.remove(one)


def of_morgues(broker: DjangoBroker) -> list[Finding]:
    """Return the findings about morgues."""
    return [one for one in diagnosis.snapshot(broker) if one.check == "morgue"]


def test_a_large_morgue_without_a_limit_is_a_warning(delayq: DjangoBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "LARGE_MORGUE", 2)
    for name in ("small", "large", "limited"):
        queue = delayq.queue(name)
        queue.schedule_many([NewJob(str(n), "gone") for n in range(2 if name == "small" else 3)])
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 9, worker="w").jobs]
        assert all(queue.settle([bury(job, 1, 2, reason="why") for job in jobs]))
    delayq.limit("limited", morgue_max=10)
    (finding,) = of_morgues(delayq)
    assert (finding.level, finding.text.partition(":")[0]) == ("WARN", "Queue large")
    assert "3 jobs in a morgue without a limit. Set morgue_max or morgue_ttl" in finding.text


def test_a_morgue_below_the_limit_is_fine(delayq: DjangoBroker) -> None:
    (finding,) = of_morgues(delayq)
    assert (finding.level, finding.text) == ("OK", "no morgue without a limit has more than 100,000 jobs")


def test_the_tasks_of_the_project_are_counted(
    delayq: DjangoBroker, registered: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Registry()
    monkeypatch.setattr(diagnosis, "registry", known)
    for name, expected in (("django_delayq.own", "0 tasks"), ("a.first", "1 task"), ("a.second", "2 tasks")):
        registered(name)
        known.add(registry.tasks[name])
        (finding,) = diagnosis.tasks(delayq)
        assert (finding.level, finding.text) == ("OK", f"{expected} registered, none unknown in the queues")


def test_tasks_without_a_time_limit_are_named(delayq: DjangoBroker, registered: Callable[..., None]) -> None:
    registered("a.hangs")
    registered("a.times_out", timeout=5)
    registered("a.loses_its_lease", max_lease=60)
    (finding,) = diagnosis.limits(delayq)
    assert finding.level == "OK" and "neither timeout= nor max_lease=" in finding.text
    assert "django_delayq." not in finding.text, "the project cannot limit our own tasks"
    assert "a.hangs" in finding.text and "a.times_out" not in finding.text and "a.loses" not in finding.text


def test_limits_that_were_set_for_what_does_not_exist_are_warnings(
    delayq: DjangoBroker, registered: Callable[..., None]
) -> None:
    delayq.queue("mail")
    registered("a.known")
    limits.set("mail", concurrency=1)
    limits.set(task="a.known", concurrency=1)
    assert list(diagnosis.run_time_limits(delayq)) == []
    limits.set("mial", group="acme", rate="1/s")
    limits.set("mial", concurrency=1)
    limits.set(task="a.gone", concurrency=1)
    found = [(one.level, one.check, one.text.partition(",")[0]) for one in diagnosis.run_time_limits(delayq)]
    assert found == [("WARN", "limits", "there is no queue mial"), ("WARN", "limits", "there is no task a.gone")]


def test_a_finding_of_the_settings_is_made_of_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        Error("no Redis is configured", hint="Name one.", id="delayq.E003"),
        Error("A cache.", id="delayq.E017"),
    ]
    monkeypatch.setattr(diagnosis, "run_checks", lambda **_: messages)
    texts = [finding.text for finding in diagnosis.settings(deploy=False)]
    assert texts == ["(delayq.E003) no Redis is configured. Name one.", "(delayq.E017) A cache."]
