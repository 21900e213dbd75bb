"""The verbs for coroutines on an event loop of their own run in the thread of the coroutine's sync code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from django_delayq import IdTaken, acancel, aget_job, areschedule, arun_now, aschedule, schedule, task
from django_delayq.core.broker import Broker
from django_delayq.signals import job_cancelled, job_scheduled

from .deeds import keyed, note, sync

HERE = "tests.app.test_aio_loops"


@task(name="aio_loops.kept", queue="aio_kept", durable=True)
def kept() -> None:
    return None


def close() -> None:
    """Close the database connection of this thread."""
    connection.close()


@pytest.fixture(autouse=True)
def _warm(delayq: Broker) -> None:
    """Every test has a Redis of its own, with the queues open."""
    schedule(note, "x", id="warm").cancel()
    schedule(sync, id=1).cancel()


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


def test_a_call_opens_no_database(delayq: Broker) -> None:
    async def main() -> list[Any]:
        await aschedule(note, "x", delay=60)
        return connections.all(initialized_only=True)

    assert asyncio.run(main()) == [], "Django would make one for each asyncio task"


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


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_another_thread_does_not_matter(hops: list[str]) -> None:
    async def main() -> str:
        return (await aschedule(note, "x")).outcome

    with transaction.atomic():
        Group.objects.create(name="g")
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(main())))
        thread.start()
        thread.join(30)
    assert (found, hops) == (["created"], ["schedule"])


@pytest.mark.django_db(transaction=True)
def test_a_durable_job_gets_its_row_in_the_thread_of_sync_code(hops: list[str]) -> None:
    async def main() -> list[Any]:
        handle = await kept.aschedule()
        found: list[Any] = [handle.outcome, handle.durable, await handle.acancel()]
        await sync_to_async(close)()
        return found

    assert asyncio.run(main()) == ["created", True, "cancelled"]
    assert hops == ["schedule", "cancel", "close"]


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    """Return the signals that were sent, each with the name of the receiver's thread."""
    sent: list[tuple[str, str]] = []

    def scheduled(**_: Any) -> None:
        sent.append(("scheduled", threading.current_thread().name))

    def cancelled(**_: Any) -> None:
        sent.append(("cancelled", threading.current_thread().name))

    job_scheduled.connect(scheduled)
    job_cancelled.connect(cancelled)
    yield sent
    job_scheduled.disconnect(scheduled)
    job_cancelled.disconnect(cancelled)


def test_receivers_of_signals_may_block(heard: list[tuple[str, str]]) -> None:
    async def main() -> None:
        await (await aschedule(note, "x", delay=60)).acancel()

    asyncio.run(main())
    assert [name for name, _ in heard] == ["scheduled", "cancelled"]
    assert threading.main_thread().name not in {thread for _, thread in heard}


def around(call: Any) -> Any:
    """Schedule middleware that notes its thread."""

    def noted(scheduling: Any) -> Any:
        scheduling.options["context"] = {"thread": threading.current_thread().name}
        return call(scheduling)

    return noted


def test_a_schedule_middleware_may_block(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SCHEDULE_MIDDLEWARE": [f"{HERE}.around"]}
    schedule(note, "x")

    async def main() -> Any:
        view = await aget_job(await aschedule(note, "x"))
        return view.job.context["thread"] if view else None

    assert asyncio.run(main()) not in (None, threading.main_thread().name)
