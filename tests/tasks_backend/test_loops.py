"""aenqueue() and aget_result() on an event loop of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_delayq.backends import DelayQBackend
from django_delayq.core import Broker
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import TaskResultStatus

READY = TaskResultStatus.READY


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
