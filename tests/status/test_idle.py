"""Due jobs beside a process with free slots are found, by ``delayq_status`` and ``delayq_check``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.connections import DjangoBroker
from django_delayq.core.job import NewJob
from django_delayq.settings.conf import conf
from django_delayq.status import Finding, take, warnings, warnings_of
from django_delayq.status.json_form import as_json
from django_delayq.status.report import report
from django_delayq.worker.wake import WakeListener
from tests.support.worker_stage import config, eventually, put, registry_of, working

#: seconds for which the job of the world is due
LATE = 60
IDLE = {"queues": ["mail"], "threads": 5, "running": 4, "idle_ms": 20_000}


def found(broker: DjangoBroker) -> dict[str, str]:
    return {queue: worker.name for queue, worker in warnings.idle_beside_due(take(broker, outbox=False)).items()}


def idle(broker: DjangoBroker) -> list[Finding]:
    """Return the warnings of idle processes."""
    return [one for one in warnings_of(take(broker, outbox=False)) if one.check == "idle"]


@pytest.fixture
def late(delayq: DjangoBroker) -> DjangoBroker:
    """A job of the queue ``mail`` has been due for a minute, and the process ``w`` has a free slot."""
    due_ms = int(delayq.now_ms()) - LATE * 1000
    delayq.queue("mail").schedule(NewJob("a", "work", due_ms=due_ms, delay_ms=None))
    delayq.announce("w", IDLE)
    return delayq


def test_a_due_job_beside_a_free_slot_is_shown_with_what_to_do(late: DjangoBroker) -> None:
    snapshot = take(late, outbox=False)
    assert [queue["idle_worker"] for queue in as_json(snapshot)["queues"]] == ["w"]
    (finding,) = idle(late)
    assert finding.level == "WARN"
    assert finding.text == (
        "Queue mail has due jobs, and worker w, which serves it, has had free slots for 20 s: see its log; "
        "if that gives no reason, restart it and report it."
    )
    assert f"WARN  idle: {finding.text}" in report(snapshot)


@pytest.mark.parametrize(
    "other",
    [
        {"queues": ["orders"]},
        {"queues": ["orders", "… 7 more"], "all_queues": True, "ignored": ["mail"]},
        {"idle_ms": 0},
        {"idle_ms": 4_000},
        {"stopping": True},
        {"quarantine": True},
    ],
)
def test_a_process_that_cannot_run_the_job_is_not_idle(late: DjangoBroker, other: dict[str, Any]) -> None:
    late.announce("w", {**IDLE, **other})
    assert found(late) == {}
    assert idle(late) == []
    late.announce("every", {**IDLE, "queues": ["… 50 more"], "all_queues": True})
    assert found(late) == {"mail": "every"}


def test_a_job_that_became_due_just_now_does_not_wait_yet(delayq: DjangoBroker) -> None:
    delayq.queue("mail").schedule(NewJob("a", "work"))
    delayq.announce("w", IDLE)
    assert found(delayq) == {}


def test_a_paused_queue_is_no_fault_of_the_process(late: DjangoBroker) -> None:
    late.pause("mail", "out")
    assert found(late) == {}
    late.resume("mail", "out")
    assert found(late) == {"mail": "w"}


@pytest.mark.parametrize("limit", [2, {"local": 2}])
def test_a_limit_of_the_queue_is_a_reason_to_wait_only_when_it_is_reached(
    late: DjangoBroker, limit: Any, override: Callable[..., contextlib.AbstractContextManager[None]]
) -> None:
    job = {"slot": 0, "queue": "mail", "id": "b", "task": "work", "started_ms": 1, "ids": 1}
    with override(QUEUES={"mail": {"concurrency": limit}}):
        assert conf().queue("mail").concurrency is not None
        for number, waits in ((1, {"mail": "w"}), (2, {})):
            late.queue("mail").schedule(NewJob(f"running-{number}", "work", priority=0))
            assert len(late.queue("mail").reserve(0, 1, worker="w").jobs) == 1
            late.announce("w", {**IDLE, "jobs": [job] * number})
            assert found(late) == waits


@pytest.fixture
def override(settings: Any) -> Iterator[Callable[..., contextlib.AbstractContextManager[None]]]:
    from django.test import override_settings

    yield lambda **changes: override_settings(DELAYQ={**settings.DELAYQ, **changes})


@pytest.mark.filterwarnings("ignore")
def test_a_real_process_that_gets_no_tokens_is_found(delayq: DjangoBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WakeListener, "call", lambda self, names: None)
    monkeypatch.setattr(warnings, "IDLE_AFTER", 0.5)

    def work() -> None: ...

    delayq.queue("mail")
    with working(delayq, registry_of(work), config(queues=("mail",), dispatcher=False, heartbeat=0.2)) as worker:
        eventually(lambda: worker._selector.resting and worker._selector.waiting)
        put(delayq, "work", queue="mail")
        assert eventually(lambda: found(delayq), seconds=4) == {"mail": worker.name}
