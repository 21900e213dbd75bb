"""The verbs for coroutines: same jobs, same answers, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

import django_delayq
from django_delayq import (
    IdTaken,
    InvalidJob,
    acancel,
    aget_job,
    areschedule,
    arun_now,
    aschedule,
    aschedule_many,
    cancel,
    get_job,
    reschedule,
    run_now,
    schedule,
    schedule_many,
)
from django_delayq.core.broker import Broker
from django_delayq.outbox import row_verbs
from django_delayq.scheduling import verbs
from django_delayq.scheduling.verbs import JobHandle

from .deeds import keyed, note, rest, sync

trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
HERE = "tests.app.test_aio"


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test here has a Redis of its own."""


def test_a_coroutine_schedules_finds_moves_and_cancels() -> None:
    async def live() -> list[Any]:
        handle = await aschedule(note, "hello", times=2, delay=timedelta(minutes=30), id="h")
        said: list[Any] = [handle.outcome, await handle.astate()]
        said.append(await areschedule(note, id="h", delay=60))
        said.append(await arun_now("h", queue="default"))
        view = await aget_job(handle)
        said.append(view.state if view else None)
        said.append(await acancel(handle))
        said.append(await aget_job(handle))
        said.append(await aschedule_many(rest, [{"delay": 60}, {}]))
        return said

    assert async_to_sync(live)() == [
        "created",
        "delayed",
        True,
        True,
        "ready",
        "cancelled",
        None,
        {"created": 2},
    ]


def test_tasks_and_handles_have_the_verbs_too() -> None:
    async def live() -> list[Any]:
        handle = await note.aschedule("x", times=3)
        keyed_handle = await keyed.using(id="k", delay=60).aschedule(number=5)
        merged = [await sync.aschedule(7, {"a": 1}, score=2), await sync.using(delay=60).aschedule(7, {"a": 2})]
        return [
            handle.outcome,
            await keyed_handle.areschedule(delay=3600),
            await keyed_handle.arun_now(),
            await keyed_handle.astate(),
            await keyed_handle.acancel(),
            [one.outcome for one in merged],
        ]

    assert async_to_sync(live)() == ["created", True, True, "ready", "cancelled", ["created", "merged"]]


def test_errors_reach_the_coroutine_that_waits() -> None:
    async def live() -> None:
        await aschedule(note, "x", id="shared", delay=60)
        with pytest.raises(IdTaken):
            await aschedule(keyed, id="shared")
        with pytest.raises(TypeError):
            await aschedule(note)
        with pytest.raises(InvalidJob):
            await acancel()

    async_to_sync(live)()


def test_the_loop_goes_on_while_redis_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_args: Any, **_named: Any) -> str:
        assert answered.wait(10)
        return "done"

    monkeypatch.setattr(row_verbs, "apply", slow)

    async def live() -> object:
        waiting = asyncio.ensure_future(acancel("x"))
        await asyncio.sleep(0)
        answered.set()  # reached although the call has not returned
        return await waiting

    assert async_to_sync(live)() == "done"


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_of_a_sync_function_below_a_job_is_sent_on_commit() -> None:
    """As with Django's own a-methods: the transaction of the thread that the coroutine's sync parts share."""
    seen: list[Any] = []

    async def begin() -> JobHandle:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        handle = await aschedule(note, "x", id="late")
        seen.append((handle.outcome, await aget_job(handle)))
        seen.append(await acancel("other", queue="default"))
        await sync_to_async(block.__exit__)(None, None, None)
        return handle

    handle = async_to_sync(begin)()
    assert seen == [("on_commit", None), "on_commit"]
    assert (handle.outcome, handle.state()) == ("created", "ready")


@pytest.fixture
def traced(settings: Any) -> Iterator[None]:
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": {"trace": f"{HERE}.trace"}}
    token = trace.set("outside")
    yield
    trace.reset(token)


@pytest.mark.usefixtures("traced")
def test_the_context_of_the_coroutine_travels_with_the_job() -> None:
    async def live() -> Any:
        trace.set("t-1")
        view = await aget_job(await aschedule(note, "x"))
        return view.job.options if view else None

    assert async_to_sync(live)() == {"context": {"trace": "t-1"}}


def test_each_verb_takes_what_its_namesake_takes() -> None:
    for name in ("acancel", "aget_job", "areschedule", "arun_now", "aschedule", "aschedule_many"):
        own, other = getattr(django_delayq, name), getattr(verbs, name[1:])
        assert inspect.iscoroutinefunction(own)
        assert own.__name__ == name
        assert inspect.signature(own) == inspect.signature(other), name


# --- the plain verbs on an event loop


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning of this process was given yet."""
    monkeypatch.setattr(verbs, "_has_warned", False)


VERBS: dict[str, Any] = {
    "schedule": lambda: schedule(note, "x"),
    "schedule of a task": lambda: note.schedule("x"),
    "schedule with options": lambda: note.using(delay=60).schedule("x"),
    "schedule_many": lambda: schedule_many(rest, [{}]),
    "cancel": lambda: cancel(note, id="a"),
    "reschedule": lambda: reschedule(note, id="a", delay=1),
    "run_now": lambda: run_now(note, id="a"),
    "get_job": lambda: get_job(note, id="a"),
}


@pytest.mark.usefixtures("unwarned")
@pytest.mark.parametrize("called", VERBS)
def test_a_plain_verb_on_a_running_event_loop_warns_once_and_names_the_other_one(called: str) -> None:
    async def blocking() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                VERBS[called]()
        return caught

    (warning,) = asyncio.run(blocking())
    verb = called.partition(" ")[0]
    assert warning.category is RuntimeWarning
    assert f"`await a{verb}(…)`" in str(warning.message) and str(warning.message).startswith(f"{verb}() was called")
    assert warning.filename == __file__, "where it was called"


@pytest.mark.usefixtures("unwarned")
def test_the_verbs_for_coroutines_and_calls_outside_of_any_loop_warn_of_nothing() -> None:
    async def polite() -> None:
        handle = await aschedule(note, "x", id="a", delay=60)
        await note.aschedule("x")
        await note.using(delay=60).aschedule("x")
        await aschedule_many(rest, [{}])
        await areschedule(handle, delay=5)
        await handle.astate()
        await aget_job(handle)
        await arun_now(handle)
        await handle.acancel()
        await sync_to_async(schedule)(note, "x")

    asyncio.run(polite())
    schedule(note, "x")
    assert not verbs._has_warned
