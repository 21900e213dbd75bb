"""Worker commands through Redis: stop, drain, dump; and the worker's report of its threads."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker, RedisConfig, connect
from django_delayq.worker.slots import MOST_SHOWN
from tests.support.attempt_stage import BatchAttempt, idle_slots, make_attempt, make_job
from tests.support.duty_stage import AnnouncementReply, command_receiver, prune
from tests.support.supervisor_stage import DYING_CHILD, Program, supervisor_of
from tests.support.worker_stage import (
    DEADLINE,
    Gate,
    config,
    eventually,
    places,
    put,
    put_payload,
    registry_of,
    working,
)

#: s; workers of these tests announce themselves so often
BEAT = 0.05


def tell_all(broker: Broker, word: str, count: int = 1) -> list[str]:
    """Tell every worker, when there are so many."""
    eventually(lambda: len(broker.workers()) >= count)
    names = [worker["name"] for worker in broker.workers()]
    assert [broker.tell_worker(name, word) for name in names] == [True] * len(names)
    return names


# -- inside another program ------------------------------------------------------------------------------------------


def test_a_worker_that_is_told_to_stop_finishes_what_runs_and_is_gone(broker: Broker) -> None:
    gate = Gate()
    put(broker, "work")
    with working(broker, registry_of(gate.work), config(heartbeat=BEAT, threads=1)) as worker:
        gate.wait_begun()
        put(broker, "work", id="later")
        tell_all(broker, "stop")
        eventually(lambda: broker.workers()[0]["stopping"])
        assert not worker.done.is_set()
        gate.open()
        assert worker.done.wait(DEADLINE)
        eventually(lambda: broker.workers() == [])
        assert places(broker) == {"ready": 1}
        assert worker.stop()


def test_a_worker_that_is_told_to_drain_runs_what_it_holds_and_is_gone(broker: Broker) -> None:
    gate = Gate()
    put(broker, "work")
    with working(broker, registry_of(gate.work), config(heartbeat=BEAT, threads=1)):
        gate.wait_begun()
        tell_all(broker, "drain")
        eventually(lambda: not broker.client.keys(f"{{{broker.prefix}}}:commands:*"), "it said that it has done so")
        put(broker, "work", id="later")
        gate.open()
        eventually(lambda: broker.workers() == [])
        assert places(broker) == {"ready": 1}


def test_a_dispatcher_without_a_consumer_stops_too(broker: Broker) -> None:
    with working(broker, registry_of(print), config(heartbeat=BEAT, consumer=False)) as worker:
        tell_all(broker, "stop")
        assert worker.done.wait(DEADLINE)
        eventually(lambda: broker.workers() == [])


def test_a_worker_that_is_told_to_dump_shows_its_stacks_once(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    began, go = threading.Event(), threading.Event()

    def a_name_to_look_for() -> None:
        began.set()
        assert go.wait(DEADLINE)

    put(broker, "a_name_to_look_for")
    with caplog.at_level(logging.WARNING, "django_delayq.worker"):
        with working(broker, registry_of(a_name_to_look_for), config(heartbeat=BEAT)) as worker:
            assert began.wait(DEADLINE)
            before = broker.now_ms()
            (name,) = tell_all(broker, "dump")
            at, text = eventually(lambda: broker.dump_of(name))
            eventually(lambda: not broker.client.keys(f"{{{broker.prefix}}}:commands:*"))
            assert name == worker.name
            assert int(before) <= at <= broker.now_ms()
            assert "thread delayq-slot-" in text
            assert "a_name_to_look_for" in text
            go.set()
        assert sum("stacks of process" in record.getMessage() for record in caplog.records) == 1


# -- once ------------------------------------------------------------------------------------------------------------


def test_what_is_said_again_because_the_answer_got_lost_is_done_once(broker: Broker) -> None:
    done: list[str] = []
    words = command_receiver(broker, "w", done.append)
    assert words.done is None, "what was told before its first announcement was not for it"
    words.carry_out(AnnouncementReply(1.0))
    assert words.done == []
    stop, drain = {"stop": "1"}, {"drain": "2"}
    words.carry_out(AnnouncementReply(2.0, stop))
    words.carry_out(AnnouncementReply(3.0, {**stop, **drain}))
    words.carry_out(AnnouncementReply(3.0, {**stop, **drain}))
    assert done == ["stop", "drain"]
    assert words.done == ["1", "2"]
    words.carry_out(AnnouncementReply(4.0))
    assert words.done == []


def test_stacks_that_redis_does_not_take_are_in_the_log(
    redis_factory: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    box = redis_factory()
    broker = Broker(connect(RedisConfig.parse(f"{box.url}?retries=0")))
    box.stop()
    receiver = command_receiver(broker, "w", lambda word: None)
    receiver.carry_out(AnnouncementReply(1.0, {"dump": "1"}))
    broker.connection.close()
    assert "stacks of process" in caplog.text
    assert "storing the stacks, which the log has too, failed" in caplog.text


def test_a_worker_that_is_lost_takes_along_what_it_was_told(broker: Broker) -> None:
    broker.announce("lost", {})
    broker.tell_worker("lost", "stop")
    minutes_ago = b"%d:{}" % (broker.now_ms() - 90_000)
    broker.client.hset(f"{{{broker.prefix}}}:workers", "lost", minutes_ago)
    prune(broker)
    assert broker.workers() == []
    assert not broker.client.keys(f"{{{broker.prefix}}}:commands:*")


def test_a_worker_with_a_slow_heartbeat_keeps_its_entry_and_its_commands(broker: Broker) -> None:
    slow = json.dumps({"heartbeat_ms": 40_000})
    broker.announce("slow", {})
    broker.tell_worker("slow", "stop")
    broker.client.hset(f"{{{broker.prefix}}}:workers", "slow", f"{broker.now_ms() - 90_000:.0f}:{slow}")
    prune(broker)
    assert [worker["name"] for worker in broker.workers()] == ["slow"]
    assert list(broker.announce("slow", {}).commands) == ["stop"]


# -- as a program ----------------------------------------------------------------------------------------------------


def test_all_processes_of_a_program_that_is_told_to_stop_end_with_their_grace(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    """Each of them is told, as a person does who stops all that he sees; that is not a second signal: not at once."""
    for ident in "ab":
        put(broker, "wait", id=ident)
    running = program(grace=60.0, processes=2, threads=1, heartbeat=0.2)
    running.await_words("begun", 2)
    tell_all(broker, "stop", 2)
    eventually(lambda: [worker["stopping"] for worker in broker.workers()] == [True, True])
    tell_all(broker, "stop", 2)
    eventually(lambda: not broker.client.keys(f"{{{broker.prefix}}}:commands:*"))
    running.client.rpush("release", 1, 1)
    assert running.wait() == 0
    assert sorted(entry[0] for entry in running.trace()) == ["begun", "begun", "ended", "ended"]
    assert (places(broker), broker.workers()) == ({}, [])


def test_all_processes_of_a_program_drain_when_one_is_told_to(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "wait", id="a")
    running = program(processes=2, threads=1, heartbeat=0.2)
    running.await_words("begun")
    eventually(lambda: len(broker.workers()) == 2, "both of them are there")
    (busy,) = eventually(lambda: [worker for worker in broker.workers() if worker["jobs"]])
    assert broker.tell_worker(busy["name"], "drain")
    eventually(lambda: [worker["name"] for worker in broker.workers()] == [busy["name"]], "the idle one is gone")
    put(broker, "note", id="left")
    running.client.rpush("release", 1)
    assert running.wait() == 0
    assert [entry[0] for entry in running.trace()] == ["begun", "ended"]
    assert places(broker) == {"ready": 1}


@pytest.mark.parametrize("word", ["stop", "drain"])
def test_a_child_that_dies_of_what_it_was_told_is_heard_all_the_same(broker: Broker, tmp_path: Path, word: str) -> None:
    births = tmp_path / "births"
    births.touch()
    assert supervisor_of(broker, DYING_CHILD, births, word, name="base").run() == 0
    assert births.read_text() == "base.1\n", "no other one was started in its place"


@pytest.mark.parametrize(("words", "stops"), [(["drain"], False), (["stop", "drain"], True)])
def test_of_two_requests_at_once_the_stronger_one_is_carried_out(
    broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, words: list[str], stops: bool
) -> None:
    births = tmp_path / "births"
    births.touch()
    with caplog.at_level("INFO"):
        assert supervisor_of(broker, DYING_CHILD, births, *words, name="base").run() == 0
    assert ("supervisor base stops" in caplog.text) is stops


def test_a_system_that_refuses_a_process_for_a_moment_does_not_end_the_program(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other processes would die with it, and interrupt their jobs."""
    births = tmp_path / "births"
    births.touch()
    popen, refusals = subprocess.Popen, [BlockingIOError(11, "Resource temporarily unavailable")]

    def start(*args: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert supervisor_of(broker, DYING_CHILD, births, "stop", name="base").run() == 0
    assert births.read_text() == "base.1\n"
    assert refusals == []


def test_a_signal_behind_the_word_stop_does_not_end_a_program_at_once(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "wait", id="a")
    running = program("single", heartbeat=0.2, grace=60.0)
    running.await_words("begun")
    tell_all(broker, "stop")
    eventually(lambda: broker.workers()[0]["stopping"])
    running.signal(signal.SIGTERM)
    threading.Event().wait(0.3)  # it tells nobody that it heard
    running.client.rpush("release", 1)
    assert running.wait() == 0
    assert [entry[0] for entry in running.trace()] == ["begun", "ended"]


# -- what the threads run --------------------------------------------------------------------------------------------


def test_a_worker_says_what_each_of_its_threads_runs(broker: Broker) -> None:
    began, go = threading.Semaphore(0), threading.Event()

    def work() -> None:
        began.release()
        assert go.wait(DEADLINE)

    def sync(batch: dict[str, Any]) -> None:
        work()

    registry = registry_of(work)
    registry.add(next(iter(registry_of(sync, merge=True, batch_size=10))))
    for ident in "abc":
        put_payload(broker, "sync", ident, 1)
    put(broker, "work", id="plain", queue="other")
    before = broker.now_ms()
    with working(broker, registry, config(heartbeat=BEAT, queues=("default", "other"))):
        for _ in range(2):
            assert began.acquire(timeout=DEADLINE)
        (worker,) = eventually(lambda: [one for one in broker.workers() if len(one["jobs"]) == 2])
        now = broker.now_ms()
        go.set()
        said = sorted((job["queue"], job["task"], job["ids"]) for job in worker["jobs"])
        assert said == [("default", "sync", 3), ("other", "work", 1)]
        assert {job["id"] for job in worker["jobs"]} <= {"a", "b", "c", "plain"}
        assert len({job["slot"] for job in worker["jobs"]}) == 2
        assert all(before - 50 <= job["started_ms"] <= now for job in worker["jobs"])
        eventually(lambda: broker.workers()[0]["jobs"] == [])


def test_runs_that_end_while_they_are_listed_do_no_harm_and_not_all_of_a_thousand_are_shown() -> None:
    slots = idle_slots(1000)
    attempt = make_attempt(make_job(id="x"), started=time.monotonic())
    slots.running[:] = [attempt] * 1000
    assert [job["slot"] for job in slots.jobs()] == list(range(MOST_SHOWN))
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for slot in range(1000):
                slots.running[slot] = None
            slots.running[:] = [BatchAttempt([make_attempt(), make_attempt()])] * 1000

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert all(job["ids"] in (1, 2) and job["started_ms"] > 0 for job in slots.jobs())
    finally:
        stop.set()
        thread.join()


def test_a_run_that_was_just_taken_begins_now() -> None:
    slots = idle_slots(1)
    slots.running[0] = make_attempt()
    (job,) = slots.jobs()
    assert abs(job["started_ms"] - time.time() * 1000) < 5000
