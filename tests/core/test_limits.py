"""The limiter: permits of limits over all workers, those who wait for them, and what a fault at each step costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, ack
from django_delayq.core.options import Limits
from tests.support.core_figures import Limiter, ask_permits, taken_permits
from tests.support.core_stored import Ask, Block, Grant, LaneNotes, Offer, Place, assert_invariants, permits_key
from tests.support.memory_server import StoppedClock, memory_connection
from tests.support.processes import wait_until


def granted(broker: Broker, jobs: int, total: int = 3, **options: Any) -> Grant:
    (grant,) = ask_permits(broker, {"task:a": total}, jobs, **options).grants
    assert grant is not None
    return grant


def waiting(broker: Broker, place: Place, total: int = 1) -> Block:
    """Let a shard ask for a permit that it does not get."""
    (block,) = ask_permits(broker, {"task:a": total}, 1, place).blocks
    assert block is not None
    return block


def returned(broker: Broker, *permits: bytes) -> list[tuple[str, Place]]:
    """Return permits; return who may ask again."""
    return list(Limiter(broker.registry).call(release=permits).freed)


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(1_700_000_000_000_000)


@pytest.fixture
def timed(clock: StoppedClock) -> Broker:
    """Return a broker of a server whose clock only the test moves."""
    return Broker(memory_connection(clock), prefix="m")


def test_a_call_that_is_sent_twice_gets_the_reply_of_the_first_one(broker: Broker) -> None:
    limits = {"queue:q": Limits(None, None, 1e8, 3), "task:a": Limits(3)}
    ask = Ask.of(("q", 0), Offer(b"\0\1\0\5", "a", 2, 60_000, 0), 2, limits)
    other = granted(broker, 2)
    waiting(broker, ("q", 1), 2)
    limiter = Limiter(broker.registry)
    first = limiter.call([ask], release=other.permits)
    assert limiter.call([ask], release=other.permits) == first
    assert (first.freed, taken_permits(broker, "task:a")) == ([("task:a", ("q", 1))], 2)
    assert started(broker, 9, {"queue:q": limits["queue:q"]}) == 1, "the rate counts the starts once"


def test_permits_end_by_themselves_unless_they_are_renewed(timed: Broker, clock: StoppedClock) -> None:
    one, two = granted(timed, 1, ms=300), granted(timed, 1, ms=300)
    Limiter(timed.registry).call(renew=[(one.permits[0], 60_000)])
    assert waiting(timed, ("q", 0), total=2).ms == 300, "the first permit ends then"
    clock.us += 301_000
    assert taken_permits(timed, "task:a") == 1
    granted(timed, 1, 2)
    returned(timed, *two.permits)
    assert taken_permits(timed, "task:a") == 2, "a permit that has ended is nobody's"


def test_who_waits_asks_again_after_five_seconds_at_most(broker: Broker) -> None:
    granted(broker, 1, 1, ms=600_000)
    assert waiting(broker, ("q", 0)).ms == 5000


def test_a_permit_of_a_job_with_a_long_lease_outlives_those_of_others(broker: Broker) -> None:
    granted(broker, 1, ms=3_600_000)
    granted(broker, 1, ms=1000)
    assert broker.client.pttl(permits_key(broker.prefix, "task:a")) > 3_600_000


def test_a_renewal_books_a_permit_that_redis_has_lost(broker: Broker) -> None:
    grant = granted(broker, 2)
    broker.client.delete(permits_key(broker.prefix, "task:a"))
    Limiter(broker.registry).call(renew=[(permit, 60_000) for permit in grant.permits])
    assert taken_permits(broker, "task:a") == 2


# -- those who wait --------------------------------------------------------------------------------------------------


def test_as_many_shards_may_ask_again_as_permits_are_free_and_the_oldest_first(broker: Broker) -> None:
    held = [granted(broker, 1, 2) for _ in range(2)]
    for number in (7, 3, 5):
        waiting(broker, ("q", number), 2)
    waiting(broker, ("q", 7), 2)
    assert returned(broker, *held[0].permits) == [("task:a", ("q", 7))], "it does not lose its place by asking again"
    assert returned(broker, *held[0].permits) == [], "a return that is repeated frees nothing more"
    waiting_again = granted(broker, 1, 2)
    assert returned(broker, *held[1].permits, *waiting_again.permits) == [("task:a", ("q", 3)), ("task:a", ("q", 5))]


def test_one_shard_of_every_other_queue_may_ask_again_too(broker: Broker) -> None:
    grant = granted(broker, 1, 1)
    for place in (("busy", 0), ("busy", 1), ("idle", 4), ("idle", 5)):
        waiting(broker, place)
    assert returned(broker, *grant.permits) == [("task:a", ("busy", 0)), ("task:a", ("idle", 4))]


def test_nobody_is_told_of_a_permit_that_the_same_call_takes(broker: Broker) -> None:
    grant = granted(broker, 1, 1)
    waiting(broker, ("q", 1))
    ask = Ask.of(("q", 0), Offer(b"\0\1\0\5", "a", 1, 60_000, 0), 1, {"task:a": Limits(1)})
    answer = Limiter(broker.registry).call([ask], release=grant.permits)
    assert (answer.grants, answer.freed) == ([ask.grant], [])


def test_a_freed_permit_goes_to_the_next_shard_if_another_limit_blocks_the_jobs_of_the_first(broker: Broker) -> None:
    of_queue = {"queue:q": 2}
    held = ask_permits(broker, {**of_queue, "task:full": 1}, 1, ("q", 0)).grants[0]
    grant = ask_permits(broker, of_queue, 1, ("q", 0)).grants[0]
    assert held is not None and grant is not None
    for limits, place in (({**of_queue, "task:full": 1}, ("q", 1)), (of_queue, ("q", 2))):
        assert ask_permits(broker, limits, 1, place).grants == [None]
    assert returned(broker, *grant.permits) == [("queue:q", ("q", 1))]

    answer = ask_permits(broker, {**of_queue, "task:full": 1}, 1, ("q", 1))

    assert [block and block.limit for block in answer.blocks] == ["task:full"]
    assert answer.freed == [("queue:q", ("q", 2))], "whose jobs may start"


def test_a_name_of_a_queue_may_contain_a_colon(broker: Broker) -> None:
    grant = granted(broker, 1, 1)
    waiting(broker, ("a:b", 12))
    assert returned(broker, *grant.permits) == [("task:a", ("a:b", 12))]


def test_a_freed_permit_goes_to_the_next_shard_if_nothing_waits_in_the_first(broker: Broker) -> None:
    """Shard 0 has lost its job, shard 9 does not exist, and neither does a queue; shard 1 has one."""
    queue = broker.queue("q", shards=2)
    grant = granted(broker, 1, 1)
    ident = next(str(number) for number in range(99) if queue.shard_of(str(number)) == 1)
    queue.schedule(NewJob(ident, "a"))
    notes = LaneNotes(["a"], most=1)
    (offer,) = queue.reserve(1, 1, worker="w", lanes=notes.pack()).offers
    for place in (("q", 0), ("q", 9), ("gone", 0), ("q", 1)):
        block = waiting(broker, place)
    notes.blocks = [Block("task:a", block.at_us, 5000, offer.lane[1:3])]
    assert queue.reserve(1, 1, worker="w", lanes=notes.pack()).offers == []
    broker.client.delete(broker.wake_key("q"))
    Limiter(broker.registry).give_back(grant.permits)
    assert broker.client.lrange(broker.wake_key("q"), 0, -1) == [b"1"]
    assert len(queue.reserve(1, 1, worker="w", lanes=LaneNotes(["a"], most=1).pack()).offers) == 1
    assert broker.client.exists(f"{{{broker.prefix}}}:waiters:task:a") == 0
    assert broker.known_queue("gone") is None
    assert_invariants(broker)


def test_a_shard_that_is_new_to_this_process_is_told_of_a_freed_permit(broker: Broker) -> None:
    """Another process changed the number of shards; the old layout is believed here for some seconds more."""
    here = Broker(broker.connection, prefix=broker.prefix)
    here.queue("q", shards=1)
    broker.queue("q")
    broker.reshard("q", 2)
    queue, grant = broker.queue("q"), granted(broker, 1, 1)
    for number in range(20):
        queue.schedule(NewJob(str(number), "a"))
    waiting(broker, ("q", queue.numbers[-1]))
    broker.client.delete(broker.wake_key("q"))
    Limiter(here.registry).give_back(grant.permits)
    assert broker.client.lrange(broker.wake_key("q"), 0, -1) == [b"%d" % queue.numbers[-1]]


# -- rates -----------------------------------------------------------------------------------------------------------


def rate(per_second: float, burst: int = 1, total: int | None = None) -> dict[str, Limits]:
    return {"task:a": Limits(total, None, 1e6 / per_second, burst)}


def most_in_a_window(starts: list[float], seconds: float) -> int:
    """Return how many starts the fullest window of this length has."""
    return max(sum(begin <= other < begin + seconds for other in starts) for begin in starts)


def started(broker: Broker, jobs: int, limits: dict[str, Limits]) -> int:
    (grant,) = ask_permits(broker, limits, jobs).grants
    return grant.jobs if grant else 0


def test_a_rate_grants_its_burst_and_then_one_for_each_interval(timed: Broker, clock: StoppedClock) -> None:
    assert started(timed, 9, rate(10, 4)) == 4
    (block,) = ask_permits(timed, rate(10, 4), 1).blocks
    assert block is not None and block.ms == 100, "the next start is possible then"
    clock.us += 99_999
    assert started(timed, 9, rate(10, 4)) == 0
    clock.us += 1
    assert started(timed, 9, rate(10, 4)) == 1
    clock.us += 250_000
    assert started(timed, 9, rate(10, 4)) == 2


@pytest.mark.parametrize("burst", [1, 20])
def test_no_window_has_more_starts_than_the_burst_and_the_rate_allow(
    timed: Broker, clock: StoppedClock, burst: int
) -> None:
    starts, dice, began_us = list[float](), random.Random(burst), clock.us
    for _ in range(300):
        clock.us += dice.randrange(6000)
        starts += [clock.us / 1e6] * started(timed, 3, rate(200, burst))
    for seconds in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert most_in_a_window(starts, seconds) <= burst + 200 * seconds + 1e-6
    if burst > 1:  # who asks late loses no start
        assert len(starts) >= 200 * (clock.us - began_us) / 1e6, "and what it allows is granted"


def test_starts_are_given_back_although_others_were_granted_meanwhile(broker: Broker) -> None:
    grants = [ask_permits(broker, rate(0.01, 5), 2).grants[0] for _ in range(2)]
    Limiter(broker.registry).give_back([], [(grant, grant.permits[:1]) for grant in grants if grant])
    assert started(broker, 9, rate(0.01, 5)) == 3


def test_starts_of_a_limit_that_was_set_meanwhile_are_not_given_back(broker: Broker) -> None:
    limiter = Limiter(broker.registry)
    (first,) = ask_permits(broker, rate(0.01, 3), 3).grants
    assert first is not None
    limiter.set("task:a", Limits(interval_us=1e8, burst=3))
    assert started(broker, 9, rate(0.01, 3)) == 3
    limiter.give_back([], [(first, first.permits)])
    assert started(broker, 9, rate(0.01, 3)) == 0


def test_starts_that_a_limit_of_run_time_counted_are_given_back(broker: Broker) -> None:
    limiter = Limiter(broker.registry)
    limiter.set("task:a", Limits(interval_us=1e8, burst=3))
    (grant,) = ask_permits(broker, {"task:a": Limits()}, 9).grants
    assert grant is not None and grant.jobs == 3
    limiter.give_back([], [(grant, grant.permits[:2])])
    assert started(broker, 9, {"task:a": Limits()}) == 2


def test_the_time_from_a_start_to_the_last_one_is_not_given_back(timed: Broker, clock: StoppedClock) -> None:
    """Without the first of two starts at 0 and 80 ms, the rate would have been unused for the first 80 ms."""
    limits = rate(10, 3)
    (first,) = ask_permits(timed, limits, 1).grants
    clock.us += 80_000
    assert first is not None and started(timed, 1, limits) == 1
    Limiter(timed.registry).call(unused=[(first, first.permits)])
    answer = ask_permits(timed, limits, 9)
    (grant,), (block,) = answer.grants, answer.blocks
    assert (grant and grant.jobs, block and block.ms) == (2, 100)


def test_starts_that_were_over_when_others_were_granted_are_not_given_back(timed: Broker, clock: StoppedClock) -> None:
    (first,) = ask_permits(timed, rate(2, 1), 1).grants
    clock.us += 500_000
    assert first is not None and started(timed, 1, rate(2, 1)) == 1
    Limiter(timed.registry).give_back([], [(first, first.permits)])
    assert started(timed, 1, rate(2, 1)) == 0


def test_starts_of_a_call_that_is_sent_twice_are_given_back_once(broker: Broker) -> None:
    (grant,) = ask_permits(broker, rate(1, 5), 5).grants
    assert grant is not None
    limiter = Limiter(broker.registry)
    for _ in range(2):
        limiter.call(unused=[(grant, grant.permits[:2])])
    assert started(broker, 9, rate(1, 5)) == 2


def test_who_waits_for_a_rate_asks_again_when_starts_are_given_back(broker: Broker) -> None:
    (grant,) = ask_permits(broker, rate(0.01), 1).grants
    assert grant is not None
    (block,) = ask_permits(broker, rate(0.01), 1, ("q", 1)).blocks
    assert block is not None and block.ms > 90_000
    assert Limiter(broker.registry).call(unused=[(grant, grant.permits)]).freed == [("task:a", ("q", 1))]


def test_nothing_is_left_of_a_rate_that_is_not_used(broker: Broker) -> None:
    started(broker, 2, rate(20, 2))
    key = f"{{{broker.prefix}}}:rate:task:a"
    assert 0 < broker.client.pttl(key) <= 101
    wait_until(lambda: not broker.client.exists(key))


# -- pauses ----------------------------------------------------------------------------------------------------------


def test_a_paused_limit_grants_nothing_for_that_time_and_the_longer_pause_counts(
    timed: Broker, clock: StoppedClock
) -> None:
    limiter = Limiter(timed.registry)
    limiter.call(pause=[("task:a", 400)])
    limiter.call(pause=[("task:a", 100)])
    (block,) = ask_permits(timed, {"task:a": Limits()}, 1).blocks
    assert block is not None and block.ms == 400
    assert ask_permits(timed, {"task:b": 1}, 1).blocks == [None]
    clock.us += 400_000
    assert ask_permits(timed, {"task:a": Limits()}, 1).blocks == [None]


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_grant_that_arrives_after_its_permits_begins_no_lease(timed: Broker, clock: StoppedClock) -> None:
    queue = timed.queue("q", shards=1)
    queue.schedule(NewJob("a", "a"))
    notes = LaneNotes(["a"], most=1)
    (offer,) = queue.reserve(0, 1, worker="w", lanes=notes.pack(), ttr_ms=1000).offers
    assert offer.ms == 1100
    clock.us += 101_000  # a lease of a second would now outlast the permit
    late = LaneNotes(["a"], grants=[Grant(offer, 1, ("task:a",))]).pack()
    assert queue.reserve(0, 1, worker="w", lanes=late, ttr_ms=1000).jobs == []


def test_a_permit_is_found_by_who_settles_the_job_of_a_dead_holder(broker: Broker) -> None:
    queue = broker.queue("q", shards=1)
    queue.schedule(NewJob("a", "a"))
    (offer,) = queue.reserve(0, 1, worker="dead", lanes=LaneNotes(["a"], most=1).pack()).offers
    (grant,) = Limiter(broker.registry).call([Ask.of(("q", 0), offer, 1, {"task:a": Limits(1)})]).grants
    assert grant is not None
    queue.reserve(0, 1, worker="dead", lanes=LaneNotes(["a"], grants=[grant]).pack(), ttr_ms=1)
    (lost,) = queue.take_over(wait_until(lambda: queue.expired(0)), "heir")
    assert queue.settle([ack(lost, 1, 2)]) == [True]
    Limiter(broker.registry).give_back([lost.permit])
    assert taken_permits(broker, "task:a") == 0


def test_errors_of_a_return_are_only_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    grant = granted(broker, 1)
    caplog.set_level("INFO")

    def fail(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("gone")

    limiter = Limiter(broker.registry)
    limiter.call = fail  # type: ignore[method-assign,assignment]
    limiter.give_back(grant.permits)
    assert "they run out" in caplog.text
