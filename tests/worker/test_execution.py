"""One run, without a queue: whatever the handler does ends as a settlement."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, Bury, Job, JobTimeout, LeakedTransaction, Payload, Release, Retry
from tests.support.attempt_stage import Attempt, encode, encode_args, execute, make_attempt, make_job, perform
from tests.support.worker_stage import Hooks, places, put, registry_of, run_dry


def test_arguments_arrive() -> None:
    seen: list[object] = []
    job = make_job(args=encode_args((1, "two"), {"three": [3]}))
    execute(lambda one, two, three=None: seen.append((one, two, three)), job=job)
    assert seen == [(1, "two", [3])]


def test_a_merged_job_gets_its_payloads_in_order_by_id() -> None:
    seen: list[object] = []
    payloads = tuple(Payload(encode({"n": n}), str(n), b"k" * 16) for n in (1, 2))
    execute(seen.append, job=make_job(id="customer-7", merged=True, payloads=payloads))
    assert seen == [{"customer-7": [{"n": 1}, {"n": 2}]}]


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        JobTimeout(),
        RecursionError(),
        MemoryError(),
        BaseExceptionGroup("many", [SystemExit(2)]),
    ],
)
def test_no_exception_leaves_the_job_boundary(error: BaseException) -> None:
    attempt = execute(raising(error))
    assert attempt.settlement and attempt.settlement.verb == "fail" and attempt.settlement.error


@pytest.mark.parametrize(
    ("error", "verb"), [(Retry(delay=1), "fail"), (Bury("no"), "bury"), (Release(delay=1), "release")]
)
def test_a_handler_decides_by_verdict(error: Exception, verb: str) -> None:
    attempt = execute(raising(error))
    assert attempt.settlement and attempt.settlement.verb == verb


def test_an_unknown_task_is_given_back() -> None:
    attempt = execute(lambda: None, job=make_job(task="shop.later"))
    assert attempt.settlement and attempt.settlement.verb == "release"
    assert 1_000 <= (attempt.settlement.delay_ms or 0) <= 2_000


def test_a_run_whose_lease_is_over_does_not_start() -> None:
    started: list[int] = []

    def work() -> None:
        started.append(1)

    attempt = make_attempt(deadline=0.0)
    perform(attempt, registry_of(work))
    assert not started and attempt.settlement and attempt.settlement.verb == "release"


def test_async_handlers_run_on_the_event_loop() -> None:
    where: list[str] = []

    async def handler(n: int) -> int:
        await asyncio.sleep(0)
        where.append(threading.current_thread().name)
        job = current_job()
        assert job is not None and job.id == "job-1"
        return n

    attempt = execute(handler, 3)
    assert attempt.settlement and attempt.settlement.verb == "ack" and where == ["delayq-async"]


@pytest.mark.parametrize(
    "error", [ValueError(), SystemExit(), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
def test_async_handlers_may_raise_anything_too(error: BaseException) -> None:
    async def handler() -> None:
        raise error

    assert execute(handler).settlement.verb == "fail"  # type: ignore[union-attr]


def test_the_current_job_is_there_during_the_run_only() -> None:
    seen: list[Any] = []

    def handler() -> None:
        job = current_job()
        assert job is not None
        seen.append((job.id, job.queue, job.task, job.attempt, job.noe, job.lives, job.retry_count, job.key, job.token))
        seen.append((dict(job.context), job.due.timestamp(), job.should_stop, len(job.jobs)))

    job = make_job(failures=2, reserves=4, options_json=b'{"context":{"trace":"t"}}')
    execute(handler, job=job, max_attempts=5)
    assert seen == [
        ("job-1", "default", "work", 3, 3, 3, 1, job.key.hex(), 7),
        ({"trace": "t"}, 1_700_000_000.0, False, 1),
    ]
    assert current_job() is None


LEFT: contextvars.ContextVar[str] = contextvars.ContextVar("left", default="clean")


def test_context_variables_of_one_job_are_not_seen_by_the_next() -> None:
    seen: list[str] = []

    def handler() -> None:
        seen.append(LEFT.get())
        LEFT.set("dirty")

    execute(handler)
    execute(handler)
    assert seen == ["clean", "clean"]


def test_hooks_surround_the_handler_and_see_its_job() -> None:
    order: list[str] = []
    hooks = Hooks(
        before_job=lambda job: order.append(f"before {job.id}"), after_job=lambda job: order.append(f"after {job.id}")
    )
    execute(lambda: order.append("handler"), hooks=hooks)
    execute(raising(ValueError()), hooks=hooks)
    assert order == ["before job-1", "handler", "after job-1", "before job-1", "after job-1"]


def fail_with(error: BaseException) -> Callable[[Job], None]:
    def hook(job: Job) -> None:
        raise error

    return hook


def test_a_leak_found_after_the_handler_is_a_failure() -> None:
    attempt = execute(lambda: None, hooks=Hooks(after_job=fail_with(LeakedTransaction("atomic is open"))))
    assert attempt.settlement and attempt.settlement.verb == "fail"
    assert json.loads(attempt.settlement.error)["class"].endswith("LeakedTransaction")


def test_the_handlers_own_error_counts_more_than_the_hooks() -> None:
    attempt = execute(raising(KeyError("mine")), hooks=Hooks(after_job=fail_with(RuntimeError("hook"))))
    assert attempt.settlement and attempt.settlement.error_class == "KeyError"


@pytest.mark.parametrize("error", [RuntimeError("no database"), SystemExit()])
def test_what_fails_before_the_handler_costs_no_attempt(error: BaseException) -> None:
    called: list[int] = []
    attempt = execute(lambda: called.append(1), hooks=Hooks(before_job=fail_with(error)))
    assert (
        not called
        and attempt.settlement
        and (attempt.settlement.verb, attempt.settlement.delay_ms) == ("release", 1000)
    )


def test_middlewares_surround_the_handler_in_their_order() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        def middleware(following: Any) -> Any:
            def call(attempt: Attempt) -> Any:
                order.append(f"{name} in {attempt.job.task}")
                try:
                    return following(attempt)
                finally:
                    order.append(f"{name} out")

            return call

        return middleware

    execute(lambda: order.append("handler"), middlewares=[named("a"), named("b")])
    assert order == ["a in work", "b in work", "handler", "b out", "a out"]


def test_a_middleware_that_raises_is_a_failed_attempt() -> None:
    def middleware(following: Any) -> Any:
        return fail_with(OSError("disk"))

    attempt = execute(lambda: None, middlewares=[middleware])
    assert attempt.settlement and (attempt.settlement.verb, attempt.settlement.error_class) == ("fail", "OSError")


def test_events_are_prepared_only_for_listeners_and_may_fail() -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def notify(event: str, **details: Any) -> None:
        told.append((event, details))
        raise RuntimeError("listener")

    deaf = Hooks(notify=notify)
    execute(lambda: None, hooks=deaf)
    assert told == []
    hooks = Hooks(notify=notify, wants=lambda event, task: True)
    assert execute(lambda: None, hooks=hooks).settlement.verb == "ack"  # type: ignore[union-attr]
    execute(raising(ValueError()), hooks=hooks, retry_in=lambda n: 5.0)
    execute(raising(Bury("no")), hooks=hooks)
    assert [event for event, _ in told] == [
        "job_started",
        "job_succeeded",
        "job_started",
        "job_failed",
        "job_started",
        "job_buried",
    ]
    assert 0 <= told[1][1]["seconds"] < 20 and told[1][1]["task"].name == "work"
    assert (told[3][1]["outcome"], told[3][1]["retry_in"]) == ("failed", 5.0)
    assert (told[5][1]["reason"], str(told[5][1]["error"])) == ("no", "no")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_copy_of_a_handler_settles_nothing() -> None:
    children: list[int] = []

    def handler() -> None:
        pid = os.fork()
        if pid:
            children.append(pid)

    attempt = execute(handler)
    assert attempt.settlement and attempt.settlement.verb == "ack"
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0


# --- errors inside the decision about an end


class Incomparable(type):
    """Class of exceptions that cannot be compared with others."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = type.__hash__


