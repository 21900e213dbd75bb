"""Schedule middlewares: code around every schedule call, in the manner of onions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_delayq import InvalidJob, get_job, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.scheduling.build import Scheduling, chain

from .deeds import keyed, note, rest, sync

HERE = "tests.app.test_intercept"
seen: list[str] = []


class Refused(Exception):
    """No job of this kind now."""


def outer(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    seen.append("outer made")

    def call(scheduling: Scheduling) -> Any:
        seen.append("outer in")
        handle = next(scheduling)
        seen.append(f"outer out {handle.outcome}")
        return handle

    return call


def with_context(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        seen.append(f"inner {scheduling.task.name} {scheduling.args} {scheduling.kwargs}")
        scheduling.options["context"] = {"tenant": 5}
        if scheduling.task is note:
            scheduling.args = (scheduling.args[0].upper(),)
        if scheduling.task is sync:
            scheduling.options["payload"] = {"wrapped": scheduling.options["payload"]}
        return next(scheduling)

    return call


def refusing(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        if scheduling.args == ("no",):
            raise Refused
        return next(scheduling)

    return call


def skipping(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    return lambda scheduling: "not now" if scheduling.args == ("skip",) else next(scheduling)


def elsewhere(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        scheduling.task, scheduling.args = keyed, (7,)
        scheduling.options["queue"] = "elsewhere"
        return next(scheduling)

    return call


def forgetful(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> None:
        next(scheduling)

    return call


def misspelling(next: Callable[[Scheduling], Any]) -> Callable[[Scheduling], Any]:
    def call(scheduling: Scheduling) -> Any:
        scheduling.options["dealy"] = 5
        return next(scheduling)

    return call


def no_middleware(next: Callable[[Scheduling], Any]) -> int:
    return 5


@pytest.fixture
def use(delayq: Broker, settings: Any) -> Callable[..., None]:
    """``use("outer", …)`` sets the middlewares."""
    seen.clear()

    def choose(*names: str) -> None:
        settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.{name}" for name in names]}

    return choose


def test_the_first_is_the_outermost_and_each_is_made_once(use: Callable[..., None], delayq: Broker) -> None:
    use("outer", "with_context")
    handle = schedule(note, "x", times=2, id="a")
    note.using(delay=60).schedule("y")
    assert seen == [
        "outer made",
        "outer in",
        "inner deeds.note ('x',) {'times': 2}",
        "outer out created",
        "outer in",
        "inner deeds.note ('y',) {}",
        "outer out created",
    ]
    view = get_job(handle)
    assert view is not None
    assert (decode_args(view.job.args), view.job.options) == ((["X"], {"times": 2}), {"context": {"tenant": 5}})


def test_payload_and_score_of_a_merged_task_are_options(use: Callable[..., None]) -> None:
    use("with_context")
    assert schedule(sync, id=1, payload="p", score=5).outcome == "created"
    view = get_job(sync, 1)
    assert view is not None
    assert (seen, view.job.options) == (["inner deeds.sync () {}"], {"context": {"tenant": 5}})
    assert schedule_many(sync, [{"id": 2, "payload": 1}]) == {"created": 1}


def test_one_that_raises_refuses_the_job(use: Callable[..., None], delayq: Broker) -> None:
    use("outer", "refusing")
    with pytest.raises(Refused):
        schedule(note, "no")
    assert (seen, delayq.queue_names()) == (["outer made", "outer in"], [])
    with pytest.raises(Refused):
        schedule_many(note, [{"args": ["yes"]}, {"args": ["no"]}])
    assert schedule(note, "yes").outcome == "created"


def test_each_entry_of_many_goes_through_and_may_be_left_out(use: Callable[..., None], delayq: Broker) -> None:
    use("outer", "skipping", "with_context")
    entries = [{"args": ["a"]}, {"args": ["skip"]}, {"args": ["b"], "kwargs": {"times": 3}, "priority": 1}]
    with pytest.raises(AttributeError):  # the outer one reads the outcome of what the skipping one answered
        schedule_many(note, entries)
    use("skipping", "outer", "with_context")
    seen.clear()
    assert schedule_many(note, entries, delay=60) == {"created": 2, "skipped": 1}
    assert seen[1:4] == ["outer in", "inner deeds.note ('a',) {}", "outer out collected"]
    views = delayq.inspector.page("default", "waiting").jobs
    assert sorted((view.job.priority, str(decode_args(view.job.args)), str(view.job.options)) for view in views) == [
        (1, "(['B'], {'times': 3})", "{'context': {'tenant': 5}}"),
        (4, "(['A'], {})", "{'context': {'tenant': 5}}"),
    ]


def test_a_job_may_be_sent_elsewhere_but_not_out_of_many(use: Callable[..., None]) -> None:
    use("elsewhere")
    handle = schedule(note, "x")
    view = get_job(handle)
    assert view is not None
    assert (handle.queue, view.job.task, decode_args(view.job.args)) == ("elsewhere", "deeds.keyed", ([7], {}))
    with pytest.raises(InvalidJob, match="entry 0: in schedule_many a schedule middleware may change"):
        schedule_many(note, [{"args": ["x"]}])


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_they_run_at_the_call(use: Callable[..., None], delayq: Broker) -> None:
    use("outer")
    with transaction.atomic():
        handle = schedule(rest)
        assert seen == ["outer made", "outer in", "outer out on_commit"]
    assert (handle.outcome, len(seen)) == ("created", 3)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("forgetful", Misconfigured, "returned None instead of a handle; return what"),
        ("misspelling", TypeError, "unknown schedule option 'dealy'. Did you mean 'delay'"),
        ("no_middleware", Misconfigured, "must return a function of one scheduling, not 5"),
        ("absent", Misconfigured, "absent cannot be imported"),
        ("HERE", Misconfigured, "HERE is not callable"),
    ],
)
def test_a_wrong_middleware_says_what_it_did(
    use: Callable[..., None], name: str, error: type[Exception], text: str
) -> None:
    use(name)
    with pytest.raises(error, match=text):
        schedule(note, "x")


def test_without_middlewares_there_is_no_chain(delayq: Broker) -> None:
    assert chain() is None
