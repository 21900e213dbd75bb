"""Reserve of a buried job by its id; beanstalkd's ``reserve-job`` is the model."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_delayq.core import Job
from tests.support.core_calls import send_twice
from tests.support.core_stored import unpack_fields

from .epochs_stage import epoch_of, reshard
from .stage import T0, Stage, data_of

pytestmark = pytest.mark.usefixtures("impatient")


def take(stage: Stage, ident: str, *, worker: str = "w", **options: Any) -> Job | None:
    batch = stage.queue.reserve_id(ident, worker=worker, buried=True, **options)
    return batch.jobs[0] if batch.jobs else None


def test_a_buried_job_is_reserved_by_its_id_with_its_failures_reset(stage: Stage) -> None:
    stage.put("a", at=0, args=b"[9]")
    stage.failed(stage.take_one())
    job = stage.take_one()
    stage.buried(job)
    assert stage.queue.reserve_id("a", worker="w").jobs == [], "only who wants a buried one gets it"
    again = take(stage, "a", ttr_ms=2000)
    assert again is not None
    assert (again.key, again.args, again.failures, again.counts.buries, again.counts.kicks) == (
        job.key,
        b"[9]",
        0,
        1,
        1,
    )
    assert stage.picture() == {"reserved": ["a by w until +2000"]}
    assert take(stage, "a") is None, "it is held"
    assert stage.done(again) == [True]
    assert stage.picture() == {}


def test_a_live_job_is_meant_before_a_buried_one(stage: Stage) -> None:
    key = stage.in_morgue("a")
    stage.put("a", at=60_000)
    assert take(stage, "a") is None, "it is not due"
    job = take(stage, "a", early=True)
    assert job is not None and job.key != key
    assert stage.picture() == {"reserved": [f"a by w until +{15_000}"], "morgue": ["a buried"]}


def test_of_several_buried_jobs_the_youngest_is_meant(stage: Stage) -> None:
    keys = []
    for _ in range(2):
        keys.append(stage.in_morgue("a"))
        stage.wait(1)
    job = take(stage, "a")
    assert job is not None and job.key == keys[1]
    assert stage.picture()["morgue"] == ["a buried"]


def test_a_repeated_call_gets_the_same_job_and_takes_no_second_one(stage: Stage) -> None:
    for _ in range(2):
        stage.in_morgue("a")
        stage.wait(1)
    with send_twice(stage.broker) as replies:
        assert take(stage, "a") is not None
    assert replies
    assert all(unpack_fields(first) == unpack_fields(again) for first, again in replies)
    assert stage.picture() == {
        "reserved": [f"a by w until {stage.us / 1000 - T0 + 15_000:+.0f}"],
        "morgue": ["a buried"],
    }


def test_a_paused_queue_leaves_it_in_the_morgue(stage: Stage) -> None:
    stage.in_morgue("a")
    stage.broker.pause("q", "out")
    assert take(stage, "a") is None
    assert stage.picture() == {"morgue": ["a buried"]}


def test_the_payloads_of_a_buried_merged_job_come_with_it(stage: Stage) -> None:
    stage.add("a", b"one", "1")
    stage.add("a", b"two", "2")
    stage.buried(stage.take_one())
    job = take(stage, "a")
    assert job is not None and data_of(job) == [b"one", b"two"]
    assert stage.done(job) == [True]
    assert stage.picture() == {}


def test_a_durable_job_is_marked_live_again(stage: Stage) -> None:
    stage.durable = True
    key = stage.in_morgue("a")
    assert stage.taken_marks() == {key: "buried"}
    assert take(stage, "a") is not None
    assert stage.taken_marks() == {key: "live"}


def test_a_record_of_an_old_epoch_comes_back_in_the_new_one(full: Stage) -> None:
    reshard(full, 5)
    job = take(full, "dead")
    assert job is not None
    assert (epoch_of(full.queue, "dead"), job.args) == (1, b"[9]")
    assert "morgue" not in full.picture()


def test_a_job_that_waits_in_an_old_epoch_is_no_reason_to_kick(full: Stage) -> None:
    full.in_morgue("both")
    full.put("both", at=800_000)
    reshard(full, 5)
    assert take(full, "both") is None
    assert "both buried" in full.picture()["morgue"]


def test_two_callers_never_get_the_same_job(stage: Stage) -> None:
    for number in range(20):
        stage.in_morgue(f"a{number}")
    found: list[str] = []

    def run(worker: str) -> None:
        for number in range(20):
            job = take(stage, f"a{number}", worker=worker)
            if job is not None:
                found.append(job.id)

    threads = [threading.Thread(target=run, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"a{number}" for number in range(20))
