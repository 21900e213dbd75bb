"""aenqueue() and aget_result() on an event loop of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_delayq.backends import DelayQBackend
from django_delayq.core import Broker, QueueUnavailable
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import InvalidTask, Results, TaskResultDoesNotExist, TaskResultStatus, compat

READY = TaskResultStatus.READY
BACKEND = "django_delayq.backends.DelayQBackend"


@pytest.fixture(autouse=True)
def _warm(delayq: Broker) -> None:
    """Every test has a Redis of its own, with the queues open."""
    for task in (deeds.noop, deeds.letter):
        delayq.queue(task.queue_name)


def test_each_of_two_hundred_concurrent_aenqueue_has_a_job_and_a_record(delayq: Broker) -> None:
    deeds.noop.get_result(deeds.noop.enqueue().id)  # connects and loads the scripts, for which a record has little time

    async def main() -> tuple[list[Any], list[Any]]:
        results = await asyncio.gather(*(deeds.noop.aenqueue(number) for number in range(200)))
        return results, await asyncio.gather(*(deeds.noop.aget_result(result.id) for result in results))

    results, again = asyncio.run(main())
    assert ([result.args for result in results], again) == ([[number] for number in range(200)], results)
    assert {result.status for result in results} == {READY}
    assert delayq.inspector.counts("default").ready == 201
    assert all(deeds.noop.get_result(result.id) == result for result in results)
    assert len(list(delayq.client.scan_iter("*:result:*", count=1000))) == 201, "each has a record"


def test_a_result_is_refreshed_after_its_attempt(delayq: Broker, work: Callable[..., Any]) -> None:
    async def main() -> Any:
        later = deeds.letter.using(priority=100, run_after=timedelta(hours=1))
        return await later.aenqueue("Ann", copies=2), await deeds.meaning_of_life.aenqueue()

    late, result = asyncio.run(main())
    work()

    async def refresh() -> None:
        await late.arefresh()
        await result.arefresh()

    asyncio.run(refresh())
    assert (late.status, late.args, late.kwargs, late.task.priority) == (READY, ["Ann"], {"copies": 2}, 100)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 42)


def test_a_result_is_found_without_its_record(delayq: Broker) -> None:
    async def main() -> None:
        result = await deeds.letter.aenqueue("Ann")
        delayq.client.delete(*delayq.client.scan_iter("*:result:*"))
        assert await deeds.letter.aget_result(result.id) == result
        with pytest.raises(TaskResultDoesNotExist):
            await deeds.letter.aget_result("A" * 20 + result.id[20:])
        for ident in ("123", 123):
            with pytest.raises(TaskResultDoesNotExist):
                await deeds.letter.aget_result(ident)

    asyncio.run(main())


def test_what_is_wrong_is_refused_as_in_a_plain_call(delayq: Broker, settings: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="missing a required argument"):
            await deeds.letter.aenqueue()
        with pytest.raises(TypeError):
            await deeds.noop.aenqueue(x={1, 2})
        task = deeds.noop.using(queue_name="queue_1")
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
        with pytest.raises(InvalidTask, match="Queue 'queue_1' is not valid"):
            await task.aenqueue()

    asyncio.run(main())
    assert delayq.inspector.counts("default").ready == delayq.inspector.counts("mail").ready == 0


def test_receivers_of_the_signal_may_block(delayq: Broker) -> None:
    threads: list[tuple[object, str]] = []

    def receiver(sender: object, **_: Any) -> None:
        threads.append((sender, threading.current_thread().name))

    compat.task_enqueued.connect(receiver)
    try:
        asyncio.run(deeds.noop.aenqueue())
    finally:
        compat.task_enqueued.disconnect(receiver)
    ((sender, thread),) = threads
    assert sender is DelayQBackend and thread != threading.main_thread().name


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_of_the_coroutines_sync_code_it_is_sent_on_commit(
    delayq: Broker, heard: list[Any], hops: list[str]
) -> None:
    async def main() -> tuple[Any, list[Any]]:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        result = await deeds.noop.aenqueue()
        before = [*heard, *delayq.client.scan_iter("*:result:*")]
        await sync_to_async(block.__exit__)(None, None, None)
        await sync_to_async(lambda: connection.close())()
        return await deeds.noop.aget_result(result.id), before

    result, before = asyncio.run(main())
    assert (result.status, before) == (READY, [])
    assert heard == [("task_enqueued", DelayQBackend, "READY")]
    assert hops == ["__enter__", "enqueue", "__exit__", "<lambda>", "get_result"]


@pytest.mark.django_db(transaction=True)
def test_a_durable_task_gets_its_row_in_the_thread_of_sync_code(delayq: Broker, settings: Any, hops: list[str]) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"defaults": {"durable": True}}}}

    async def main() -> tuple[Any, Any]:
        result = await deeds.noop.aenqueue()
        again = await deeds.noop.aget_result(result.id)
        await sync_to_async(lambda: connection.close())()
        return result, again

    result, again = asyncio.run(main())
    assert result == again
    assert hops == ["enqueue", "get_result", "<lambda>"]


def test_a_job_whose_record_cannot_be_written_is_stored(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("no reply")

    monkeypatch.setattr(Results, "write", failing)

    async def main() -> bool:
        result = await deeds.noop.aenqueue()
        return bool(await deeds.noop.aget_result(result.id) == result)

    assert asyncio.run(main())
    assert "could not be prepared: no reply" in caplog.text
