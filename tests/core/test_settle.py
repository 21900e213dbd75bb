"""Settlements: ack, fail, release and bury with a valid and with a lost lease."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, Job, NewJob, Settlement, ack, bury, fail, release
from tests.support.core_stored import pack, unpack_fields
from tests.support.core_values import STARTED

from .events_stage import read_events
from .stage import LEASE, T0, Stage
from .world import unchanged

VERBS = ("ack", "fail", "release", "bury", "expire")


def expire(job: Job) -> Settlement:
    return Settlement(job, verb="expire", outcome="expired")


def settlement(verb: str, job: object, **options: object) -> Settlement:
    make = {"ack": ack, "fail": fail, "release": release, "bury": bury, "expire": expire}[verb]
    needed: dict[str, object] = {"fail": {"delay_ms": 5}, "bury": {"reason": "why"}}.get(verb, {})
    times = () if verb in ("release", "expire") else (1, 2)
    return make(job, *times, **needed | options)  # type: ignore[operator,no-any-return]


def lost(stage: Stage) -> object:
    """Return a job whose lease was lost to another holder."""
    stage.put("a")
    job = stage.take_one(worker="old")
    stage.released(job)
    stage.take(worker="new")
    return job


# --- whoever lost the lease changes nothing


@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_that_lost_its_lease_changes_nothing(stage: Stage, verb: str) -> None:
    job = lost(stage)
    with unchanged(stage.broker):
        assert stage.settle(settlement(verb, job)) == [False]
    assert stage.counters()["late"] == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_that_is_gone_is_not_settled(stage: Stage, verb: str) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.done(job)
    with unchanged(stage.broker):
        assert stage.settle(settlement(verb, job)) == [False]


@pytest.mark.parametrize("verb", VERBS)
def test_a_new_job_of_the_same_id_is_not_settled_by_the_old_holder(stage: Stage, verb: str) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.done(job)
    stage.put("a", args=b"newer")
    with unchanged(stage.broker):
        assert stage.settle(settlement(verb, job)) == [False]


@pytest.mark.parametrize("verb", VERBS)
def test_settled_twice_in_one_call_it_counts_once(stage: Stage, verb: str) -> None:
    stage.put("a")
    job = stage.take_one()
    assert stage.settle(settlement(verb, job), settlement(verb, job)) == [True, False]


@pytest.mark.parametrize("verb", VERBS)
def test_a_lease_that_ran_out_but_was_not_taken_away_still_counts(stage: Stage, verb: str) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(10 * LEASE)
    assert stage.settle(settlement(verb, job)) == [True]


def test_the_reaper_takes_nothing_whose_lease_was_extended_meanwhile(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.wait(LEASE)
    (found,) = stage.queue.expired(0)
    stage.queue.touch([job])
    with unchanged(stage.broker):
        assert stage.queue.take_over([found], "heir") == []


# --- ack


def test_an_acked_job_leaves_nothing(stage: Stage) -> None:
    stage.put("a", options=b"{}")
    stage.add("m", b"p")
    assert stage.done(*stage.take()) == [True, True]
    assert stage.picture() == {}
    assert stage.shard_is_empty()


def test_an_acked_job_that_had_failed_leaves_nothing(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one())
    stage.done(stage.take_one())
    assert stage.shard_is_empty()


def test_after_an_ack_the_gated_content_is_live_at_its_own_due_time_with_fresh_counters(stage: Stage) -> None:
    stage.put("a", args=b"old")
    stage.failed(stage.take_one())
    job = stage.take_one()
    stage.put("a", at=70, args=b"new")
    stage.done(job)
    assert stage.picture() == {"waiting": ["a +70"]}
    stage.wait(70)
    again = stage.take_one()
    assert (again.args, again.failures, again.reserves) == (b"new", 0, 1)


def test_a_payload_that_came_again_during_its_run_runs_again(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"p")
    stage.done(job)
    assert [payload.data for payload in stage.take_one().payloads] == [b"p"]


# --- fail


def test_a_failed_job_waits_out_its_back_off_and_is_counted(stage: Stage) -> None:
    stage.put("a")
    assert stage.failed(stage.take_one(), 500, error=b'{"message":"oops"}')
    assert stage.picture() == {"waiting": ["a +500"], "failed": ["a x1"]}
    stage.wait(500)
    job = stage.take_one()
    assert (job.failures, job.reserves, job.crashes, job.failed_at_ms) == (1, 2, 0, T0)
    view = stage.broker.inspector.get("q", "a")
    assert view is not None
    assert view.error == {"message": "oops"}


def test_a_crash_counts_as_failure_and_as_crash_and_if_it_was_surely_the_jobs_own_as_that_too(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one(), outcome="crashed")
    job = stage.take_one()
    assert (job.failures, job.crashes, job.own_crashes, job.quarantined) == (1, 1, 0, False)
    stage.failed(job, outcome="crashed", own_crash=True)
    job = stage.take_one()
    assert (job.failures, job.crashes, job.own_crashes) == (2, 2, 1)


def test_a_plain_job_that_fails_gives_way_to_what_was_gated_behind_it(stage: Stage) -> None:
    stage.put("a", args=b"old")
    job = stage.take_one()
    stage.put("a", at=7, args=b"new")
    assert stage.failed(job, 3_600_000)
    assert stage.picture() == {"waiting": ["a +7"]}
    assert stage.counters()["superseded"] == 1


def test_a_merged_job_that_fails_is_united_with_what_was_gated_behind_it(stage: Stage) -> None:
    stage.add("a", b"p", "1")
    job = stage.take_one()
    stage.add("a", b"q", "0", at=70)
    assert stage.failed(job, 3_600_000)
    assert stage.picture() == {"waiting": ["a +70"], "payloads": ["a: q p"], "failed": ["a x1"]}


def test_a_back_off_that_ends_before_the_gated_due_time_counts(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"q", at=70)
    stage.failed(job, 10)
    assert stage.picture()["waiting"] == ["a +10"]


def test_a_payload_that_came_again_is_one_with_the_lower_score_after_a_failure(stage: Stage) -> None:
    stage.add("a", b"p", "5")
    job = stage.take_one()
    stage.add("a", b"p", "3")
    stage.failed(job)
    (payload,) = stage.take_one().payloads
    assert payload.score == "3"


# --- release


def test_a_released_job_is_back_at_its_old_place_and_not_counted(stage: Stage) -> None:
    for ident in "abc":
        stage.put(ident)
    a, *_ = stage.take(1)
    stage.wait(50)
    assert stage.released(a)
    assert stage.picture() == {"waiting": ["a +0", "b +0", "c +0"]}
    job, *_ = stage.take(1)
    assert (job.id, job.failures, job.reserves) == ("a", 0, 2)


def test_a_job_released_with_a_delay_waits_for_it(stage: Stage) -> None:
    stage.put("a")
    stage.released(stage.take_one(), 900)
    assert stage.picture() == {"waiting": ["a +900"]}


def test_a_lost_start_stays_unclear_until_the_next_end_of_a_run(stage: Stage) -> None:
    stage.put("a")
    stage.released(stage.take_one(), unclear=True)
    assert stage.picture() == {"waiting": ["a +0 unclear"]}
    stage.released(stage.take_one())
    assert stage.picture() == {"waiting": ["a +0"]}


def test_the_mark_of_a_known_start_is_that_of_one_run_only(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.queue.touch([job], {(job.id, job.token)})
    assert stage.picture()["reserved"] == [f"a by w until +{LEASE} started"]
    stage.released(job)
    assert stage.take_one().flags & STARTED == 0


# --- bury


def test_a_buried_job_lies_in_the_morgue_with_all_that_is_known(stage: Stage) -> None:
    stage.put("a", args=b"[1]", options=b'{"max_attempts":1}')
    job = stage.take_one()
    stage.wait(5)
    assert stage.buried(job, "exhausted", outcome="exhausted", error_class="E", error=b'{"message":"oops"}')
    assert stage.picture() == {"morgue": ["a exhausted"]}
    view = stage.broker.inspector.get("q", "a")
    assert view is not None
    assert (view.state, view.reason, view.outcome, view.error_class) == ("morgue", "exhausted", "exhausted", "E")
    assert (view.job.key, view.job.args, view.job.options) == (job.key, b"[1]", {"max_attempts": 1})
    assert (view.job.failures, view.job.reserves, view.buried_ms, view.due_ms) == (1, 1, T0 + 5, T0)
    assert view.error == {"message": "oops"}


def test_what_was_gated_behind_a_buried_job_is_live(stage: Stage) -> None:
    stage.put("a", args=b"old")
    job = stage.take_one()
    stage.put("a", at=7, args=b"new")
    stage.buried(job)
    assert stage.picture() == {"waiting": ["a +7"], "morgue": ["a buried"]}


def test_only_the_payloads_of_the_run_are_buried(stage: Stage) -> None:
    stage.add("a", b"p")
    job = stage.take_one()
    stage.add("a", b"p")
    stage.add("a", b"q")
    stage.buried(job)
    assert stage.picture() == {"waiting": ["a +0"], "payloads": ["a: p q"], "morgue": ["a buried"]}
    (grave,) = stage.broker.inspector.graves("q", "a")
    assert [payload.data for payload in grave.payloads] == [b"p"]


def test_each_generation_has_a_grave_of_its_own(stage: Stage) -> None:
    keys = [stage.in_morgue("a") for _ in range(3)]
    assert stage.picture() == {"morgue": ["a buried"] * 3}
    assert [view.job.key for view in stage.broker.inspector.page("q", "morgue").jobs] == keys


def test_a_merged_job_of_many_payloads_buried_twice_has_two_graves(stage: Stage) -> None:
    for number in range(260):
        stage.add("a", b"%03d" % number, str(number))
    stage.buried(stage.take_one())
    stage.buried(stage.take_one())
    graves = stage.broker.inspector.graves("q", "a")
    assert sorted(view.payload_count for view in graves) == [10, 250]


def test_settlements_of_several_verbs_are_answered_in_their_order_also_if_they_are_repeated_with_others(
    stage: Stage,
) -> None:
    for ident in "abcd":
        stage.put(ident)
    a, b, c, d = stage.take()
    assert stage.settle(ack(b, 1, 2)) == [True]
    ends = [fail(a, 1, 2, delay_ms=5), ack(b, 1, 2), bury(c, 1, 2, reason="why"), ack(d, 1, 2)]
    assert stage.queue.settle(ends, seed=b"s" * 16) == [True, False, True, True]
    assert stage.queue.settle([ack(job, 1, 2) for job in (a, b, c, d)], seed=b"s" * 16) == [True, False, True, True]
    assert stage.picture() == {"waiting": ["a +5"], "failed": ["a x1"], "morgue": ["c buried"]}


# --- expire and record


def test_an_expired_job_leaves_nothing_and_is_counted_as_such(stage: Stage) -> None:
    stage.put("a")
    stage.failed(stage.take_one())
    stage.add("m", b"p")
    assert stage.settle(*(expire(job) for job in stage.take())) == [True, True]
    assert stage.shard_is_empty()
    assert stage.counters()["expired"] == 2
    assert [event.outcome for event in read_events(stage.broker, "q", 0)] == ["failed", "expired", "expired"]


def test_an_expired_job_leaves_none_of_the_payloads_that_its_attempt_could_not_take(stage: Stage) -> None:
    for number in range(251):
        stage.add("m", b"%d" % number)
    assert stage.settle(expire(stage.take_one())) == [True]
    assert stage.shard_is_empty()


@pytest.mark.parametrize("merged", [False, True])
def test_what_was_gated_behind_an_expired_job_is_live(stage: Stage, merged: bool) -> None:
    stage.add("a", b"p") if merged else stage.put("a")
    job = stage.take_one()
    stage.add("a", b"q", at=7) if merged else stage.put("a", at=7)
    assert stage.settle(expire(job)) == [True]
    assert stage.picture() == {"waiting": ["a +7"]} | ({"payloads": ["a: q"]} if merged else {})


def test_the_end_of_a_run_that_was_acked_before_is_only_recorded(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.settle(ack(job, 0, 0, event=False))
    stage.put("a", args=b"newer")
    with unchanged(stage.broker):
        failed = Settlement(job, T0, 12, verb="record", outcome="failed", error_class="ValueError")
        assert stage.settle(failed, Settlement(job, T0, 12, verb="record")) == [True, True]
    first, second = read_events(stage.broker, "q", 0)
    assert (first.outcome, first.fields["error"], first.fields["ms"]) == ("failed", "ValueError", "12")
    assert (second.outcome, second.fields["key"]) == ("succeeded", job.key.hex())
    assert stage.counters() == {"created": 2, "reserved": 1, "acked": 1}


# --- a cancelled run


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("merged", [False, True])
def test_a_cancelled_run_ends_for_good_however_it_ends(stage: Stage, verb: str, merged: bool) -> None:
    stage.add("a", b"p") if merged else stage.put("a")
    job = stage.take_one()
    stage.queue.cancel("a")
    assert stage.settle(settlement(verb, job)) == [True]
    assert stage.shard_is_empty()


# --- across shards, and on record


def test_settlements_of_many_shards_and_verbs_are_answered_in_their_order(clocked: Broker) -> None:
    stage = Stage(clocked, shards=4)
    stage.queue.schedule_many(NewJob(f"j{n}", "work") for n in range(600))
    jobs = [job for number in range(4) for job in (*stage.take(250, number=number), *stage.take(250, number=number))]
    late = {job.id for job in jobs[::5]}
    stage.done(*(job for job in jobs if job.id in late))
    verbs = [VERBS[place % len(VERBS)] for place in range(len(jobs))]
    answers = stage.settle(*(settlement(verb, job) for verb, job in zip(verbs, jobs, strict=True)))
    assert answers == [job.id not in late for job in jobs]


def test_each_finished_attempt_leaves_one_event(stage: Stage) -> None:
    stage.put("a")
    job = stage.take_one()
    stage.settle(fail(job, T0, 12, delay_ms=0, outcome="timeout", error_class="JobTimeout"))
    stage.settle(release(stage.take_one()))
    stage.settle(ack(stage.take_one(), T0 + 5, 3))
    first, second = read_events(stage.broker, "q", 0)
    assert (first.queue, first.shard, first.outcome, first.id) == ("q", 0, "timeout", "a")
    assert first.fields == {
        "task": "work",
        "key": job.key.hex(),
        "due": str(T0),
        "started": str(T0),
        "ms": "12",
        "attempt": "1",
        "worker": "w",
        "error": "JobTimeout",
    }
    assert (second.outcome, second.fields["attempt"], second.fields["ms"]) == ("succeeded", "2", "3")
    assert read_events(stage.broker, "q", 0, after=first.position) == [second]


def test_an_unsampled_success_leaves_no_event(stage: Stage) -> None:
    stage.put("a")
    stage.settle(ack(stage.take_one(), 1, 2, event=False))
    assert read_events(stage.broker, "q", 0) == []


def test_the_event_stream_is_capped(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=50)
    queue = small.queue("q")
    for round_ in range(20):
        queue.schedule_many(NewJob(f"j{round_}-{n}", "work") for n in range(50))
        queue.settle([ack(job, 1, 2) for job in queue.reserve(0, 50, worker="w").jobs])
    found = read_events(small, "q", 0)
    assert 50 <= len(found) <= 50 + 100
    assert [event.outcome for event in found[-50:]] == ["succeeded"] * 50, "the newest"


@pytest.mark.parametrize("counter", ["failures", "reserves", "crashes"])
def test_a_counter_that_has_reached_its_largest_value_stays_there(stage: Stage, counter: str) -> None:
    """Otherwise it would restart at 0, and a job that always fails would never be buried."""
    stage.put("a")
    stage.failed(stage.take_one(), outcome="crashed")
    packed = stage.broker.client.hget(stage.key("state"), "a")
    not_reserved, fields = packed[:1], unpack_fields(packed[1:])
    stage.broker.client.hset(stage.key("state"), "a", not_reserved + pack({**fields, counter: 65535}))
    if counter == "failures":
        stage.broker.client.zadd(stage.key("failures"), {"a": 65535})
    stage.failed(stage.take_one(), outcome="crashed")
    job = stage.take_one()
    assert getattr(job, counter) == 65535
    assert stage.buried(job)
    assert getattr(stage.broker.inspector.graves("q", "a")[0].job, counter) == 65535


def test_a_job_that_nobody_could_read_has_not_failed_an_attempt(stage: Stage) -> None:
    stage.put("a")
    assert stage.buried(stage.take_one(), "undecodable", outcome="undecodable")
    (grave,) = stage.broker.inspector.graves("q", "a")
    assert (grave.outcome, grave.job.failures) == ("undecodable", 0)
