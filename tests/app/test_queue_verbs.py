"""Cancel all and run all now, by every door: durable jobs that Redis does not have are among all jobs of a queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.job import NewJob
from django_delayq.core.queue import Queue
from django_delayq.outbox import durability, row_verbs, rows
from django_delayq.outbox.push import FREE
from tests.support.api_caller import make_caller

from .outbox_stage import TASK, Stage, State

pytestmark = pytest.mark.django_db(transaction=True)
#: no task here says that its jobs are durable
QUEUE = "parcels"
HOUR_MS = 3_600_000
LATER = rows.DueTime(due_ms=None, delay_ms=HOUR_MS)
Door = Callable[[str], int]


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    """A process that knows of no durable job in the queue: others have written the rows."""
    delayq.queue(QUEUE)
    assert not durability.in_use("default", QUEUE, None)
    return Stage(delayq)


@pytest.fixture(params=["command", "admin", "api", "python"])
def door(request: pytest.FixtureRequest, stage: Stage, django_user_model: Any) -> Door:
    """``door("cancel")`` or ``door("run")``: the verb on all jobs of the queue; return the number of jobs."""

    def command(verb: str) -> int:
        out = StringIO()
        words = (verb, "--queue", QUEUE, "--all", "--yes", "--json")
        call_command("delayq_jobs", *words, stdout=out, stderr=StringIO())
        return sum(json.loads(out.getvalue()).values())

    def admin(verb: str) -> int:
        client = Client()
        client.force_login(django_user_model.objects.create_superuser("boss"))
        page = f"/admin/django_delayq/queueentry/{QUEUE}/{'purge' if verb == 'cancel' else 'run'}/"
        answer = client.post(page, {"typed": QUEUE}, follow=True)
        (said,) = [str(message) for message in answer.context["messages"]]
        return int(said.split()[0])

    def api(verb: str) -> int:
        status, body = make_caller("operate").post(
            f"v1/queues/{QUEUE}/{'cancel' if verb == 'cancel' else 'run-now'}", {"all": True}
        )
        assert (status, body["complete"]) == (200, True)
        return sum(body["counts"].values())

    def python(verb: str) -> int:
        queue = stage.broker.queue(QUEUE)
        return sum((row_verbs.cancel_all if verb == "cancel" else row_verbs.run_all_now)(queue).counts.values())

    doors: dict[str, Door] = {"command": command, "admin": admin, "api": api, "python": python}
    return doors[request.param]


def in_an_hour(stage: Stage) -> int:
    return int(stage.broker.now_ms()) + HOUR_MS


def ready(stage: Stage) -> list[str]:
    now = stage.broker.now_ms()
    return sorted(
        view.id for view in stage.broker.inspector.page(QUEUE, "waiting", limit=100).jobs if view.due_ms <= now
    )


def test_a_job_that_was_not_sent_yet_is_cancelled_with_all_others(stage: Stage, door: Door) -> None:
    stage.sent("sent", queue=QUEUE, due_ms=in_an_hour(stage))
    stage.write("unsent", queue=QUEUE, due_ms=in_an_hour(stage))
    stage.broker.queue(QUEUE).schedule(NewJob("plain", TASK, delay_ms=HOUR_MS))
    assert door("cancel") == 3
    stage.take_down()
    stage.relay().turn()
    assert (stage.waiting(QUEUE), stage.rows()) == ([], {})


def test_a_job_that_was_not_sent_yet_is_due_now_with_all_others(stage: Stage, door: Door) -> None:
    stage.sent("sent", queue=QUEUE, due_ms=in_an_hour(stage))
    stage.write("unsent", queue=QUEUE, due_ms=in_an_hour(stage))
    assert door("run") == 2
    stage.relay().turn()
    assert ready(stage) == ["sent", "unsent"]


def test_a_job_that_redis_refused_cannot_be_sent_again_after_a_purge(stage: Stage, door: Door) -> None:
    stage.write("refused", queue=QUEUE, state=State.REFUSED)
    assert door("cancel") == 1
    stage.relay().turn()
    assert stage.rows() == {}


def test_the_api_finds_jobs_by_their_ids_that_other_processes_left_unsent(stage: Stage) -> None:
    for ident in ("a", "b"):
        stage.write(ident, queue=QUEUE, due_ms=in_an_hour(stage))
    api, path = make_caller("operate"), f"v1/queues/{QUEUE}"
    assert api.post(f"{path}/cancel", {"ids": ["a"]})[1]["counts"] == {"cancelled": 1}
    assert api.post(f"{path}/run-now", {"ids": ["b"]})[1]["counts"] == {"moved": 1}
    stage.relay().turn()
    assert ready(stage) == ["b"]


@pytest.mark.parametrize(("verb", "when"), [("cancel", None), ("reschedule", LATER), ("run_now", rows.NOW)])
def test_a_request_that_has_changed_a_row_does_not_change_a_later_job_of_its_id(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, verb: str, when: rows.DueTime | None
) -> None:
    """Redis was away when the request came first, so it has no reply to it."""
    queue, call = stage.broker.queue(QUEUE), (["a"], verb, when, [bytes(range(16))])
    stage.sent("a", queue=QUEUE, due_ms=in_an_hour(stage))
    with monkeypatch.context() as patch:
        patch.setattr(row_verbs, "push_briefly", lambda _alias, keys, **_: dict.fromkeys(keys, FREE))
        assert row_verbs.change_many(queue, *call) == ["outbox"]
    while stage.relay().turn():
        pass
    assert queue.cancel("a") in ("cancelled", "")
    stage.take_down()
    due_ms = 2 * in_an_hour(stage)
    stage.sent("a", queue=QUEUE, due_ms=due_ms)
    assert row_verbs.change_many(queue, *call) == ["outbox"]
    stage.take_down()
    view = stage.broker.inspector.get(QUEUE, "a")
    assert view is not None
    assert (view.due_ms, stage.rows()) == (due_ms, {"a": State.SENT})


def test_rows_of_other_queues_are_left_alone(stage: Stage) -> None:
    stage.write("other", queue="elsewhere")
    stage.write("mine", queue=QUEUE)
    queue = stage.broker.queue(QUEUE)
    assert row_verbs.count_unsent(queue) == 1
    assert row_verbs.cancel_all(queue).counts == {"cancelled": 1}
    assert stage.rows() == {"other": State.UNSENT, "mine": State.CANCELLED}


def test_a_job_that_is_on_its_way_to_redis_is_cancelled_there(stage: Stage) -> None:
    stage.write("a", queue=QUEUE, due_ms=in_an_hour(stage))
    push = stage.push()
    push.take()
    push.send()
    assert row_verbs.cancel_all(stage.broker.queue(QUEUE)).counts == {"cancelled": 2}, (
        "the row, and the job that arrived"
    )
    push.settle()
    stage.take_down()
    stage.relay().turn()
    assert (stage.waiting(QUEUE), stage.rows()) == ([], {})


def test_a_job_that_is_sent_between_the_look_and_the_change_is_cancelled_in_redis_alone(stage: Stage) -> None:
    stage.write("a", queue=QUEUE, due_ms=in_an_hour(stage))
    relays = [stage.relay()]

    def send_before_the_change(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        if sql.startswith("UPDATE") and relays:
            assert relays.pop().turn() == {"sent": 1}
        return execute(sql, *arguments)

    with connection.execute_wrapper(send_before_the_change):
        assert row_verbs.cancel_all(stage.broker.queue(QUEUE)).counts == {"cancelled": 1}
    assert (relays, stage.waiting(QUEUE)) == ([], [])


def test_a_running_job_that_waits_to_be_moved_is_left_alone(stage: Stage) -> None:
    running = stage.sent("running", queue=QUEUE)
    stage.broker.queue(QUEUE).reserve_id("running", worker="w")
    stage.move(in_an_hour(stage))
    assert row_verbs.cancel_all(stage.broker.queue(QUEUE)).counts == {}
    assert stage.rows() == {running.job_id: State.MOVED}
    view = stage.broker.inspector.get(QUEUE, "running")
    assert view is not None
    assert view.state == "reserved"


def test_a_later_due_time_that_was_not_sent_yet_does_not_undo_run_all_now(stage: Stage) -> None:
    stage.sent("a", queue=QUEUE, due_ms=in_an_hour(stage))
    stage.move(2 * in_an_hour(stage))
    assert row_verbs.run_all_now(stage.broker.queue(QUEUE)).counts == {"moved": 1}
    stage.relay().turn()
    assert ready(stage) == ["a"]


def test_more_rows_than_a_statement_takes_are_all_cancelled(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK", 2)
    for number in range(5):
        stage.write(f"a{number}", queue=QUEUE)
    assert row_verbs.cancel_all(stage.broker.queue(QUEUE)).counts == {"cancelled": 5}


def test_work_on_all_jobs_that_takes_too_long_ends_behind_a_chunk_and_goes_on_with_the_next_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHUNK", 2)
    queue = stage.broker.queue(QUEUE)
    for number in range(3):
        stage.write(f"a{number}", queue=QUEUE)
    queue.schedule(NewJob("plain", "work", delay_ms=60_000))
    steps = [row_verbs.cancel_all(queue, seconds=0) for _ in range(3)]
    numbers = [(dict(one.counts), one.examined, one.total, bool(one.cursor)) for one in steps]
    assert numbers == [
        ({"cancelled": 2}, 2, 3, True),
        ({"cancelled": 1}, 1, 2, True),
        ({"cancelled": 1}, 1, 1, False),
    ]


def test_what_was_never_sent_is_cancelled_although_redis_is_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = stage.broker.queue(QUEUE)
    stage.write("unsent", queue=QUEUE)

    def gone(*_: Any, **__: Any) -> Any:
        raise QueueUnavailable("gone")

    monkeypatch.setattr(Queue, "call", gone)
    monkeypatch.setattr("django_delayq.core.bulk.change", gone)
    with pytest.raises(QueueUnavailable):
        row_verbs.cancel_all(queue)
    assert stage.rows() == {"unsent": State.CANCELLED}
