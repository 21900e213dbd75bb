"""The Python clients against a real server: every route, every error, and connections that break."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
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
    QueueNotFound,
)
from django_delayq.client.answers import job_of

from ...support.moments import in_days
from ..world import CANCEL, SYNC, WORKER

pytestmark = pytest.mark.django_db(transaction=True)


# --- produce ---


def test_bytes_that_are_put_come_out_as_they_were(client: Client) -> None:
    every_byte = bytes(range(256))
    client.create_queue("images", kind="pull")
    produced = client.put("images", every_byte, id="5", delay=timedelta(0), context={"trace": "abc"})
    assert (produced.id, produced.queue, produced.outcome) == ("5", "images", "created")
    assert produced.due is not None and abs(produced.due - datetime.now(UTC)) < timedelta(seconds=30)
    (job,) = client.reserve("images", ttr=30)
    assert (job.id, job.body, job.attempt, job.lives, job.context) == ("5", every_byte, 1, 26, {"trace": "abc"})
    assert job.ack()
    assert client.reserve("images") == []


def test_many_are_put_in_requests_of_a_thousand_and_answered_in_their_order(client: Client) -> None:
    client.create_queue("images", kind="pull")
    told = client.put_many(
        "images",
        (
            f"picture {number}" if number % 2 else {"body": b"\xff", "id": f"n{number}", "delay": 60}
            for number in range(1100)
        ),
    )
    assert told.counts == {"created": 1100}
    assert [ident for ident, _ in told.results][::2] == [f"n{number}" for number in range(0, 1100, 2)]
    counts = client.queue("images").counts
    assert counts is not None and (counts.delayed, counts.ready) == (550, 550)


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
    assert order is not None and (order.task, order.args, order.kwargs) == (CANCEL, [5], {"reason": "late"})
    assert merged is not None and (merged.merged, merged.payload_count) == (True, 2)


def test_the_text_of_many_results_has_their_counts_and_the_first_of_them() -> None:
    few = Many(results=[("a", "created"), (None, "skipped")], counts={"created": 1, "skipped": 1})
    assert repr(few) == (
        "Many(2 results, counts={'created': 1, 'skipped': 1}, results=[('a', 'created'), (None, 'skipped')])"
    )
    many = Many(results=[(str(n), "created") for n in range(5000)], counts={"created": 5000})
    assert repr(many) == (
        "Many(5000 results, counts={'created': 5000}, "
        "results=[('0', 'created'), ('1', 'created'), ('2', 'created'), …])"
    )


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
    assert failed is not None and failed.error is not None
    assert (failed.state, failed.failures) == ("delayed", 1)
    assert (failed.error.kind, failed.error.message) == ("ValueError", "no such address")
    assert released is not None and (released.failures, released.releases) == (0, 1)
    assert buried is not None and (buried.state, buried.reason) == ("morgue", "nonsense")


def test_a_job_is_released_with_another_priority(client: Client) -> None:
    client.create_queue("images", kind="pull")
    client.put_many("images", [{"body": "x", "id": ident} for ident in "abc"])
    jobs = {job.id: job for job in client.reserve("images", max=10)}
    assert client.release([jobs["c"]], priority=0) == [True]
    assert jobs["a"].release(0, priority=7) and jobs["b"].release()
    assert [job.id for job in client.reserve("images", max=10)] == ["c", "b", "a"]
    changed = client.job("images", "a")
    assert changed is not None and changed.priority == 7


def test_a_block_acks_at_its_end_and_fails_on_an_exception(client: Client) -> None:
    client.put_many("mail", [{"body": "good", "id": "a"}, {"body": "bad", "id": "b"}])
    jobs = {job.id: job for job in client.reserve("mail", max=10)}
    with jobs["a"]:
        pass
    with pytest.raises(RuntimeError, match="boom"), jobs["b"]:
        raise RuntimeError("boom")
    assert client.job("mail", "a") is None
    failed = client.job("mail", "b")
    assert failed is not None and failed.error is not None and failed.error.message == "boom"


def test_many_are_settled_at_once_each_with_its_own_answer(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"j{number}"} for number in range(3)])
    jobs = [job for job in client.reserve("mail", "orders", max=10) if job.id != "mail-ready"]
    assert sorted(job.id for job in jobs) == ["j0", "j1", "j2", "orders-ready"]
    assert all(client.touch(jobs, ttr=120))
    soon = datetime.now(UTC) + timedelta(seconds=90)
    assert all(job.lease_ends is not None and job.lease_ends > soon for job in jobs)
    client.cancel("mail", ["j0"])
    client.touch(jobs)
    assert [job.id for job in jobs if job.should_stop] == ["j0"]
    assert jobs[0].ack()
    assert client.ack(jobs) == [False, True, True, True]


def test_waiting_for_a_job_takes_as_long_as_it_is_not_there_and_no_longer(client: Client) -> None:
    client.create_queue("images", kind="pull")
    client.put("images", "x", delay=0.2, id="later")
    assert [job.id for job in client.reserve("images", wait=10)] == ["later"]
    assert client.reserve("images", wait=0.2) == []


def test_who_reserves_is_seen_by_his_name(client: Client, url: str, token: str, kind: Any) -> None:
    client.create_queue("images", kind="pull")
    client.put_many("images", [{"body": "x", "id": str(place)} for place in range(2)])
    with kind(url, token=token, worker="resizer") as named:
        taken = [*named.reserve("images"), *named.reserve("images", worker="painter")]
    seen = {job.id: job.worker for job in client.jobs("images", state="reserved")}
    assert [seen[job.id] for job in taken] == ["resizer", "painter"]


# --- look and order ---


def test_lists_follow_their_cursors(client: Client) -> None:
    client.put_many("mail", [{"body": "x", "id": f"n{number:03}", "delay": 3600 + number} for number in range(25)])
    found = [job.id for job in client.jobs("mail", state="delayed", limit=10) if job.id.startswith("n")]
    assert found == [f"n{number:03}" for number in range(25)]
    soon = datetime.now(UTC) + timedelta(seconds=3600 + 20)
    assert len([job for job in client.jobs("mail", by="due", min=soon, order="desc") if job.id.startswith("n")]) <= 6
    (dead,) = client.morgue("mail")
    assert (dead.id, dead.state, dead.reason) == ("mail-morgue", "morgue", "no such customer")
    assert dead.body == b"Dear customer"
    assert client.graves("mail", "mail-morgue") == [dead]
    assert client.graves("mail", "nobody") == []


def test_all_records_of_an_id_are_fetched_however_large_they_are(client: Client) -> None:
    client.create_queue("images", kind="pull")
    for number in range(5):
        client.put("images", f"{number}" + "x" * 400_000, id="big")
        (job,) = client.reserve("images")
        assert job.bury("too big")
    assert [(dead.body or b"")[:1] for dead in client.graves("images", "big")] == [b"4", b"3", b"2", b"1", b"0"]


@pytest.mark.parametrize("ident", [".", ".."])
def test_dots_alone_are_an_id_and_no_way_to_another_address(client: Client, ident: str) -> None:
    client.create_queue("images", kind="pull")
    client.put("images", "x", id=ident, delay=60)
    due = in_days(30)
    assert client.reschedule_job("images", ident, at=due) == due
    assert client.cancel_job("images", ident) == "cancelled"
    with pytest.raises(JobNotFound):
        client.cancel_job("images", ident)
    assert client.queue("images").name == "images"


@pytest.mark.parametrize("ident", ["a/b", "a b?c=d#e", "ä", "%2F", "a//b/", ".."])
def test_an_id_may_hold_any_character(client: Client, ident: str) -> None:
    client.put("mail", "x", id=ident, delay=60)
    job = client.job("mail", ident)
    assert job is not None and job.id == ident


def test_jobs_are_moved_cancelled_and_brought_back(client: Client) -> None:
    assert client.reschedule("mail", ["mail-delayed", "nobody"], delay=10).counts == {"moved": 1, "not_waiting": 1}
    assert client.run_now("mail", ["mail-delayed"]).results == [("mail-delayed", "moved")]
    assert client.cancel("mail", ["mail-delayed", "mail-reserved"]).counts == {"cancelled": 1, "stopping": 1}
    assert client.cancel_job("mail", "mail-ready") == "cancelled"
    due = in_days(30)
    assert client.reschedule_job("orders", "orders-delayed", at=due) == due
    assert client.kick("mail", list(client.morgue("mail")), delay=60).results == [("mail-morgue", "kicked")]
    assert client.discard("orders", ["orders-morgue", "nobody"]).counts == {"discarded": 1, "gone": 1}
    assert client.kill_failed("mail").counts == {"killed": 1}
    assert client.kick("mail", all=True, per_second=100).counts == {"kicked": 1}
    assert client.delete_failed("orders").counts == {"deleted": 1}
    assert client.discard("crm", all=True, older_than=3600).counts.get("discarded", 0) == 0
    assert client.run_now("orders", all=True).complete
    assert client.cancel("orders", all=True).counts == {"cancelled": 2}
    with pytest.raises(TypeError, match="ids are a list"):
        client.cancel("mail", "mail-delayed")
    with pytest.raises(JobNotFound):
        client.cancel_job("mail", "nobody")


def test_queues_are_made_limited_paused_resharded_and_deleted(client: Client) -> None:
    made = client.create_queue("images", kind="pull", shards=2, max_length=10)
    assert (made.kind, made.shards, made.limits["max_length"]) == ("pull", 2, 10)
    assert client.limit_queue("images", max_length=None, morgue_max=5).limits["max_length"] is None
    assert client.pause("images", "in").paused == "in"
    assert client.pause("images", "in", seconds=600).paused_until["in"] > datetime.now(UTC)
    assert client.resume("images").paused == ""
    assert client.pause_producers().since is not None
    assert not client.resume_producers().paused and not client.producers().paused
    assert client.reshard("images", 4).shards == 4
    assert {queue.name for queue in client.queues()} == {"mail", "orders", "crm", "images"}
    shown = client.queue("images")
    assert len({(shard.epoch, shard.number) for shard in shown.by_shard}) == len(shown.by_shard) >= 4
    client.delete_queue("images")
    with pytest.raises(QueueNotEmpty):
        client.delete_queue("mail")
    client.delete_queue("mail", force=True)
    with pytest.raises(QueueNotFound):
        client.queue("mail")


def test_workers_are_shown_and_told(client: Client) -> None:
    (worker,) = client.workers()
    assert (worker.name, worker.host, worker.pid, worker.lost) == (WORKER, "web1", 4711, False)
    assert worker.jobs[0].id == "orders-reserved"
    assert client.worker(WORKER).jobs[0].lease_ends is not None
    client.dump_worker(WORKER)
    assert "in pay" in client.dump_of(WORKER)
    client.watch_queue(WORKER, "orders")
    client.ignore_queue(WORKER, "mail")
    client.drain_worker(WORKER)
    client.stop_worker(WORKER)
    with pytest.raises(NotFound):
        client.stop_worker("nobody")


def test_figures_health_and_the_document(client: Client) -> None:
    stats = client.stats()
    assert (stats.total.length, stats.total.morgue_length) == (9, 3)
    assert stats.by_queue["mail"].length == 3
    assert {queue["name"] for queue in client.status()["queues"]} == {"mail", "orders", "crm"}
    assert client.healthy() and client.ready()
    assert client.openapi()["info"]["title"] == "django_delayq"


def test_every_operation_of_the_document_has_its_method(client: Client) -> None:
    """The client is written by hand; this says when the API has grown without it."""
    operations = {one["operationId"] for methods in client.openapi()["paths"].values() for one in methods.values()}
    methods = {
        "list_queues": "queues",
        "create_queue": "create_queue",
        "get_queue": "queue",
        "get_depth": "depth",
        "limit_queue": "limit_queue",
        "delete_queue": "delete_queue",
        "pause_queue": "pause",
        "resume_queue": "resume",
        "reshard_queue": "reshard",
        "get_producers": "producers",
        "pause_producers": "pause_producers",
        "resume_producers": "resume_producers",
        "list_jobs": "jobs",
        "produce_jobs": "put",
        "get_job": "job",
        "cancel_job": "cancel_job",
        "reschedule_job": "reschedule_job",
        "cancel_jobs": "cancel",
        "reschedule_jobs": "reschedule",
        "run_jobs_now": "run_now",
        "kill_failed_jobs": "kill_failed",
        "delete_failed_jobs": "delete_failed",
        "list_morgue": "morgue",
        "get_graves": "graves",
        "kick_jobs": "kick",
        "discard_jobs": "discard",
        "reserve": "reserve",
        "reserve_from_many": "reserve",
        "ack": "ack",
        "fail": "fail",
        "release": "release",
        "bury": "bury",
        "touch": "touch",
        "list_workers": "workers",
        "get_worker": "worker",
        "stop_worker": "stop_worker",
        "watch_queue": "watch_queue",
        "ignore_queue": "ignore_queue",
        "drain_worker": "drain_worker",
        "dump_worker": "dump_worker",
        "get_dump": "dump_of",
        "list_recurring": "recurring",
        "pause_recurring": "pause_recurring",
        "resume_recurring": "resume_recurring",
        "run_recurring_now": "run_recurring_now",
        "get_stats": "stats",
        "get_status": "status",
        "openapi": "openapi",
        "healthz": "healthy",
        "readyz": "ready",
        "list_hours": "hours",
        "get_history": "history",
        "list_runs": "pipeline_runs",
        "get_forecast": "forecast",
    }
    assert operations == {*methods, "metrics", "download_hours"}  # of Prometheus, and of spreadsheets
    assert [name for name in methods.values() if not callable(getattr(client, name, None))] == []


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


def test_counts_that_an_answer_leaves_out_are_zero() -> None:
    job = job_of({"queue": "mail", "id": "5", "key": "k", "task": "", "state": "ready"})
    counts = ("failures", "reserves", "crashes", "releases", "timeouts", "buries", "kicks", "size", "payload_count")
    assert {name: getattr(job, name) for name in counts} == dict.fromkeys(counts, 0)
    assert (job.priority, job.merged, job.quarantined, job.parked, job.cut) == (4, False, False, False, False)
