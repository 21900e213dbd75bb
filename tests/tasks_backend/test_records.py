"""Records of results, in Redis and in the memory of the testing kit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.backends import listening
from django_delayq.backends.compat import TaskResultStatus
from django_delayq.backends.result_records import LostErrors, ResultRecord, Results
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job, NewJob
from django_delayq.signals import job_cancelled
from django_delayq.testing import MemoryBroker
from tests.tasks_backend import deeds

LOST = LostErrors(crashed=b'"crashed"', overran=b'"overran"')
MINUTE = 60_000


@pytest.fixture(params=["redis", "memory"])
def results(request: pytest.FixtureRequest, broker: Broker) -> Results:
    return Results(broker) if request.param == "redis" else Results(MemoryBroker())


def job(token: int, *, failures: int = 0, crashes: int = 0) -> Job:
    return Job("q", 0, "i", "t", b"k" * 16, b"", b"", 4, 0, token=token, failures=failures, crashes=crashes)


def start(results: Results, held: Job, at: str = "1") -> ResultRecord | None:
    return results.start("i", held, "w", MINUTE, head=b"head", at=at, lost=LOST)


def end(results: Results, held: Job, state: str = "READY", **more: Any) -> ResultRecord | None:
    return results.end("i", held, "w", MINUTE, state=state, **{"head": b"", "began": "1", "at": "2", **more})


def test_a_record_goes_from_ready_over_running_to_its_end(results: Results) -> None:
    assert results.read("i") is None
    results.create("i", b"head", MINUTE)
    assert results.read("i") == ResultRecord(head=b"head")
    running = start(results, job(7))
    assert running == results.read("i")
    assert running == ResultRecord(head=b"head", state="RUNNING", token=7, first="1", last="1", workers=("w",))
    done = end(results, job(7), "SUCCESSFUL", value=b"42")
    assert (
        done
        == results.read("i")
        == ResultRecord(
            head=b"head", state="SUCCESSFUL", token=7, first="1", last="1", end="2", value=b"42", workers=("w",)
        )
    )
    assert done.final and not running.final


def test_what_is_there_is_not_created_again(results: Results) -> None:
    start(results, job(7))
    results.create("i", b"another", MINUTE)
    found = results.read("i")
    assert found is not None and (found.head, found.state) == (b"head", "RUNNING")


def test_the_same_call_twice_changes_nothing(results: Results) -> None:
    """A client sends again what it got no answer to."""
    first = [start(results, job(7)) for _ in range(2)]
    assert first[0] == first[1]
    again = [end(results, job(7), error=b'"why"') for _ in range(2)]
    assert again[0] == again[1]
    assert again[0] is not None and (again[0].workers, again[0].errors) == (("w",), (b'"why"',))
    results.close("i", MINUTE, at="3", error=b'"gone"')
    results.close("i", MINUTE, at="3", error=b'"gone"')
    found = results.read("i")
    assert found is not None and (found.state, found.errors) == ("FAILED", (b'"why"', b'"gone"'))


def test_a_run_that_was_overtaken_changes_nothing(results: Results) -> None:
    start(results, job(7))
    later = start(results, job(8), at="5")
    assert start(results, job(7)) is end(results, job(7), "SUCCESSFUL", value=b"1") is None
    assert results.read("i") == later


def test_a_second_start_forgets_the_end_of_the_first(results: Results) -> None:
    start(results, job(7))
    end(results, job(7), "SUCCESSFUL", value=b"1", error=b'"x"')
    found = start(results, job(8), at="5")
    assert found == ResultRecord(
        head=b"head", state="RUNNING", token=8, first="1", last="5", workers=("w", "w"), errors=(b'"x"',)
    )


@pytest.mark.parametrize(
    ("second", "errors"),
    [
        (job(8, failures=1, crashes=1), (b'"crashed"',)),
        (job(8, failures=1), (b'"overran"',)),
        (job(8), ()),  # given back uncounted
    ],
)
def test_a_run_that_left_nothing_is_noted_if_it_was_counted(
    results: Results, second: Job, errors: tuple[bytes, ...]
) -> None:
    start(results, job(7))
    found = start(results, second)
    assert found is not None and found.errors == errors


def test_an_end_without_a_start_is_a_whole_record(results: Results) -> None:
    found = end(results, job(7), "FAILED", head=b"head", error=b'"x"')
    assert found == ResultRecord(
        head=b"head", state="FAILED", token=7, first="1", last="1", end="2", workers=("w",), errors=(b'"x"',)
    )
    assert end(results, job(7)).head == b"head"  # type: ignore[union-attr]


def test_nothing_is_closed_that_is_not_there(results: Results) -> None:
    results.close("i", MINUTE, at="3", error=b'"gone"')
    assert results.read("i") is None


def test_errors_and_workers_are_bounded(broker: Broker) -> None:
    results = Results(broker)
    for token in range(1, 31):
        start(results, job(token))
        end(results, job(token), error=b"%d" % token)
    found = results.read("i")
    assert found is not None
    assert found.errors == tuple(b"%d" % number for number in range(11, 31))
    assert len(found.workers) == 30


def test_every_write_moves_the_end_of_the_records_life(broker: Broker) -> None:
    results = Results(broker)

    def left() -> int:
        return int(broker.client.pttl(results.key("i")))

    results.create("i", b"head", 10_000)
    assert 0 < left() <= 10_000
    start(results, job(7))
    assert 10_000 < left() <= MINUTE
    results.create("i", b"head", 2 * MINUTE)  # which changes nothing else
    assert MINUTE < left() <= 2 * MINUTE


def test_the_script_is_loaded_again_when_the_server_forgot_it(broker: Broker) -> None:
    results = Results(broker)
    results.create("i", b"head", MINUTE)
    broker.client.script_flush()
    assert start(results, job(7)) is not None


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
    from django_delayq.core.errors import QueueUnavailable

    calls: list[str] = []
    real = Results.end

    def flaky(self: Results, *args: Any, **kwargs: Any) -> ResultRecord | None:
        calls.append(kwargs["state"])
        if len(calls) < 3:
            raise QueueUnavailable("away")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Results, "end", flaky)
    result = deeds.meaning_of_life.enqueue()
    work()
    result.refresh()
    assert (calls, result.return_value) == (["SUCCESSFUL"] * 3, 42)


def test_a_result_is_found_although_its_start_could_not_be_stored(
    delayq: Broker, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_delayq.core.errors import QueueUnavailable

    def away(self: Results, *args: Any, **kwargs: Any) -> None:
        raise QueueUnavailable("away")

    monkeypatch.setattr(Results, "start", away)
    monkeypatch.setattr(Results, "create", away)
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


def test_a_process_listens_to_cancelled_jobs_once_and_stops_when_told() -> None:
    listening.disconnect()
    before = len(job_cancelled.receivers)
    for _ in range(2):
        listening.connect()
        assert len(job_cancelled.receivers) == before + 1
    listening.disconnect()
    assert len(job_cancelled.receivers) == before
