"""The public functions against a real Redis: the stored job and the return value."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from django_delayq import (
    IdTaken,
    InvalidJob,
    QueueFull,
    QueuePaused,
    QueueUnavailable,
    cancel,
    get_job,
    reschedule,
    run_now,
    schedule,
    schedule_many,
)
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode_args
from django_delayq.core.job_view import JobView

from ..support.moments import in_days
from .deeds import clash, keyed, note, rest


def waiting(broker: Broker, queue: str = "default") -> list[JobView]:
    return broker.inspector.page(queue, "waiting").jobs if queue in broker.queue_names() else []


def arguments(view: JobView) -> tuple[list[Any], dict[str, Any]]:
    return decode_args(view.job.args)


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test here has a Redis of its own."""


def test_a_job_waits_with_its_arguments_until_its_delay_is_over(delayq: Broker) -> None:
    before = delayq.now_ms()
    handle = schedule(note, "hello", times=2, delay=timedelta(minutes=30))
    (view,) = waiting(delayq)
    assert (handle.outcome, handle.queue, handle.state()) == ("created", "default", "delayed")
    assert (view.id, view.job.task, arguments(view)) == (handle.id, "deeds.note", (["hello"], {"times": 2}))
    assert before + 1_800_000 <= view.due_ms + 1 <= delayq.now_ms() + 1_800_001
    assert abs(handle.due - timezone.now() - timedelta(minutes=30)) < timedelta(seconds=5)


def test_the_cards_form_needs_no_arguments(delayq: Broker) -> None:
    handle = schedule(rest, delay=timedelta(minutes=30))
    (view,) = waiting(delayq, "naps")
    assert (handle.queue, view.job.args, view.job.priority) == ("naps", b"", 6)


def test_without_delay_a_job_is_ready_at_once() -> None:
    assert schedule(note, "now").state() == "ready"


def test_a_due_time_is_kept_to_the_millisecond(delayq: Broker) -> None:
    at = in_days(30).replace(microsecond=678_000)
    handle = schedule(note, "x", at=at)
    assert handle.due == at
    assert waiting(delayq)[0].due_ms == at.timestamp() * 1000


def test_rich_values_come_back_as_they_were(delayq: Broker) -> None:
    values = [datetime(2030, 1, 1, tzinfo=UTC), Decimal("1.10"), uuid.UUID(int=5), timedelta(seconds=3), b"\0\xff"]
    schedule(note, values)  # type: ignore[arg-type]
    assert arguments(waiting(delayq)[0]) == ([values], {})


def test_the_task_method_and_using_give_all_arguments_to_the_function(delayq: Broker) -> None:
    clash.using(delay=60, id="c").schedule(id=5, delay=7)
    note.schedule("plain")
    views = {view.job.task: view for view in waiting(delayq)}
    assert views["deeds.clash"].id == "c"
    assert arguments(views["deeds.clash"]) == ([], {"id": 5, "delay": 7})
    assert arguments(views["deeds.note"]) == (["plain"], {})


def test_args_and_kwargs_carry_clashing_names(delayq: Broker) -> None:
    schedule(clash, kwargs={"id": 5, "delay": 7}, id="mine")
    (view,) = waiting(delayq)
    assert (view.id, arguments(view)) == ("mine", ([], {"id": 5, "delay": 7}))
    with pytest.raises(TypeError, match="not both"):
        schedule(clash, 5, args=[7])


def test_a_task_can_be_named(delayq: Broker) -> None:
    assert schedule("deeds.note", "by name").outcome == "created"
    with pytest.raises(InvalidJob, match=r"no task is named 'deeds.nope'.*'deeds.note'"):
        schedule("deeds.nope")


def test_a_plain_function_is_no_task() -> None:
    def lonely() -> None: ...

    with pytest.raises(InvalidJob, match=r"lonely is not a task; put @task"):
        schedule(lonely)  # type: ignore[arg-type]


