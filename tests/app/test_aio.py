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
from django.db import connection, transaction

import django_delayq
from django_delayq import (
    IdTaken,
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

from .deeds import keyed, note, rest, sync

trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
HERE = "tests.app.test_aio"


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test has a Redis of its own, with the queues open."""
    schedule(note, "x", id="warm").cancel()
    schedule(sync, id=1).cancel()


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


@pytest.mark.parametrize("called", VERBS)
def test_a_plain_verb_on_a_running_event_loop_warns_where_it_stands_and_names_the_other_one(called: str) -> None:
    async def blocking() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(2):
                VERBS[called]()
        return caught

    (warning,) = asyncio.run(blocking())
    verb = called.partition(" ")[0]
    assert warning.category is RuntimeWarning
    assert f"`await a{verb}(…)`" in str(warning.message) and str(warning.message).startswith(f"{verb}() was called")
    assert warning.filename == __file__, "where it was called"


def test_the_verbs_for_coroutines_and_calls_outside_of_any_loop_warn_of_nothing() -> None:
    async def polite() -> None:
        handle = await aschedule(note, "x", id="a", delay=60)
        await note.aschedule("x")
        await note.using(delay=60).aschedule("x")
        assert await aschedule_many(rest, [{}]) == {"created": 1}
        await areschedule(handle, delay=5)
        await handle.astate()
        await aget_job(handle)
        await arun_now(handle)
        await handle.acancel()
        await sync_to_async(schedule)(note, "x")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(polite())
        schedule(note, "x")


# --- an event loop of its own: the verbs run in the thread of the coroutine's sync code


def close() -> None:
    """Close the database connection of this thread."""
    connection.close()


def test_a_thousand_concurrent_aschedule_share_one_thread(delayq: Broker, hops: list[str]) -> None:
    threads = set(threading.enumerate())

    async def main() -> tuple[set[str], int]:
        handles = await asyncio.gather(*(aschedule(note, "x", delay=60) for _ in range(1000)))
        return {handle.outcome for handle in handles}, len(set(threading.enumerate()) - threads)

    outcomes, threads_begun = asyncio.run(main())
    assert outcomes == {"created"}
    assert threads_begun <= 1
    assert hops == ["schedule"] * 1000
    assert delayq.inspector.counts("default").delayed == 1000


def test_every_verb_runs_there_whether_of_a_handle_a_task_or_a_function(hops: list[str]) -> None:
    async def main() -> list[Any]:
        handle = await aschedule(note, "hello", times=2, delay=timedelta(minutes=30), id="h")
        found: list[Any] = [handle.outcome, handle.key is not None, await handle.astate()]
        found += [await areschedule(note, id="h", delay=60), await arun_now("h", queue="default")]
        found += [await handle.areschedule(delay=3600), await handle.arun_now()]
        view = await aget_job(handle)
        found.append(view.state if view else None)
        found += [await acancel(handle), await handle.acancel(), await aget_job(handle)]
        merged = [await sync.aschedule(7, {"a": 1}, score=2), await sync.using(delay=60).aschedule(7, {"a": 2})]
        found.append([one.outcome for one in merged])
        await note.using(id="shared", delay=60).aschedule("x", times=3)
        with pytest.raises(IdTaken):
            await aschedule(keyed, id="shared")
        with pytest.raises(TypeError):
            await note.aschedule()
        found.append(hops.copy())
        return found

    assert asyncio.run(main()) == [
        *("created", True, "delayed", True, True, True, True, "ready", "cancelled", False, None),
        ["created", "merged"],
        [
            "schedule",
            "state",
            *2 * ["reschedule", "run_now"],
            "get_job",
            "cancel",
            "cancel",
            "get_job",
            *5 * ["schedule"],
        ],
    ]


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_of_the_coroutines_sync_code_a_job_is_sent_on_commit(hops: list[str]) -> None:
    seen: list[Any] = []

    async def main() -> None:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        handle = await aschedule(note, "x", id="late")
        seen.append((handle.outcome, await aget_job(handle), await acancel("other", queue="default")))
        await sync_to_async(block.__exit__)(None, None, None)
        seen.append((handle.outcome, await handle.astate()))
        hops.clear()
        seen.append((await aschedule(note, "x")).outcome)
        await sync_to_async(close)()

    asyncio.run(main())
    assert seen == [("on_commit", None, "on_commit"), ("created", "ready"), "created"]
    assert hops == ["schedule", "close"]
