"""The Python clients: every refusal, connections that break, and clients shared by threads and tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.access import problems
from django_delayq.client import (
    ApiError,
    AsyncClient,
    Client,
    Conflict,
    IdTaken,
    Invalid,
    NotAuthenticated,
    NotFound,
    PermissionDenied,
    QueueFull,
    QueueNotFound,
    QueuePaused,
    Unavailable,
)
from tests.support.api_caller import ROOT, Caller

from ..world import CANCEL, SECRET
from .operating import create_queue, pause, resume

pytestmark = pytest.mark.django_db(transaction=True)


# --- errors ---


def test_every_refusal_is_an_exception_of_its_own(client: Client, url: str, caller: Callable[..., Caller]) -> None:
    create_queue(client, "small", max_length=1)
    client.put("small", "x")
    pause(client, "mail")

    def error(act: Callable[[], object]) -> tuple[type[ApiError], int, str]:
        with pytest.raises(ApiError) as told:
            act()
        return type(told.value), told.value.status, told.value.code

    viewer = Client(url, token=caller("view").token, retries=0)
    nobody = Client(url, token="wrong", retries=0)
    assert {
        "full": error(lambda: client.put("small", "y")),
        "paused": error(lambda: client.put("mail", "y")),
        "taken": error(lambda: client.schedule("orders", CANCEL, args=[1], id="orders-delayed", on_conflict="error")),
        "no queue": error(lambda: client.put("nowhere", "y")),
        "no task": error(lambda: client.schedule("orders", SECRET)),
        "no address": error(lambda: client.request("GET", "v1/queues/no/where")),
        "wrong": error(lambda: pause(client, "mail", "sideways")),
        "other kind": error(lambda: create_queue(client, "small", kind="python")),
        "may not": error(lambda: viewer.put("small", "y")),
        "nobody": error(lambda: nobody.request("GET", "v1/queues")),
    } == {
        "full": (QueueFull, 429, "queue_full"),
        "paused": (QueuePaused, 503, "queue_paused"),
        "taken": (IdTaken, 409, "id_taken"),
        "no queue": (QueueNotFound, 404, "queue_not_found"),
        "no task": (NotFound, 404, "task_not_found"),
        "no address": (NotFound, 404, "not_found"),
        "wrong": (Invalid, 400, "invalid"),
        "other kind": (Conflict, 409, "conflict"),
        "may not": (PermissionDenied, 403, "permission_denied"),
        "nobody": (NotAuthenticated, 401, "not_authenticated"),
    }
    viewer.close()
    nobody.close()


def test_what_may_work_later_is_tried_again_as_often_as_was_said_and_when_it_was_said(
    client: Client, url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(client, "mail")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            resume(client, "mail")

    monkeypatch.setattr("django_delayq.client.verbs.time.sleep", sleep)
    with Client(url, token=token, retries=2) as patient:
        assert patient.put("mail", "x", id="p").outcome == "created"
        pause(client, "mail")
        with pytest.raises(QueuePaused) as told:
            patient.put("mail", "x", id="p2")
    assert len(pauses) == 4
    assert told.value.retry_after == 5
    assert all(5 <= pause <= 5.5 for pause in pauses)


def test_a_coroutine_waits_without_blocking_its_loop(
    client: Client, url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "RETRY_AFTER", 1)  # the client obeys it
    pause(client, "mail")

    async def main() -> str:
        async with AsyncClient(url, token=token, retries=2) as there:
            put = asyncio.create_task(there.put("mail", "x"))
            await asyncio.sleep(0.5)
            await there.request("POST", "v1/queues/mail/resume", {"direction": "both"})
            return (await put).outcome

    assert asyncio.run(main()) == "created"


def test_an_answer_that_is_lost_is_asked_for_again_and_the_job_is_stored_once(
    client: Client, live_server: Any, token: str, proxy_factory: Callable[..., Any]
) -> None:
    proxy = proxy_factory((live_server.thread.host, live_server.thread.port))
    with Client(f"http://127.0.0.1:{proxy.port}{ROOT}", token=token, timeout=10) as there:
        assert there.request("GET", "healthz")
        proxy.cut_after_request(when=lambda chunk: b'"body"' in chunk)
        produced = there.put("mail", "only once")
        held = [job for job in client.reserve("mail", max=10) if job.body == b"only once"]
    assert proxy.cuts_done == 1
    assert [job.id for job in held] == [produced.id]


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again_without_a_word(
    client: Client, live_server: Any, token: str, proxy_factory: Callable[..., Any]
) -> None:
    proxy = proxy_factory((live_server.thread.host, live_server.thread.port))
    with Client(f"http://127.0.0.1:{proxy.port}{ROOT}", token=token, retries=0) as there:
        assert there.request("GET", "healthz") and there.request("GET", "healthz")
        assert proxy.connections == 1
        proxy.reset_connections()
        assert there.request("GET", "healthz")
        assert proxy.connections == 2


def test_who_does_not_answer_is_said_to_be_unavailable(proxy_factory: Callable[..., Any], delayq: Any) -> None:
    proxy = proxy_factory(("127.0.0.1", 1))
    proxy.refuse()
    with Client(f"http://127.0.0.1:{proxy.port}/", retries=1) as client, pytest.raises(Unavailable) as told:
        client.request("GET", "v1/queues")
    assert (told.value.status, told.value.code) == (0, "no_answer")
    assert told.value.detail.startswith(f"127.0.0.1:{proxy.port} did not answer: ")


def test_tasks_share_a_client_and_wait_for_jobs_at_the_same_time(client: Client, url: str, token: str) -> None:
    create_queue(client, "images", shards=4)
    taken: list[str] = []

    async def work(there: AsyncClient) -> None:
        while jobs := await there.reserve("images", max=5, wait=1):
            for job in jobs:
                async with job:
                    taken.append(job.id)

    async def main() -> None:
        async with AsyncClient(url, token=token) as there:
            workers = [asyncio.create_task(work(there)) for _ in range(4)]
            await there.put_many("images", [{"body": "x", "id": str(number)} for number in range(60)])
            await asyncio.gather(*workers)

    asyncio.run(main())
    assert sorted(taken, key=int) == [str(number) for number in range(60)]


def test_a_task_that_is_cancelled_releases_its_job(client: Client, url: str, token: str) -> None:
    client.put("mail", "x", id="slow", priority=0)

    async def main() -> None:
        async with AsyncClient(url, token=token) as there:
            held = [job for job in await there.reserve("mail", max=10) if job.id == "slow"]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), held[0]:
                    await asyncio.sleep(60)

    asyncio.run(main())
    job = client.job("mail", "slow")
    assert job is not None and (job["failures"], job["releases"]) == (0, 1)


def test_an_async_client_may_be_used_in_one_event_loop_after_another(client: Client, url: str, token: str) -> None:
    there = AsyncClient(url, token=token)

    async def look() -> int:
        try:
            return len((await there.request("GET", "v1/queues"))["queues"])
        finally:
            await there.close()

    assert [asyncio.run(look()) for _ in range(2)] == [3, 3]


def test_threads_share_a_client(client: Client) -> None:
    create_queue(client, "images", shards=4)
    client.put_many("images", [{"body": str(number), "id": str(number)} for number in range(60)])
    taken: list[str] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while jobs := client.reserve("images", max=5):
                for job in jobs:
                    with job:
                        taken.append(job.id)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert sorted(taken, key=int) == [str(number) for number in range(60)]
