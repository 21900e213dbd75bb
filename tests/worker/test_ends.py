"""Signals and hooks for ended jobs: called at least once, whatever ends the job and whichever process settles it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_delayq.core import Broker, Bury, Settlement
from tests.support.attempt_stage import ATTEMPT_LOGGER
from tests.support.core_stored import backdate_begun
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import events_of, eventually, places, put, put_payload, registry_of, run_dry

ENDS = "job_failed,job_buried"


def outcomes(broker: Broker) -> list[tuple[str, str]]:
    """(id, outcome) of all events of the queue, in order."""
    return [(event.id, event.outcome) for event in events_of(broker)]


# --- settled by the supervisor


def test_a_crash_is_notified_by_the_supervisor(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "crash_once", id="a")
    running = program(threads=1, listen=ENDS)
    eventually(lambda: places(broker) == {})
    assert running.ends() == ["job_failed:a:crashed:Crashed"]


def test_poison_and_an_ignored_time_limit_are_exhausted_ends(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "always_exit", id="poison", options=b'{"max_attempts":1}')
    put(broker, "stubborn", id="stubborn", delay_ms=1000)
    running = program(threads=1, listen=ENDS, grace=0.5, patience=0.2)
    eventually(lambda: places(broker) == {"morgue": 2})
    assert running.ends() == [
        "on_exhausted:poison:Crashed:always_exit",
        "job_buried:poison:poison:Crashed",
        "on_exhausted:stubborn:JobTimeout:stubborn",
        "job_buried:stubborn:exhausted:JobTimeout",
    ]


def test_the_ends_of_lost_attempts_are_logged_and_stored_as_those_of_any_other(
    program: Callable[..., Program], broker: Broker, tmp_path: Path
) -> None:
    put(broker, "always_exit", id="poison", options=b'{"max_attempts":1}')
    put(broker, "crash_once", id="once", delay_ms=500)
    put(broker, "stubborn", id="stubborn", delay_ms=1500)
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        program(threads=1, grace=0.5, patience=0.2, stderr=stderr)
        eventually(lambda: places(broker) == {"morgue": 2}, "the ends of all three", seconds=60)
        eventually(lambda: "task stubborn went to the morgue" in log.read_text(), "the line that follows the end")
    text = log.read_text().replace(ATTEMPT_LOGGER, "attempts")
    assert "ERROR attempts poison: task always_exit went to the morgue (poison) after attempt 1: Crashed: ended" in text
    assert "WARNING attempts once: attempt 1 of task crash_once failed (crashed), the next one in 0.0 s" in text
    assert "ERROR attempts stubborn: task stubborn ignores its time limit" in text
    end = "ERROR attempts stubborn: task stubborn went to the morgue (exhausted) after attempt 1: JobTimeout: "
    assert end in text and "in stubborn\n    time.sleep(60)" in text.partition(end)[2], "where it was at its limit"
    view = broker.inspector.get("default", "stubborn")
    assert view is not None and "in stubborn\n    time.sleep(60)" in json.loads(view.job.error)["traceback"]


def test_of_a_job_that_was_acked_before_its_process_was_killed_there_is_an_end(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put(broker, "wait_early", id="once")
    running = program(threads=1, listen=ENDS)
    ((_, _, _, pid),) = running.await_words("begun")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: running.ends() == ["on_exhausted:once:Crashed:wait_early", "job_failed:once:crashed:Crashed"])
    eventually(lambda: outcomes(broker) == [("once", "crashed")])
    counters = broker.inspector.counts("default").counters
    assert (counters.get("acked", 0), counters.get("crashed", 0)) == (0, 1)


# --- settled by a dispatcher


def lose(broker: Broker, ident: str, task: str = "note", **options: Any) -> None:
    """A job whose run began under a lease that is over, and whose holder is gone."""
    put(broker, task, id=ident, options=b'{"max_attempts":1}', **options)
    (job,) = broker.queue("default").reserve(0, 1, worker="gone", ttr_ms=1, started=True).jobs
    eventually(lambda: [one.id for one in broker.queue("default").expired(0)].count(job.id))


def test_a_lease_that_ran_out_is_notified_by_one_of_several_dispatchers(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    for ident in ("a", "b"):
        lose(broker, ident)
    first, _ = (program("single", listen=ENDS, consumer=False) for _ in range(2))
    eventually(lambda: places(broker) == {"morgue": 2})
    assert sorted(first.ends()) == [
        "job_buried:a:poison:Crashed",
        "job_buried:b:poison:Crashed",
        "on_exhausted:a:Crashed:note",
        "on_exhausted:b:Crashed:note",
    ]


def test_an_end_whose_dispatcher_died_before_it_was_stored_is_notified_by_the_next_one(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    lose(broker, "a")
    broker.client.rpush("deadly", 1)
    first = program("single", listen=ENDS, consumer=False, lease=1000)
    assert first.wait() == 9
    assert places(broker) == {"reserved": 1}
    second = program("single", listen=ENDS, consumer=False, lease=1000)
    eventually(lambda: places(broker) == {"morgue": 1})
    assert second.ends() == ["on_exhausted:a:Crashed:note", "job_buried:a:poison:Crashed"] * 2


def test_a_lost_merged_job_is_notified_with_its_payloads(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    put_payload(broker, "explode", "a", "fine", options=b'{"max_attempts":1}')
    broker.queue("default").reserve(0, 1, worker="gone", ttr_ms=1, started=True)
    running = program("single", listen=ENDS, consumer=False)
    eventually(lambda: places(broker) == {"morgue": 1})
    assert running.ends() == ["on_exhausted:a:Crashed:explode,fine", "job_buried:a:poison:Crashed"]


def test_what_a_lost_machine_had_begun_after_an_early_ack_is_found_by_a_dispatcher(
    program: Callable[..., Program],
    broker: Broker,
) -> None:
    queue = broker.queue("default")
    put(broker, "wait_early", id="once")
    (job,) = queue.reserve(0, 1, worker="gone").jobs
    assert queue.settle([Settlement(job, verb="ack_early", event=False)]) == [True]
    (begun,) = queue.begun(0)
    assert begun.id == "once"
    backdate_begun(queue, 0)
    running = program("single", listen=ENDS, consumer=False)
    eventually(lambda: queue.begun(0) == [])
    assert outcomes(broker) == [("once", "crashed")]
    assert running.ends() == ["on_exhausted:once:Crashed:wait_early", "job_failed:once:crashed:Crashed"]


# --- settled by the worker


def test_a_reason_that_no_encoding_has_does_not_keep_an_end_from_being_stored(broker: Broker) -> None:
    def work() -> None:
        raise Bury("lone \ud800 surrogate")

    put(broker, "work", id="a")
    run_dry(broker, registry_of(work), dispatcher=False)
    view = broker.inspector.get("default", "a")
    assert view is not None and view.state == "morgue" and view.reason.startswith("lone ")
