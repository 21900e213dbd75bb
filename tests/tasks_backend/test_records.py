"""Records of results, in Redis and in the memory of the testing kit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.core import Broker, Job, NewJob, QueueUnavailable
from django_delayq.testing import MemoryBroker
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import BEGIN, END, Record, TaskResultStatus, create, end, key_of, results, start

MINUTE = 60_000


@pytest.fixture(params=["redis", "memory"])
def either(request: pytest.FixtureRequest, broker: Broker) -> Broker:
    return broker if request.param == "redis" else MemoryBroker()


def job(token: int) -> Job:
    return Job("q", 0, "i", "t", b"k" * 16, b"", b"", 4, 0, token=token)


def test_a_record_goes_from_ready_over_running_to_its_end(either: Broker) -> None:
    assert results.read(either, "i") is None
    create(either, "i", "head")
    assert results.read(either, "i") == Record(head="head", workers=[], errors=[])
    running = start(either, job(7))
    assert running == results.read(either, "i")
    assert running == Record(head="head", state="RUNNING", token=7, first=BEGIN, last=BEGIN, workers=["w"], errors=[])
    done = end(either, job(7), "SUCCESSFUL", value="42")
    assert done == results.read(either, "i")
    assert done == replace(running, state="SUCCESSFUL", ended=7, end=END, value="42")
    assert done.final and not running.final


def test_what_is_there_is_not_created_again(either: Broker) -> None:
    start(either, job(7), "head")
    create(either, "i", "another")
    found = results.read(either, "i")
    assert found is not None and (found.head, found.state) == ("head", "RUNNING")


def test_the_same_call_twice_changes_nothing(either: Broker) -> None:
    """A client sends again what it got no answer to."""
    first = [start(either, job(7)) for _ in range(2)]
    assert first[0] == first[1]
    again = [end(either, job(7), error='"why"') for _ in range(2)]
    assert again[0] == again[1]
    assert again[0] is not None and (again[0].workers, again[0].errors) == (["w"], ['"why"'])


def test_a_run_that_was_overtaken_changes_nothing(either: Broker) -> None:
    start(either, job(7))
    later = start(either, job(8), at="5")
    assert start(either, job(7)) is end(either, job(7), "SUCCESSFUL", value="1") is None
    assert results.read(either, "i") == later


def test_a_second_start_forgets_the_end_of_the_first(either: Broker) -> None:
    start(either, job(7), "head", at="1")
    end(either, job(7), "SUCCESSFUL", value="1", error='"x"')
    assert start(either, job(8), at="5") == Record(
        head="head", state="RUNNING", token=8, ended=7, first="1", last="5", workers=["w", "w"], errors=['"x"']
    )


def test_an_end_without_a_start_is_a_whole_record(either: Broker) -> None:
    assert end(either, job(7), "FAILED", error='"x"', head="head") == Record(
        head="head", state="FAILED", token=7, ended=7, first=BEGIN, last=BEGIN, end=END, workers=["w"], errors=['"x"']
    )


def test_errors_and_workers_are_bounded(broker: Broker) -> None:
    for token in range(1, 31):
        start(broker, job(token))
        end(broker, job(token), error=str(token))
    found = results.read(broker, "i")
    assert found is not None
    assert found.errors == [str(number) for number in range(11, 31)]
    assert len(found.workers) == 30


def test_every_write_moves_the_end_of_the_records_life(broker: Broker) -> None:
    def left() -> int:
        return int(broker.client.pttl(key_of(broker, "i")))

    create(broker, "i", "head", 10_000)
    assert 0 < left() <= 10_000
    start(broker, job(7))
    assert 10_000 < left() <= MINUTE
    create(broker, "i", "head", 2 * MINUTE)  # which changes nothing else
    assert MINUTE < left() <= 2 * MINUTE


def test_the_script_is_loaded_again_when_the_server_forgot_it(broker: Broker) -> None:
    create(broker, "i", "head")
    broker.client.script_flush()
    assert start(broker, job(7)) is not None


@pytest.mark.django_db(transaction=True)
def test_tasks_work_in_the_testing_kit_of_the_library() -> None:
    testing = pytest.importorskip("django_delayq.testing")
    with testing.fake_queue() as fake:
        first = deeds.meaning_of_life.enqueue()
        later = deeds.fail_value.using(run_after=timedelta(hours=1)).enqueue()
        fake.run_due()
        first.refresh()
        later.refresh()
        assert (first.return_value, later.status) == (42, TaskResultStatus.READY)
        fake.run_due(until=timedelta(hours=2), raise_errors=False)
        later.refresh()
        assert (later.status, later.errors[0].exception_class) == (TaskResultStatus.FAILED, ValueError)


def test_a_worker_whose_redis_is_away_at_the_end_waits_with_the_result(
    delayq: Broker, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = results.write

    def flaky(broker: Broker, ident: str, verb: str, *args: Any, **kwargs: Any) -> Record | None:
        calls.append(verb)
        if verb == "end" and len(calls) < 5:
            raise QueueUnavailable("away")
        return real(broker, ident, verb, *args, **kwargs)

    monkeypatch.setattr(results, "write", flaky)
    result = deeds.meaning_of_life.enqueue()
    work()
    result.refresh()
    assert (calls, result.return_value) == (["create", "start", "end", "end", "end"], 42)


def test_a_result_is_found_although_its_start_could_not_be_stored(
    delayq: Broker, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = results.write

    def away(broker: Broker, ident: str, verb: str, *args: Any, **kwargs: Any) -> Record | None:
        if verb != "end":
            raise QueueUnavailable("away")
        return real(broker, ident, verb, *args, **kwargs)

    monkeypatch.setattr(results, "write", away)
    result = deeds.letter.enqueue("Ann")
    assert deeds.letter.get_result(result.id) == result
    work()
    result.refresh()
    assert (result.status, result.args, result.attempts) == (TaskResultStatus.SUCCESSFUL, ["Ann"], 1)
    assert result.started_at is not None


def test_bytes_that_are_no_arguments_fail_without_a_start(delayq: Broker, work: Callable[..., Any]) -> None:
    result = deeds.noop.enqueue()
    queue = delayq.queue("default")
    view = delayq.inspector.get("default", result.id)
    assert view is not None
    queue.schedule(NewJob(result.id, view.job.task, b"\xff", key=view.job.key, options=view.job.options_json))
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 0, 1)
    assert result.started_at is None and result.finished_at is not None
