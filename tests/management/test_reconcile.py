"""delayq_reconcile, and what delayq_status, delayq_check and delayq_queue say of durable jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db import connection
from django.db.utils import OperationalError, ProgrammingError

from django_delayq.connections import DjangoBroker
from django_delayq.models import MorgueJob
from tests.app.outbox_stage import QUEUE, Stage, State

from .stage import run, told

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


def somewhat_of_everything(stage: Stage) -> None:
    """One lost job, one that has ended, two that were never sent."""
    stage.sent("lost")
    stage.lose_everything()
    stage.sent("ended")
    stage.finish("ended")
    stage.write("never-1")
    stage.write("never-2")


def test_the_outbox_is_brought_into_line_whatever_the_age(stage: Stage) -> None:
    somewhat_of_everything(stage)
    assert told("delayq_reconcile", "--outbox") == {"outbox": {"marks": 1, "kept": 0, "lost": 1, "sent": 3}}
    assert stage.rows() == {"lost": State.SENT, "never-1": State.SENT, "never-2": State.SENT}
    assert sorted(stage.waiting()) == ["lost", "never-1", "never-2"]
    assert run("delayq_reconcile", "--outbox") == "outbox: nothing to do"


def test_a_dry_run_tells_and_changes_nothing(stage: Stage) -> None:
    somewhat_of_everything(stage)
    before = stage.rows()
    for queue in stage.broker.queues():
        for number in queue.numbers:
            queue.tick(number)
    assert told("delayq_reconcile", "--outbox", "--mirror", "--buried", "--dry-run") == {
        "outbox": {"marks": 1, "waiting": 2, "lost": 1},
        "mirror": {"failed": 0, "morgue": 0},
        "buried": {"lost": 0},
    }
    assert (stage.rows(), stage.marked(), stage.waiting()) == (before, ["done"], [])


def test_the_mirror_is_rebuilt(stage: Stage) -> None:
    stage.sent("dead")
    stage.bury("dead")
    stage.sent("far", queue="others")
    stage.bury("far", "others")
    assert told("delayq_reconcile", "--mirror", "--dry-run") == {"mirror": {"failed": 0, "morgue": 2}}
    assert MorgueJob.objects.count() == 0
    assert run("delayq_reconcile", "--mirror", "--queue", QUEUE) == "mirror: 1 morgue"
    assert [row.job_id for row in MorgueJob.objects.all()] == ["dead"]
    assert told("delayq_reconcile", "--mirror") == {"mirror": {"failed": 0, "morgue": 2}}


def graves(stage: Stage) -> None:
    """Three durable jobs in the morgue; two of them are lost with it."""
    for ident in ("a", "b"):
        stage.sent(ident)
        stage.bury(ident)
    stage.take_down()
    stage.lose_everything()
    stage.sent("there")
    stage.bury("there")
    stage.take_down()
    assert set(stage.rows().values()) == {State.BURIED}


def test_what_lost_its_grave_is_made_a_job_again_if_somebody_says_so(stage: Stage) -> None:
    graves(stage)
    with pytest.raises(
        CommandError, match=r"Redis has lost the morgue records of 2 durable jobs, .* repeat the command with --yes"
    ):
        run("delayq_reconcile", "--buried")
    assert stage.count() == 0
    assert told("delayq_reconcile", "--buried", "--id", "b", "--yes") == {
        "buried": {"lost": 1, "unburied": 1, "sent": 1}
    }
    assert stage.waiting() == ["b"]
    assert told("delayq_reconcile", "--buried", "--queue", "others", "--yes") == {"buried": {"lost": 0}}
    assert run("delayq_reconcile", "--buried", "--yes") == "buried: 1 lost, 1 sent, 1 unburied"
    assert stage.rows() == {"a": State.SENT, "b": State.SENT, "there": State.BURIED}


def test_what_was_refused_is_sent_again_if_somebody_says_so(stage: Stage) -> None:
    for ident in ("a", "b", "c"):
        stage.write(ident, state=State.REFUSED)
    stage.table.update(tries=10, error="DataError: too large")
    stage.write("broken", record=b"\xff", state=State.REFUSED)
    newer = stage.sent("c")
    assert told("delayq_reconcile", "--refused", "--dry-run") == {"refused": {"found": 4, "overtaken": 1}}
    with pytest.raises(CommandError, match=r"Send 3 refused durable jobs again\? .* with --yes"):
        run("delayq_reconcile", "--refused")
    assert stage.waiting() == ["c"]
    assert told("delayq_reconcile", "--refused", "--id", "b", "--yes") == {
        "refused": {"found": 1, "overtaken": 0, "again": 1, "sent": 1}
    }
    row = stage.table.get(job_id="b")
    assert (row.state, row.tries, row.error) == (State.SENT, 0, "")
    assert told("delayq_reconcile", "--refused", "--queue", "others") == {"refused": {"found": 0, "overtaken": 0}}
    out = run("delayq_reconcile", "--refused", "--yes").strip()
    assert out == "refused: 2 again, 3 found, 1 overtaken, 1 refused, 1 sent", "what is broken remains so"
    assert sorted(stage.waiting()) == ["a", "b", "c"]
    view = stage.broker.inspector.get(QUEUE, "c")
    assert view is not None
    assert view.job.key == newer.key.bytes


def test_without_a_choice_it_does_what_dispatchers_do(stage: Stage) -> None:
    both = told("delayq_reconcile", "--outbox", "--mirror")
    assert set(both) == {"outbox", "mirror"}
    assert told("delayq_reconcile") == both


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--task", "shop.remind"], "--task is about the rows of a table: name its model with --model"),
        (["--id", "x"], "--id is for --buried and --refused"),
        (["--outbox", "--id", "x"], "--id is for --buried and --refused"),
        (["--queue", "x"], "--queue does not apply to --outbox"),
        (["--outbox", "--queue", "x"], "--queue does not apply to --outbox"),
    ],
)
def test_what_makes_no_sense_is_refused(stage: Stage, arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint) as refused:
        run("delayq_reconcile", *arguments)
    assert refused.value.returncode == 2


# --- status and check


@pytest.mark.parametrize("part", ["--outbox", "--mirror", "--buried", "--refused"])
@pytest.mark.parametrize(
    "trouble",
    [ProgrammingError("no such table: jobs"), OperationalError("it is shut down"), ImproperlyConfigured("none")],
)
def test_trouble_with_the_database_is_a_sentence_and_no_traceback(stage: Stage, part: str, trouble: Exception) -> None:
    def execute(*_: object) -> Any:
        raise trouble

    with connection.execute_wrapper(execute), pytest.raises(CommandError, match=f"(?s){trouble}.*manage.py migrate"):
        run("delayq_reconcile", part)


def test_the_status_tells_of_the_outbox(stage: Stage) -> None:
    nothing = {"waiting": 0, "sent": 0, "buried": 0, "refused": 0, "oldest_waiting_seconds": None}
    assert told("delayq_status")["outbox"] == nothing
    assert "outbox" not in run("delayq_status")
    for state in (State.SENT, State.BURIED, State.REFUSED, State.MOVED, State.UNSENT):
        stage.write(state=state)
    stage.age(90, "created_at")
    found = told("delayq_status")["outbox"]
    assert 90 <= found.pop("oldest_waiting_seconds") < 120
    assert found == {"waiting": 2, "sent": 1, "buried": 1, "refused": 1}
    assert "outbox: 2 waiting (for 1 min 3" in run("delayq_status")
    assert "1 sent, 1 buried, 1 refused" in run("delayq_status")


def test_the_check_complains_of_jobs_that_are_not_sent(stage: Stage) -> None:
    def outbox(*arguments: str) -> list[tuple[str, str]]:
        try:
            text = run("delayq_check", *arguments)
        except CommandError as error:
            pytest.fail(str(error))
        return [(line[:5].strip(), line.partition("outbox: ")[2]) for line in text.splitlines() if "outbox: " in line]

    stage.write()
    assert outbox() == [("OK", "1 durable jobs wait to be sent, 0 are with Redis")]
    stage.age(90, "created_at")
    assert outbox("--max-outbox-age", "300")[0][0] == "OK"
    with pytest.raises(CommandError, match=r"\b1 error\b"):
        run("delayq_check", "--max-outbox-age", "30")
    stage.age(600, "created_at")
    assert outbox()[0][0] == "WARN"
    stage.table.update(state=State.REFUSED)
    assert outbox() == [("WARN", "1 durable jobs were refused: see the outbox in the admin.")]


def test_what_was_sent_long_ago_and_is_moved_now_does_not_count_as_waiting_since_then(stage: Stage) -> None:
    stage.sent("order-5")
    stage.table.update(state=State.MOVED)
    stage.age(3600, "created_at")
    assert told("delayq_status")["outbox"]["oldest_waiting_seconds"] is None


# --- queues that are deleted


def test_a_queue_that_is_deleted_with_its_jobs_takes_their_rows_along(stage: Stage) -> None:
    stage.sent("order-5")
    stage.sent("other", queue="others")
    stage.write("order-6")
    assert told("delayq_queue", "delete", QUEUE, "--force", "--yes") == {"deleted": 1, "outbox rows deleted": 2}
    assert stage.rows() == {"other": State.SENT}


def test_an_empty_queue_that_is_deleted_leaves_the_outbox_alone(stage: Stage) -> None:
    stage.broker.queue(QUEUE)
    row = stage.write("order-6")
    assert told("delayq_queue", "delete", QUEUE, "--yes") == {"deleted": 1}
    assert stage.table.filter(pk=row.pk).exists()
