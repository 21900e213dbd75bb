"""The Python clients against a real server: every route, every error, and connections that break."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_delayq.client import (
    AsyncClient,
    AsyncHeldJob,
    Client,
    HeldJob,
    Invalid,
    JobNotFound,
    Many,
    NotFound,
    QueueNotEmpty,
)

from ...support.moments import in_days
from ..world import CANCEL, SYNC
from .operating import counts_of, create_queue

pytestmark = pytest.mark.django_db(transaction=True)


# --- produce ---


def test_bytes_that_are_put_come_out_as_they_were(client: Client) -> None:
    every_byte = bytes(range(256))
    create_queue(client, "images")
    produced = client.put("images", every_byte, id="5", delay=timedelta(0), context={"trace": "abc"})
    assert (produced.id, produced.queue, produced.outcome) == ("5", "images", "created")
    assert produced.due is not None and abs(produced.due - datetime.now(UTC)) < timedelta(seconds=30)
    (job,) = client.reserve("images", ttr=30)
    assert (job.id, job.body, job.attempt, job.lives, job.context) == ("5", every_byte, 1, 26, {"trace": "abc"})
    assert job.ack()
    assert client.reserve("images") == []


def test_many_are_put_in_requests_of_a_thousand_and_answered_in_their_order(client: Client) -> None:
    create_queue(client, "images")
    told = client.put_many(
        "images",
        (
            f"picture {number}" if number % 2 else {"body": b"\xff", "id": f"n{number}", "delay": 60}
            for number in range(1100)
        ),
    )
    assert told.counts == {"created": 1100}
    assert [ident for ident, _ in told.results][::2] == [f"n{number}" for number in range(0, 1100, 2)]
    counts = counts_of(client, "images")
    assert (counts["delayed"], counts["ready"]) == (550, 550)


def test_large_ones_are_put_in_requests_that_the_server_takes(client: Client) -> None:
    told = client.put_many("mail", ("x" * 700_000 for _ in range(8)))
    assert told.counts == {"created": 8}


def test_tasks_are_scheduled_with_their_arguments(client: Client) -> None:
    at = in_days(30)
    assert client.schedule("orders", CANCEL, args=[5], kwargs={"reason": "late"}, id="o5", at=at).due == at
    assert client.schedule("crm", SYNC, id="c5", payload={"name": "Ada"}, score=3, delay=60).outcome == "created"
    assert client.schedule("crm", SYNC, id="c5", payload={"name": "Bob"}, score=4).outcome == "merged"
    assert client.put_many("mail", (), all_or_none=True).results == []
    whole = client.put_many(
        "mail", [{"body": "x", "id": ident, "on_conflict": "error"} for ident in "aba"], all_or_none=True
    )
    assert whole.counts["exists"] == 1
    assert client.job("mail", "a") is None
    told = client.schedule_many("orders", [{"task": CANCEL, "args": [number], "delay": 60} for number in range(3)])
    assert told.counts == {"created": 3}
    order, merged = client.job("orders", "o5"), client.job("crm", "c5")
    assert order is not None and (order["task"], order["args"], order["kwargs"]) == (CANCEL, [5], {"reason": "late"})
    assert merged is not None and (merged["merged"], merged["payload_count"]) == (True, 2)


def test_the_text_of_many_results_has_their_counts() -> None:
    many = Many(results=[(str(n), "created") for n in range(5000)], counts={"created": 5000})
    assert repr(many) == "Many(counts={'created': 5000})"


def test_what_cannot_be_stored_is_told_with_its_place_and_what_was_stored_before(client: Client) -> None:
    jobs: list[Any] = ["fine"] * 1000 + ["fine", {"body": "x", "delay": "soon"}]
    with pytest.raises(Invalid) as told:
        client.put_many("mail", jobs)
    assert (told.value.status, told.value.code, len(told.value.done)) == (400, "invalid", 1000)
    assert told.value.errors[0][0] == "/jobs/1/delay"


def test_a_moment_without_a_time_zone_is_refused_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        client.put("mail", "x", at=datetime(2030, 1, 1))


# --- consume ---


def test_a_held_job_ends_in_one_way_and_only_once(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"j{number}"} for number in range(4)])
    jobs = {job.id: job for job in client.reserve("mail", max=10) if job.id.startswith("j")}
    assert jobs["j0"].ack() and jobs["j1"].fail(ValueError("no such address"), delay=60)
    assert jobs["j2"].release(timedelta(hours=1)) and jobs["j3"].bury("nonsense")
    assert [job.ack() for job in jobs.values()] == [False] * 4
    failed, released, buried = (client.job("mail", ident) for ident in ("j1", "j2", "j3"))
    assert client.job("mail", "j0") is None
    assert failed is not None and released is not None and buried is not None
    assert (failed["state"], failed["failures"]) == ("delayed", 1)
    assert (failed["error"]["class"], failed["error"]["message"]) == ("ValueError", "no such address")
    assert (released["failures"], released["releases"]) == (0, 1)
    assert (buried["state"], buried["reason"]) == ("morgue", "nonsense")


def test_a_job_is_released_with_another_priority(client: Client) -> None:
    create_queue(client, "images")
    client.put_many("images", [{"body": "x", "id": ident} for ident in "abc"])
    jobs = {job.id: job for job in client.reserve("images", max=10)}
    assert client.release([jobs["c"]], priority=0) == [True]
    assert jobs["a"].release(0, priority=7) and jobs["b"].release()
    assert [job.id for job in client.reserve("images", max=10)] == ["c", "b", "a"]
    changed = client.job("images", "a")
    assert changed is not None and changed["priority"] == 7


def test_a_block_acks_at_its_end_and_fails_on_an_exception(client: Client) -> None:
    client.put_many("mail", [{"body": "good", "id": "a"}, {"body": "bad", "id": "b"}])
    jobs = {job.id: job for job in client.reserve("mail", max=10)}
    with jobs["a"]:
        pass
    with pytest.raises(RuntimeError, match="boom"), jobs["b"]:
        raise RuntimeError("boom")
    assert client.job("mail", "a") is None
    failed = client.job("mail", "b")
    assert failed is not None and failed["error"]["message"] == "boom"


def test_many_are_settled_at_once_each_with_its_own_answer(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"j{number}"} for number in range(3)])
    jobs = [job for job in client.reserve("mail", "orders", max=10) if job.id != "mail-ready"]
    assert sorted(job.id for job in jobs) == ["j0", "j1", "j2", "orders-ready"]
    assert all(client.touch(jobs, ttr=120))
    soon = datetime.now(UTC) + timedelta(seconds=90)
    assert all(job.lease_ends is not None and job.lease_ends > soon for job in jobs)
    client.cancel_job("mail", "j0")
    client.touch(jobs)
    assert [job.id for job in jobs if job.should_stop] == ["j0"]
    assert jobs[0].ack()
    assert client.ack(jobs) == [False, True, True, True]


def test_waiting_for_a_job_takes_as_long_as_it_is_not_there_and_no_longer(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", "x", delay=0.2, id="later")
    assert [job.id for job in client.reserve("images", wait=10)] == ["later"]
    assert client.reserve("images", wait=0.2) == []


def test_who_reserves_is_seen_by_his_name(client: Client, url: str, token: str) -> None:
    create_queue(client, "images")
    client.put_many("images", [{"body": "x", "id": str(place)} for place in range(2)])
    with Client(url, token=token, worker="resizer") as named:
        taken = [*named.reserve("images"), *named.reserve("images", worker="painter")]
    seen = {job["id"]: job["worker"] for job in client.pages("v1/queues/images/jobs", "jobs", state="reserved")}
    assert [seen[job.id] for job in taken] == ["resizer", "painter"]


# --- one job, lists, and any other request ---


def test_lists_follow_their_cursors(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"n{number:03}", "delay": 3600 + number} for number in range(25)])
    path = "v1/queues/mail/jobs"
    found = [job["id"] for job in client.pages(path, "jobs", state="delayed", limit=10) if job["id"].startswith("n")]
    assert found == [f"n{number:03}" for number in range(25)]
    soon = datetime.now(UTC) + timedelta(seconds=3600 + 20)
    late = client.pages(path, "jobs", by="due", min=soon, order="desc", prefix="n")
    assert [job["id"] for job in late] == [f"n{number:03}" for number in range(24, 20, -1)]
    (dead,) = client.pages("v1/queues/mail/morgue", "jobs")
    assert (dead["id"], dead["state"], dead["body"]) == ("mail-morgue", "morgue", "Dear customer")
    with pytest.raises(ValueError, match="no time zone"):
        list(client.pages(path, "jobs", min=datetime(2030, 1, 1)))


def test_an_id_may_hold_any_character_and_dots_alone_are_no_way_to_another_address(client: Client) -> None:
    create_queue(client, "images")
    due = in_days(30)
    for ident in (".", "..", "a/b", "a b?c=d#e", "ä", "%2F", "a//b/"):
        client.put("images", "x", id=ident, delay=60)
        job = client.job("images", ident)
        assert job is not None and job["id"] == ident
        assert client.reschedule_job("images", ident, at=due) == due
        assert client.cancel_job("images", ident) == "cancelled"
        with pytest.raises(JobNotFound):
            client.cancel_job("images", ident)
    assert client.request("GET", "v1/queues/images")["name"] == "images"


def test_a_job_is_moved_and_cancelled(client: Client) -> None:
    due = in_days(30)
    assert client.reschedule_job("orders", "orders-delayed", at=due) == due
    assert client.cancel_job("mail", "mail-ready") == "cancelled"
    assert client.cancel_job("mail", "mail-reserved") == "stopping"
    with pytest.raises(JobNotFound):
        client.cancel_job("mail", "nobody")
    assert client.job("mail", "nobody") is None


def test_any_other_request_is_sent_and_answered_with_its_json(client: Client) -> None:
    create_queue(client, "images", shards=2, max_length=10)
    assert client.request("PATCH", "v1/queues/images", {"max_length": None})["limits"]["max_length"] is None
    assert client.request("POST", "v1/queues/mail/run-now", {"all": True})["complete"]
    assert client.request("DELETE", "v1/queues/images", query={"force": True}) is None
    assert client.request("GET", "readyz")["status"] == "ok"
    assert client.request("GET", "v1/openapi.json")["info"]["title"] == "django_delayq"
    with pytest.raises(QueueNotEmpty):
        client.request("DELETE", "v1/queues/mail")
    with pytest.raises(NotFound, match="there is nothing at this address"):
        client.request("GET", "v1/queues/no/where")


# --- coroutines ---


def test_every_verb_can_be_awaited(client: Client, url: str, token: str) -> None:
    create_queue(client, "images")
    at = in_days(30)

    async def main() -> None:
        async with AsyncClient(url, token=token, retries=0) as there:
            assert (await there.put("images", b"\xff", id="a")).outcome == "created"
            assert (await there.put_many("images", [{"body": "x", "id": ident} for ident in "bcdefg"])).counts[
                "created"
            ]
            assert (await there.schedule("orders", CANCEL, args=[5], id="o", delay=60)).outcome == "created"
            assert (await there.schedule_many("orders", [{"task": CANCEL, "args": [6]}])).counts == {"created": 1}
            jobs = {job.id: job for job in await there.reserve("images", max=10, wait=1, ttr=60)}
            assert jobs["a"].body == b"\xff"
            assert await jobs["a"].touch(120) and not jobs["a"].should_stop and jobs["a"].seconds_left > 100
            assert len(await there.soon_ending(90)) == 6
            assert await jobs["a"].ack() and not await jobs["a"].ack()
            assert await jobs["b"].fail(ValueError("no"), delay=60) and await jobs["c"].release(60)
            assert await jobs["d"].bury("nonsense")
            async with jobs["e"]:
                pass
            with pytest.raises(RuntimeError, match="boom"):
                async with jobs["f"]:
                    raise RuntimeError("boom")
            assert await there.touch([jobs["g"]]) == await there.ack([jobs["g"]]) == [True]
            kept = {ident: await there.job("images", ident) for ident in "abcdefg"}
            ends = {ident: job and (job["state"], job["failures"], job["releases"]) for ident, job in kept.items()}
            assert ends == {
                **dict.fromkeys("aeg"),
                "b": ("delayed", 1, 0),
                "c": ("delayed", 0, 1),
                "d": ("morgue", 1, 0),
                "f": ("delayed", 1, 0),
            }
            assert await there.reschedule_job("orders", "o", at=at) == at
            assert await there.cancel_job("orders", "o") == "cancelled"
            with pytest.raises(JobNotFound):
                await there.cancel_job("orders", "o")
            listed = there.pages("v1/queues/images/jobs", "jobs", state="delayed", limit=2)
            assert {job["id"] async for job in listed} == {"b", "c", "f"}
            one = await there.reserve_id("images", "c", early=True)
            two = await there.reserve_id("images", "d", buried=True)
            assert one is not None and two is not None
            assert await there.release([one]) == await there.fail([two], "no") == [True]
            three = await there.reserve_id("images", "c", early=True)
            assert three is not None and await there.bury([three], "no more") == [True]

    asyncio.run(main())


# --- the package ---


def test_importing_it_loads_neither_django_nor_redis() -> None:
    program = (
        "import json, sys, django_delayq.client;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))))"
    )
    root = str(Path(__file__).resolve().parents[2])
    answer = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {root!r}); {program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not {"django", "redis", "rest_framework"} & set(json.loads(answer.stdout))


def test_without_httpx_its_import_names_the_extra() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r});"
        "sys.modules['httpx'] = None; import django_delayq.client"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 1
    assert 'pip install "django-delayq[client]"' in answer.stderr.splitlines()[-1]


@pytest.mark.parametrize(("blocking", "awaited"), [(Client, AsyncClient), (HeldJob, AsyncHeldJob)])
def test_both_clients_have_the_same_verbs_with_the_same_arguments(blocking: type, awaited: type) -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        functions = inspect.getmembers(kind, inspect.isfunction)
        return {name: [*inspect.signature(one).parameters] for name, one in functions if not name.startswith("_")}

    assert verbs(blocking) == verbs(awaited)
    for name in verbs(awaited):
        function = getattr(awaited, name)
        assert inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function), name


@pytest.mark.parametrize("address", ["shop.example/delayq", "ftp://shop.example/", "https://me:secret@shop.example/"])
def test_an_address_that_is_none_is_refused_without_telling_its_password(address: str) -> None:
    with pytest.raises(ValueError) as told:
        Client(address)
    assert "secret" not in str(told.value)


def test_a_job_is_reserved_by_its_id(client: Client) -> None:
    create_queue(client, "images")
    for name in ("one", "two", "three"):
        client.put("images", f"{name}.png", id=name)
    client.put("images", "later.png", id="later", delay=60)
    one = client.reserve_id("images", "one", ttr=30)
    assert one is not None and (one.body, one.ttr, client.ack([one])) == (b"one.png", 30, [True])
    assert client.reserve_id("images", "one") is None
    assert client.reserve_id("images", "later") is None
    later = client.reserve_id("images", "later", early=True)
    assert later is not None and client.release([later]) == [True]
    (found,) = client.pages("v1/queues/images/jobs", "jobs", text="TWO.PNG", prefix="t")
    two = client.reserve_id("images", found["id"])
    assert two is not None and client.bury([two], "unreadable") == [True] and client.reserve_id("images", "two") is None
    two = client.reserve_id("images", "two", buried=True)
    assert two is not None and client.release([two]) == [True]


def test_a_wait_ends_before_the_lease_of_a_held_job(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", b"x", id="x")
    (job,) = client.reserve("images", ttr=3)
    assert 2 < job.seconds_left <= 3
    assert client.soon_ending(1) == []
    began = time.monotonic()
    assert client.reserve("images", wait=20, deadline_margin=timedelta(seconds=1.5)) == []
    assert 0.5 < time.monotonic() - began < 3
    assert [one.id for one in client.soon_ending(1.6)] == ["x"]
    assert job.touch(10)
    assert (client.soon_ending(1.6), job.seconds_left > 8) == ([], True)


def test_a_job_that_is_due_comes_first_and_ended_ones_end_no_wait(client: Client) -> None:
    create_queue(client, "images")
    client.put("images", b"x")
    (held,) = client.reserve("images", ttr=5)
    client.put("images", b"y", id="y")
    (job,) = client.reserve("images", wait=20, deadline_margin=10)
    assert job.id == "y"
    assert job.ack() and held.ack()
    assert (job.seconds_left, client.soon_ending(60)) == (0, [])
    began = time.monotonic()
    assert client.reserve("images", wait=1, deadline_margin=10) == []
    assert time.monotonic() - began > 0.9


def test_a_wrong_margin_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="deadline_margin is 0; give more than 0 seconds"):
        client.reserve("images", deadline_margin=0)