def test_an_id_is_replaced_ignored_or_refused_as_asked(delayq: Broker) -> None:
    assert schedule(note, "1", id=5, delay=60).outcome == "created"
    assert schedule(note, "2", id="5", delay=60).outcome == "replaced"
    assert schedule(note, "3", id=5, on_conflict="ignore").outcome == "ignored"
    with pytest.raises(IdTaken, match="already lives"):
        schedule(note, "4", id=5, on_conflict="error")
    (view,) = waiting(delayq)
    assert arguments(view) == (["2"], {})
    with pytest.raises(IdTaken, match="another task"):
        schedule(keyed, 1, id=5)


def test_the_tasks_own_policy_is_the_default() -> None:
    schedule(keyed, 1, id="k", delay=60)
    assert schedule(keyed, 2, id="k").outcome == "ignored"
    assert schedule(keyed, 2, id="k", on_conflict="replace").outcome == "replaced"


def test_overrides_travel_with_the_job(delayq: Broker) -> None:
    schedule(note, "x", priority=1, max_attempts=2, context={"trace": "t1"})
    (view,) = waiting(delayq)
    assert (view.job.priority, view.job.options) == (1, {"max_attempts": 2, "context": {"trace": "t1"}})


def test_a_job_for_a_queue_that_no_worker_serves_is_refused(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    with pytest.raises(InvalidJob, match="of kind pull, so no worker would run the job"):
        schedule(note, "x", queue="feed")


def test_a_waiting_job_is_cancelled_once() -> None:
    handle = schedule(note, "x", delay=60)
    assert handle.cancel() == "cancelled"
    assert handle.cancel() is False
    assert handle.state() is None


def test_a_job_is_found_by_handle_by_task_and_id_and_by_queue_and_id() -> None:
    for find in (
        lambda: cancel(rest, id="r"),
        lambda: cancel(rest, "r"),
        lambda: cancel("r", task=rest),
        lambda: cancel("r", queue="naps"),
        lambda: cancel(id="r", queue="naps"),
        lambda: cancel("deeds.rest", id="r"),
    ):
        schedule(rest, id="r", delay=60)
        assert find() == "cancelled"
    with pytest.raises(InvalidJob, match="which job"):
        cancel(rest)
    with pytest.raises(InvalidJob, match="which job"):
        cancel()


def test_cancelling_with_the_wrong_task_is_refused() -> None:
    schedule(note, "x", id="shared", delay=60)
    with pytest.raises(IdTaken):
        cancel(keyed, id="shared")
    assert get_job("shared", queue="default") is not None


def test_asking_for_a_job_makes_no_queue(delayq: Broker) -> None:
    assert cancel("x", queue="nowhere") is False
    assert reschedule("x", queue="nowhere", delay=1) is False
    assert run_now("x", queue="nowhere") is False
    assert get_job("x", queue="nowhere") is None
    assert delayq.queue_names() == []


def test_a_waiting_job_is_moved(delayq: Broker) -> None:
    handle = schedule(note, "x", delay=60)
    assert handle.reschedule(delay=3600) is True
    assert waiting(delayq)[0].due_ms > delayq.now_ms() + 3_500_000
    assert handle.run_now() is True
    assert handle.state() == "ready"
    assert reschedule("missing", queue="default", delay=1) is False
    with pytest.raises(InvalidJob, match="needs delay= or at="):
        handle.reschedule()


def test_many_jobs_of_any_iterable_are_counted_by_outcome(delayq: Broker) -> None:
    schedule(note, "old", id="7", delay=60)
    entries = ({"args": [str(n)], "id": n, "delay": n} for n in range(1000))
    assert schedule_many(note, entries) == {"created": 999, "replaced": 1}
    assert schedule_many(note, [{"args": ["x"], "id": 7}], on_conflict="error") == {"exists": 1}
    assert schedule_many(rest, [{}, {"kwargs": {}}], delay=60) == {"created": 2}
    counts = delayq.inspector.counts("default")
    assert counts.delayed + counts.ready == 1000


def test_a_paused_queue_and_a_full_one_say_so_and_take_nothing(delayq: Broker) -> None:
    schedule(note, "first", id="a", delay=60)
    queue = delayq.queue("default")
    (number,) = queue.numbers
    queue.rule(number, {"max_length": 2})
    with pytest.raises(QueueFull, match="max_length") as full:
        for text in ("second", "third"):
            schedule(note, text, delay=60)
    assert not isinstance(full.value, QueueUnavailable)
    assert schedule_many(note, [{"args": ["x"]}, {"args": ["y"], "id": "a"}]) == {"full": 1, "replaced": 1}
    queue.rule(number, {"paused_in": 0})
    with pytest.raises(QueuePaused, match="resume it"):
        schedule(note, "fourth", delay=60)
    assert schedule_many(note, [{"args": ["x"]}, {"args": ["y"], "id": "a"}]) == {"paused": 2}
    queue.rule(number, {})
    assert schedule(note, "fifth", delay=60).outcome == "created"
    assert len(waiting(delayq)) == 3


def test_entries_win_over_common_options(delayq: Broker) -> None:
    schedule_many(rest, [{"priority": 1}, {}], priority=3)
    assert sorted(view.job.priority for view in waiting(delayq, "naps")) == [1, 3]


GOOD = {"args": ["x"]}


@pytest.mark.parametrize(
    ("entry", "error", "text"),
    [
        ({"arg": ["x"]}, InvalidJob, r"entry 1: unknown job option 'arg'. Did you mean 'args'"),
        (
            {"order": 5},
            InvalidJob,
            r"entry 1: unknown job option 'order'. Known job options: args, at, context, ",
        ),
        ({"args": "x"}, TypeError, r"entry 1: args must be a list or tuple"),
        ({"args": [1, 2]}, TypeError, r"entry 1: task deeds.note: too many positional"),
        ({"args": ["x"], "delay": "soon"}, InvalidJob, r"entry 1: "),
        ({"args": [{1, 2}]}, InvalidJob, r"entry 1: task deeds.note: .*set"),
        (["x"], InvalidJob, r"entry 1: expected a dict"),
    ],
)
def test_a_wrong_entry_names_its_place_and_its_chunk_is_not_stored(
    delayq: Broker, entry: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        schedule_many(note, [GOOD, entry])
    assert waiting(delayq) == []


NAIVE = datetime(2030, 1, 1)


class DjangoTask:
    """Task object as ``@task`` of Django's own framework creates it."""

    def enqueue(self, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: schedule(note, "x", at=NAIVE), InvalidJob, "no time zone"),
        (lambda: schedule(note, "x", at=9_999_999_999_999), InvalidJob, "ms|millisecond"),
        (lambda: schedule(note, "x", delay=float("nan")), InvalidJob, "delay is nan"),
        (lambda: schedule(note, "x", delay=float("-inf")), InvalidJob, "delay is -inf"),
        (lambda: schedule(note, "x", delay=True), InvalidJob, "not bool"),
        (lambda: schedule(note, "x", delay=1, at=datetime(2030, 1, 1, tzinfo=UTC)), InvalidJob, "both|delay"),
        (lambda: schedule(note, {1, 2}), InvalidJob, "deeds.note: .*set"),
        (lambda: schedule(note, object()), InvalidJob, "object"),
        (lambda: schedule(note, "x" * 2_000_000), InvalidJob, "1048576|1 MiB|bytes"),
        (lambda: schedule(note, "x", id="i" * 10_000), InvalidJob, "1 to 255 bytes"),
        (lambda: schedule(note, "x", id="ä" * 128), InvalidJob, "1 to 255 bytes of UTF-8, got 256"),
        (lambda: schedule(note, "x", id=""), InvalidJob, "1 to 255 bytes"),
        (lambda: schedule(note, "x", id="a\nb"), InvalidJob, "control characters"),
        (lambda: schedule(note, "x", id="a\u2028b"), InvalidJob, "control characters"),
        (lambda: schedule(note, "x", id="a\u202eb"), InvalidJob, "control characters"),
        (lambda: schedule(note, "x", id="\ud800"), InvalidJob, "Unicode"),
        (lambda: schedule(note, "x", id=1.5), InvalidJob, "str or an int"),
        (lambda: schedule(note, "x", id=True), InvalidJob, "str or an int"),
        (lambda: schedule(note, "x", id=10**5000), InvalidJob, "an int of"),
        (lambda: schedule(note, "x", queue="{orders}"), InvalidJob, "letters, digits"),
        (lambda: schedule(note, "x", queue="orders\n"), InvalidJob, "letters, digits"),
        (lambda: schedule(note, "x", priority=8), InvalidJob, "priority must be 0 to 7"),
        (lambda: schedule(note, "x", on_conflict="replce"), InvalidJob, "Did you mean 'replace'"),
        (lambda: schedule(note, "x", on_conflict="merge"), InvalidJob, "merged tasks"),
        (lambda: schedule(note, "x", due_policy="late"), InvalidJob, "due_policy"),
        (lambda: schedule(note, "x", max_attempts=0), InvalidJob, "max_attempts"),
        (lambda: schedule(note, "x", context=[1]), InvalidJob, "context must be a dict"),
        (lambda: schedule(note, "x", context={1: 2}), InvalidJob, "a name in context is a text, not 1"),
        (lambda: schedule(note, "x", delay=timedelta(days=40_000)), InvalidJob, "more than ten years.*ALLOW_FAR"),
        (lambda: schedule_many(note, 5), TypeError, "a list of dicts, one for each job, not 5"),
        (lambda: schedule_many(note, {"args": ["x"]}), TypeError, "a list of dicts, one for each job, not {"),
        (lambda: schedule(DjangoTask(), "x"), InvalidJob, r"DjangoTask.* Django's framework.*enqueue\(…\)"),
        (
            lambda: schedule(note, "x", context={"big": "x" * 70_000}),
            InvalidJob,
            "context and the other options of the job take 70",
        ),
        (lambda: schedule(note, "x", reset_retries=1), InvalidJob, "reset_retries"),
        (lambda: schedule(note, "x", using_db="nowhere"), InvalidJob, "using_db='nowhere'"),
        (lambda: schedule(note, "x", using_db=5), InvalidJob, "using_db=5 is no alias in DATABASES. .*default"),
        (lambda: schedule(note, "x", durable="yes"), InvalidJob, "durable must be True or False, got 'yes'"),
        (lambda: schedule(note, payload={}), InvalidJob, r"'payload' is for merged tasks.*kwargs=\{'payload'"),
        (lambda: schedule(note, "x", score=5), InvalidJob, "'score' is for merged tasks"),
        (lambda: schedule(note, "x", due_policy="inherit"), InvalidJob, "merged tasks"),
        (lambda: schedule(note), TypeError, "missing a required argument: 'text'"),
        (lambda: schedule(note, "x", delya=5), TypeError, "Did you mean 'delay'"),
        (lambda: note.using(dely=5), TypeError, "unknown schedule option 'dely'. Did you mean 'delay'"),
        (lambda: schedule_many(note, [GOOD], id=5), InvalidJob, "an id belongs to one job"),
        (lambda: schedule_many(note, [GOOD], prio=5), TypeError, "unknown schedule option"),
        (lambda: schedule(5), InvalidJob, "expected a task"),
    ],
)
def test_bad_input_is_refused_at_the_call_and_nothing_is_stored(
    delayq: Broker, call: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert len(str(caught.value)) < 600
    assert delayq.client.dbsize() == 0
