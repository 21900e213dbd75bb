"""Reserving, and the combined settle_reserve."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_delayq.core import Broker, NewJob, ack, fail
from tests.support.core_values import new_key

from .stage import LEASE, T0, Stage
from .world import unchanged


def test_a_due_job_is_handed_out_under_a_lease(stage: Stage) -> None:
    key = new_key()
    stage.put("a", args=b"[1]", options=b'{"timeout":3}', key=key, priority=2)
    batch = stage.batch(worker="me")
    (job,) = batch.jobs
    assert (job.id, job.task, job.args, job.options, job.key) == ("a", "work", b"[1]", {"timeout": 3}, key)
    assert (job.priority, job.due_ms, job.reserves, job.failures, job.worker) == (2, T0, 1, 0, "me")
    assert job.token == T0 * 1000
    assert batch.now_ms == T0
    assert batch.next_due_ms is None
    assert stage.picture() == {"reserved": [f"a by me until +{LEASE}"]}


def test_nothing_is_handed_out_before_its_due_time(stage: Stage) -> None:
    stage.put("a", delay_ms=10)
    stage.wait(9.999)
    with unchanged(stage.broker):
        batch = stage.batch()
    assert not batch.jobs
    assert batch.next_due_ms is not None
    assert 0 < batch.next_due_ms <= 0.0015
    stage.wait(0.001)
    assert [job.id for job in stage.take()] == ["a"]


def test_the_next_due_time_of_the_shard_is_told(stage: Stage) -> None:
    assert stage.batch().next_due_ms is None
    for ident, due in (("a", 0), ("b", 0), ("c", 700)):
        stage.put(ident, at=due)
    assert stage.batch(1).next_due_ms == 0
    assert stage.batch(1).next_due_ms == 700


def test_the_more_urgent_class_comes_first_and_the_earlier_due_within_it(stage: Stage) -> None:
    stage.wait(10)
    for ident, due, priority in (("d", 1, 7), ("b", 5, 0), ("c", 0, 4), ("a", 3, 0)):
        stage.put(ident, at=due, priority=priority)
    assert [job.id for job in stage.take(3)] == ["a", "b", "c"]
    assert [job.id for job in stage.take(3)] == ["d"]


def test_an_urgent_job_that_is_not_due_does_not_hold_up_a_due_one(stage: Stage) -> None:
    stage.put("urgent", at=100, priority=0)
    stage.put("later", at=0, priority=7)
    assert [job.id for job in stage.take()] == ["later"]


def test_the_limit_holds_and_all_jobs_of_a_batch_share_a_token(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(300))
    first, second = stage.take(5), stage.take(1000)
    assert (len(first), len(second)) == (5, 250)
    assert len({job.token for job in first}) == 1
    assert second[0].token > first[0].token


def test_tokens_only_grow_even_when_the_clock_stands_still_or_steps_back(stage: Stage) -> None:
    tokens = []
    for step in (0, 0, -5, -60_000, 0):
        stage.wait(step)
        stage.put("a", at=-120_000)
        job = stage.take_one()
        tokens.append(job.token)
        stage.done(job)
    assert tokens == sorted(set(tokens))


def test_a_limit_of_zero_only_looks(stage: Stage) -> None:
    stage.put("a")
    with unchanged(stage.broker):
        assert stage.batch(0).next_due_ms == 0


def test_sent_again_the_call_hands_out_the_same_jobs(stage: Stage) -> None:
    stage.put("a")
    stage.add("m", b"p")
    first = stage.batch(request=b"r" * 16)
    stage.put("b")
    with unchanged(stage.broker):
        again = stage.batch(request=b"r" * 16)
    assert sorted(again.jobs, key=str) == sorted(first.jobs, key=str)


@pytest.mark.parametrize("ttr_ms", [None, 60_000])
def test_sent_again_the_call_hands_out_under_a_lease_that_begins_then(stage: Stage, ttr_ms: int | None) -> None:
    stage.put("a")
    stage.batch(request=b"r" * 16, ttr_ms=ttr_ms)
    stage.wait(10_000)
    stage.batch(request=b"r" * 16, ttr_ms=ttr_ms)
    (held,) = stage.queue.leases(0)
    assert held.deadline_ms == T0 + 10_000 + (ttr_ms or LEASE)


def test_sent_again_after_the_lease_a_job_is_held_anew_unless_it_went_to_another(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    stage.batch(1, request=b"r" * 16)
    stage.wait(LEASE)
    assert [job.id for job in stage.batch(1, request=b"r" * 16).jobs] == ["a"]
    assert stage.queue.expired(0) == []
    stage.wait(LEASE)
    stage.settle(fail(*stage.take_lost(), 0, 0, delay_ms=0, outcome="crashed"))
    assert stage.take(worker="other")
    assert stage.batch(1, request=b"r" * 16).jobs == []


def test_sent_again_the_call_leaves_out_what_was_settled_meanwhile(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    first, _ = stage.batch(request=b"r" * 16).jobs
    stage.done(first)
    assert [job.id for job in stage.batch(request=b"r" * 16).jobs] == ["b"]


def test_many_consumers_never_get_the_same_job(broker: Broker) -> None:
    queue = broker.queue("q")
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(2000))

    def consume(number: int) -> list[str]:
        mine: list[str] = []
        while jobs := queue.reserve(0, 7, worker=f"w{number}").jobs:
            mine += [job.id for job in jobs]
            assert all(queue.settle([ack(job, 0, 0) for job in jobs]))
        return mine

    with ThreadPoolExecutor(8) as pool:
        found = [ident for mine in pool.map(consume, range(8)) for ident in mine]
    assert sorted(found) == sorted(f"j{n}" for n in range(2000))


def test_a_run_takes_at_most_250_payloads_and_the_rest_is_a_job_of_its_own(stage: Stage) -> None:
    for number in range(260):
        stage.add("a", b"%03d" % number, str(number))
    job = stage.take_one()
    assert [payload.data for payload in job.payloads] == [b"%03d" % number for number in range(250)]
    stage.done(job)
    rest = stage.take_one()
    assert [payload.data for payload in rest.payloads] == [b"%03d" % number for number in range(250, 260)]
    # The time of its creation stays, and nobody waits to hear of its end.
    digest = hashlib.sha1(job.key, usedforsecurity=False).digest()
    assert rest.key == bytes((job.key[0] & 0x7F,)) + job.key[1:7] + digest[7:16]
    stage.done(rest)
    assert stage.shard_is_empty()


def test_done_jobs_leave_and_due_ones_come_in_one_move(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    first = stage.take(2)
    counted, batch = stage.queue.settle_reserve(0, [ack(job, 0, 0) for job in first], 5, worker="w")
    assert counted == [True, True]
    assert [job.id for job in batch.jobs] == ["c"]
    assert stage.picture() == {"reserved": [f"c by w until +{LEASE}"]}


def test_the_fused_move_answers_for_each_ack_in_order(stage: Stage) -> None:
    for ident in "abcd":
        stage.put(ident)
    a, b, c = stage.take(3)
    stage.done(b)
    acks = [ack(a, 0, 0), ack(b, 0, 0), ack(c, 0, 0), ack(a, 0, 0)]
    counted, batch = stage.queue.settle_reserve(0, acks, 5, worker="w")
    assert counted == [True, False, True, False]
    assert [job.id for job in batch.jobs] == ["d"]


def test_the_fused_move_sent_again_neither_settles_nor_reserves_again(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.put("a", args=b"newer")
    first = stage.queue.settle_reserve(0, [ack(job, 0, 0)], 5, worker="w", request=b"r" * 16)
    with unchanged(stage.broker):
        again = stage.queue.settle_reserve(0, [ack(job, 0, 0)], 5, worker="w", request=b"r" * 16)
    assert again == first
    assert [job.args for job in again[1].jobs] == [b"newer"]


@pytest.mark.parametrize(
    "options", [b'{"expires', b'["expires_ms"]', b'{"expires_ms":"soon"}', b"[" * 60_000 + b'"expires']
)
def test_a_limit_that_cannot_be_read_holds_up_no_other_job(stage: Stage, options: bytes) -> None:
    """The worker reports the malformed limit when the job is due, whatever wrote it."""
    stage.put("a", options=options)
    stage.put("b")
    assert [job.id for job in stage.take()] == ["a", "b"]


def test_sent_again_the_call_hands_out_nothing_of_another_worker(stage: Stage) -> None:
    stage.put("a")
    stage.put("b")
    first = stage.batch(1, worker="one", request=b"1" * 16)
    second = stage.batch(1, worker="two", request=b"2" * 16)
    assert [job.id for job in stage.batch(1, worker="one", request=b"1" * 16).jobs] == ["a"]
    assert [job.id for job in stage.batch(1, worker="two", request=b"2" * 16).jobs] == ["b"]
    assert first.jobs[0].token != second.jobs[0].token


def test_a_batch_of_large_jobs_ends_where_a_reply_can_bear_no_more(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number:03d}", "work", args=b"x" * 100_000) for number in range(100))
    first = stage.take()
    size = sum(len(job.args) for job in first)
    assert 4 * 1024 * 1024 < size < 8 * 1024 * 1024
    assert [job.id for job in first + stage.take()] == [f"j{number:03d}" for number in range(100)]


def test_the_merged_jobs_of_a_batch_share_what_a_reply_can_bear(stage: Stage) -> None:
    for ident in "abc":
        for number in range(60):
            stage.add(ident, b"%03d" % number + b"x" * 100_000, str(number))
    found: dict[str, list[int]] = {}
    sizes = []
    while jobs := stage.take():
        sizes.append(sum(len(payload.data) for job in jobs for payload in job.payloads))
        for job in jobs:
            found.setdefault(job.id, []).extend(int(payload.data[:3]) for payload in job.payloads)
        stage.done(*jobs)
    assert max(sizes) < 12 * 1024 * 1024, "as if each of them had a reply of its own"
    assert found == {ident: list(range(60)) for ident in "abc"}
