"""Merged jobs whose attempts are used up: only the oldest payload is buried."""

from __future__ import annotations

from django_delayq.core import NewJob, Payload
from tests.support.core_values import new_key

from .stage import Stage, data_of, oldest_buried

HOURS_45 = 45 * 3_600_000


def test_only_the_oldest_payload_is_buried_and_the_rest_is_tried_afresh(stage: Stage) -> None:
    for data, score in ((b"q", "2"), (b"p", "1"), (b"r", "3")):
        stage.add("a", data, score)
    stage.failed(stage.take_one())
    job = stage.take_one()
    stage.wait(50)
    assert oldest_buried(stage, job)
    assert stage.picture() == {"waiting": ["a +50"], "payloads": ["a: q r"], "morgue": ["a exhausted"]}
    (grave,) = stage.broker.inspector.graves("q", "a")
    assert [payload.data for payload in grave.payloads] == [b"p"]
    assert grave.job.key == job.payloads[0].key
    assert (grave.job.failures, grave.job.reserves) == (2, 2)
    rest = stage.take_one()
    assert (rest.failures, rest.reserves) == (0, 1)
    assert rest.key not in (job.key, grave.job.key)


def test_one_payload_after_the_other_goes_into_a_grave_of_its_own(stage: Stage) -> None:
    for data in (b"p", b"q", b"r"):
        stage.add("a", data)
    keys: list[bytes] = []
    for _ in range(3):
        job = stage.take_one()
        keys.append(job.payloads[0].key)
        oldest_buried(stage, job)
    assert stage.picture() == {"morgue": ["a exhausted"] * 3}
    graves = stage.broker.inspector.graves("q", "a")
    assert sorted(grave.job.key for grave in graves) == sorted(keys)
    assert sorted(grave.payloads[0].data for grave in graves) == [b"p", b"q", b"r"]


def test_a_buried_payload_that_is_kicked_is_a_job_with_the_key_of_the_payload(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    oldest_buried(stage, job)
    assert stage.queue.kick("a") == "kicked"
    again = stage.take_one()
    assert (again.key, data_of(again), again.failures) == (job.payloads[0].key, [b"p"], 0)


def test_a_buried_payload_that_is_kicked_joins_those_that_live(stage: Stage) -> None:
    for data in (b"p", b"q"):
        stage.add("a", data)
    oldest_buried(stage, stage.take_one())
    assert stage.queue.kick("a") == "kicked"
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: p q"]}


def test_the_rest_is_united_with_what_was_gated_and_due_now(stage: Stage) -> None:
    for data, score in ((b"p", "1"), (b"q", "5")):
        stage.add("a", data, score)
    job = stage.take_one()
    for data, score in ((b"p", "9"), (b"q", "4"), (b"r", "0")):
        stage.add("a", data, score, at=700, priority=1)
    stage.wait(50)
    oldest_buried(stage, job)
    assert stage.picture() == {"waiting": ["a +50 p1"], "payloads": ["a: r q p"], "morgue": ["a exhausted"]}
    assert [payload.score for payload in stage.take_one().payloads] == ["0", "4", "9"]


def test_when_nothing_is_left_of_the_run_what_was_gated_has_its_own_due_time(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"q", at=700)
    oldest_buried(stage, job)
    assert stage.picture() == {"waiting": ["a +700"], "payloads": ["a: q"], "morgue": ["a exhausted"]}


def test_a_plain_job_is_buried_as_a_whole(stage: Stage) -> None:
    stage.put("a", args=b"x")
    oldest_buried(stage, stage.take_one())
    assert stage.picture() == {"morgue": ["a exhausted"]}


def test_a_cancelled_run_buries_nothing(stage: Stage) -> None:
    for data in (b"p", b"q"):
        stage.add("a", data)
    job = stage.take_one()
    stage.queue.cancel("a")
    assert oldest_buried(stage, job)
    assert stage.shard_is_empty()


def test_what_was_too_much_for_one_run_is_tried_too(stage: Stage) -> None:
    stage.queue.schedule_many(
        NewJob("a", "sync", on_conflict="merge", due_policy="keep", payload=Payload(b"%03d" % n, str(n), new_key()))
        for n in range(260)
    )
    oldest_buried(stage, stage.take_one())
    assert data_of(stage.take_one()) == [b"%03d" % n for n in range(1, 251)]


def test_what_was_too_much_for_one_run_does_not_wait_for_what_came_during_it(stage: Stage) -> None:
    stage.queue.schedule_many(
        NewJob("a", "sync", on_conflict="merge", due_policy="keep", payload=Payload(b"%03d" % n, str(n), new_key()))
        for n in range(260)
    )
    job = stage.take_one()
    stage.add("a", b"later", "999", at=3_600_000)
    stage.done(job)
    assert data_of(stage.take_one()) == [*(b"%03d" % n for n in range(250, 260)), b"later"]