class Odd(Exception, metaclass=Incomparable):
    pass


@pytest.mark.parametrize(("failures", "verb"), [(0, "fail"), (1, "bury")])
def test_an_attempt_whose_end_cannot_be_decided_counts_as_a_failure(failures: int, verb: str) -> None:
    def work() -> None:
        raise Odd("no answer")

    run = execute(work, job=make_job(failures=failures), max_attempts=2, give_up_on=(KeyError,))
    assert run.settlement and run.settlement.verb == verb
    assert (run.settlement.delay_ms or 0) >= 15_000 or verb == "bury", "after the default back-off"
    assert json.loads(run.settlement.error)["message"] == "no answer", "the handler's error, not that of the decision"


# --- what a handler returns, and the past of its job


@pytest.mark.parametrize("value", [False, None, 0, ""])
def test_every_return_is_a_success_unless_the_task_says_otherwise(broker: Broker, value: object) -> None:
    put(broker, "work", id="x")
    run_dry(broker, registry_of(work := _returning(value)))
    assert places(broker) == {} and work.ran == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_false_is_a_retry_where_the_task_wants_it(broker: Broker, is_async: bool) -> None:
    """delayedQueue: a handler that returns false is tried again."""
    answers = [False, False, True, 0]

    def work() -> Any:
        return answers.pop(0)

    async def later() -> Any:
        return answers.pop(0)

    later.__name__ = "work"
    put(broker, "work", id="x")
    run_dry(broker, registry_of(later if is_async else work, retry_on_false=True, retry_in=0))
    assert answers == [0] and places(broker) == {}


def test_a_handler_knows_how_often_it_was_released_and_when_it_was_scheduled(broker: Broker) -> None:
    seen: list[tuple[int, int, float]] = []

    def work() -> None:
        job = current_job()
        assert job is not None and job.created is not None
        seen.append((job.attempt, job.releases, job.created.timestamp()))
        if len(seen) == 1:
            raise Release(delay=0)
        if len(seen) == 2:
            raise ValueError

    before = time.time()
    put(broker, "work", id="x")
    run_dry(broker, registry_of(work, retry_in=0))
    assert [(attempt, releases) for attempt, releases, _ in seen] == [(1, 0), (1, 1), (2, 1)]
    assert len({created for *_, created in seen}) == 1 and before - 0.01 <= seen[0][2] <= time.time()


def _returning(value: object) -> Any:
    def work() -> object:
        work.ran = getattr(work, "ran", 0) + 1  # type: ignore[attr-defined]
        return value

    return work
