"""Durable jobs: sent twice by independent senders they are stored once, and every end is told outside Redis.

Which end is told after which act, and who is known, is compared with the model in ``test_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from django_delayq.core import NewJob, Payload, bury, new_id
from tests.support.core_calls import ScriptCall, send_twice, watch_calls
from tests.support.core_stored import MAX_SHARDS, digest
from tests.support.core_values import CompletionMark, is_durable, new_key

from .bulk_stage import kill_failed
from .epochs_stage import Killed, clocks, epoch_of, other, reshard, take_all
from .stage import T0, Stage
from .world import unchanged

KEY = b"\x80" + b"k" * 15
JOB = NewJob("a", "work", key=KEY)
pytestmark = pytest.mark.usefixtures("impatient")


def put(stage: Stage, ident: str = "a", *, key: bytes = KEY, **options: object) -> str:
    return stage.put(ident, key=key, **options)  # type: ignore[arg-type]


def is_known(stage: Stage, ident: str = "a", key: bytes = KEY) -> bool:
    """Return True if the generation, or the payload, is known."""
    return stage.queue.knows([(ident, key, digest(b"p"))])[0]


# -- sent twice ------------------------------------------------------------------------------------------------------


def test_a_generation_that_is_here_is_not_started_again(stage: Stage) -> None:
    put(stage)
    counters, window = stage.counters(), stage.broker.client.llen(stage.key("window"))
    with unchanged(stage.broker):
        assert put(stage, args=b"[2]", delay_ms=5) == "known"
        assert stage.queue.schedule_many([JOB]) == ["known"]
        assert stage.queue.count_many([JOB]) == {"known": 1}
        assert is_known(stage)
    assert stage.counters() == counters
    assert stage.broker.client.llen(stage.key("window")) == window, "it keeps no shard from its end"


def test_a_durable_job_with_a_new_id_is_looked_for_too(stage: Stage) -> None:
    """The process that generated the id may have died, and another one sends the job."""
    new = NewJob(new_id(), "work", key=new_key(durable=True), fresh=True)
    stage.put("first")
    assert stage.queue.schedule(new) == "created"
    assert stage.queue.schedule(new) == "known"
    reshard(stage, 3)
    assert stage.queue.schedule(new) == "known"
    assert stage.queue.schedule_many([new]) == ["known"]
    assert epoch_of(stage.queue, new.id) == 0


def test_many_are_asked_for_at_once(stage: Stage) -> None:
    keys = [new_key(durable=True) for _ in range(600)]
    stage.queue.schedule_many(NewJob(f"j{n}", "work", key=key) for n, key in enumerate(keys) if n % 2)
    assert stage.queue.knows([(f"j{n}", key) for n, key in enumerate(keys)]) == [bool(n % 2) for n in range(600)]
    assert stage.queue.knows([]) == []


def test_a_call_that_comes_too_late_changes_nothing(stage: Stage) -> None:
    stage.put("old", at=1000)
    with unchanged(stage.broker):
        assert stage.queue.schedule(NewJob("a", "work"), not_after_ms=T0 - 1) == "late"
        news = [NewJob("old", "work", key=KEY), NewJob("b", "sync", payload=Payload(b"p", "1", KEY))]
        assert stage.queue.schedule_many(news, not_after_ms=T0 - 0.5) == ["late", "late"]
        assert stage.queue.count_many(news, not_after_ms=T0 - 1) == {"late": 2}
        assert stage.queue.cancel("old", not_after_ms=T0 - 1) == "late"
    assert stage.counters() == {"created": 1}
    assert stage.queue.schedule(NewJob("a", "work"), not_after_ms=T0) == "created"
    assert stage.queue.cancel("old", not_after_ms=T0) == "cancelled"


def test_a_call_that_is_sent_again_after_its_deadline_gets_the_reply_that_was_lost(stage: Stage) -> None:
    """The reply shows the caller that the first call was in time."""
    with send_twice(stage.broker, between=lambda: stage.wait(5000)) as replies:
        assert stage.queue.schedule(JOB, not_after_ms=T0 + 100) == "created"
    assert replies == [(b"c", b"c")]
    assert stage.queue.schedule(JOB, not_after_ms=T0 + 100) == "late"


# -- ends ------------------------------------------------------------------------------------------------------------


def too_many_in_the_morgue(stage: Stage) -> None:
    stage.broker.limit("q", morgue_max=1)
    stage.durable = False
    stage.put("other")
    stage.buried(stage.take_one())


def too_long_in_the_morgue(stage: Stage) -> None:
    stage.broker.limit("q", morgue_ttl=1)
    stage.wait(2000)
    stage.queue.tick(0)


@pytest.mark.parametrize("forget", [too_many_in_the_morgue, too_long_in_the_morgue])
def test_what_the_morgue_forgets_is_done(stage: Stage, forget: Callable[[Stage], None]) -> None:
    stage.durable = True
    stage.put("a")
    for data in (b"p", b"q"):
        stage.add("m", data)
    for job in stage.take():
        stage.buried(job)
    assert [*stage.taken_marks().values()] == ["buried"] * 3
    forget(stage)
    assert [*stage.taken_marks().values()] == ["done"] * 3


def test_what_many_payloads_leave_behind_is_marked_piece_by_piece(stage: Stage) -> None:
    stage.durable = True
    for number in range(300):
        stage.add("a", b"%d" % number, str(number))
    (job,) = stage.take()
    assert len(job.payloads) == 250
    stage.done(job)
    assert [*stage.taken_marks().values()] == ["done"] * 250
    stage.failed(stage.take_one())
    kill_failed(stage.queue)
    assert [*stage.taken_marks().values()] == ["buried"] * 50


def test_nobody_waits_for_what_the_library_makes_of_a_run(stage: Stage) -> None:
    """The rest of a merged attempt, whose key is derived from the attempt's, is not durable by accident."""
    for number in range(20):
        for data in (b"p", b"q", b"r"):
            stage.add(f"j{number}", data)
    for job in stage.take():
        stage.settle(replace(bury(job, 1, 2, reason="why"), oldest=True))
    rests = {job.key for job in stage.take()}
    assert len(rests) == 20
    assert not any(map(is_durable, rests))


def test_a_mark_stays_until_it_is_taken_and_one_that_changed_meanwhile_stays(stage: Stage) -> None:
    put(stage)
    stage.buried(stage.take_one())
    (buried,) = stage.queue.marks(0)
    assert buried == CompletionMark(KEY, "buried", buried.stamp)
    assert abs(buried.stamp - stage.us) < 1000
    assert stage.queue.marks(0) == [buried]
    stage.queue.kick("a")
    (live,) = stage.queue.marks(0, [buried])
    assert (live.end, live.stamp > buried.stamp) == ("live", True)
    stage.buried(stage.take_one())
    (again,) = stage.queue.marks(0, [buried, live])
    assert (again.end, again.stamp > live.stamp) == ("buried", True)
    assert stage.queue.marks(0, [again]) == []
    assert stage.shard_is_empty() is False, "the grave is still there"


def test_marks_are_told_a_chunk_at_a_time_and_forgotten_however_many_they_are(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{n}", "work", key=new_key(durable=True)) for n in range(600))
    while jobs := stage.take(250):
        stage.done(*jobs)
    assert [len(stage.queue.marks(0, **limit)) for limit in ({}, {"limit": 7}, {"limit": 0})] == [250, 7, 0]
    marks = stage.queue.marks(0, limit=1000)
    assert len({mark.key for mark in marks}) == 600
    assert stage.queue.marks(0, marks) == []
    assert stage.shard_is_empty()


@pytest.mark.server
def test_acks_for_which_nobody_waits_cost_nothing_more(stage: Stage) -> None:
    def commands() -> int:
        stats = stage.broker.client.info("commandstats")
        return sum(told["calls"] for name, told in stats.items() if "|" not in name)

    def cost(*first: NewJob) -> int:
        stage.queue.schedule_many([*first, *(NewJob(f"p{n}", "work", key=new_key()) for n in range(100 - len(first)))])
        jobs = stage.take(100)
        before = commands()
        assert all(stage.done(*jobs))
        return commands() - before

    plain = cost()
    assert cost(JOB) == plain + 1


# -- epochs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["waiting", "morgue", "ended"])
def test_t34_what_an_old_epoch_knows_is_not_started_in_the_new_one(stage: Stage, place: str) -> None:
    put(stage, at=0)
    if place != "waiting":
        (stage.buried if place == "morgue" else stage.done)(stage.take_one())
    if place == "morgue":
        stage.taken_marks()
    reshard(stage, 3)
    stale = other(stage.broker).queue("q")
    assert put(stage) == "known"
    assert stage.queue.schedule_many([JOB, NewJob("b", "work")]) == ["known", "created"]
    assert stale.schedule(JOB) == "known"
    assert is_known(stage)
    assert stage.queue.knows([("b", new_key(durable=True)), ("a", new_key(durable=True))]) == [False, False]


def test_t34_a_job_that_comes_back_out_of_an_old_morgue_is_live_whatever_is_heard_first(stage: Stage) -> None:
    put(stage)
    stage.buried(stage.take_one())
    (buried,) = stage.queue.marks(0)
    reshard(stage, 3)
    assert stage.queue.kick("a") == "kicked"
    (old,) = stage.queue.marks(0, [buried])
    assert (old.key, old.end) == (KEY, "live"), "the burial must not be heard after the return"
    assert stage.taken_marks() == {KEY: "live"}
    assert put(stage) == "known"
    (job,) = take_all(stage.queue)
    assert job.shard // MAX_SHARDS == 1
    stage.done(job)
    assert stage.queue.marks(0) == []
    assert stage.taken_marks() == {KEY: "done"}


def test_what_is_replaced_by_one_out_of_an_old_morgue_or_thrown_out_of_it_is_done(stage: Stage) -> None:
    stage.in_morgue("a")
    put(stage, "b", key=KEY)
    stage.buried(stage.take_one())
    reshard(stage, 3)
    assert stage.queue.discard("b")
    assert stage.taken_marks() == {KEY: "done"}
    put(stage)
    assert stage.queue.kick("a", replace=True) == "kicked"
    assert stage.taken_marks() == {KEY: "done"}


def test_t34_an_epoch_does_not_end_before_its_marks_were_taken(stage: Stage) -> None:
    put(stage)
    stage.done(stage.take_one())
    reshard(stage, 2)
    stage.wait(200_000)
    assert stage.broker.epochs.retire("q") == []
    assert stage.queue.call("retire", 0, b"0") == b"0", "nor if it comes between the look and the deed"
    assert stage.taken_marks() == {KEY: "done"}
    assert stage.broker.epochs.retire("q") == [0]
    clocks(stage, 0, 1)
    client = stage.broker.client
    left = {
        key.rpartition(b":")[2]: client.ttl(key) for key in stage.broker.shard("q", 0).keys[:26] if client.exists(key)
    }
    assert set(left) == {b"meta", b"event"}
    assert 0 < left[b"event"] <= 86_400, "readers of events have a day"


def test_t34_payloads_that_came_back_and_are_brought_back_once_more_stay_live(stage: Stage) -> None:
    """The process that kicked them crashed between the two shards, and its request window has passed."""
    put(stage, task="sync", payload=Payload(b"p", "1", KEY), on_conflict="merge")
    stage.buried(stage.take_one())
    reshard(stage, 3)
    dying = other(stage.broker)

    def die(call: ScriptCall) -> None:
        if call.name == "discard":
            raise Killed

    with pytest.raises(Killed), watch_calls(dying, before=die):
        dying.queue("q").kick("a")
    stage.wait(200_000)
    for number in stage.queue.numbers:
        stage.queue.tick(number)  # forgets the request
    assert stage.queue.kick("a") == "kicked"
    assert stage.taken_marks() == {KEY: "live"}
    (job,) = take_all(stage.queue)
    assert [payload.key for payload in job.payloads] == [KEY]


def test_t44_of_a_queue_that_is_deleted_by_force_no_mark_stays(stage: Stage) -> None:
    put(stage)
    stage.done(stage.take_one())
    assert stage.broker.delete_queue("q", force=True)
    assert not stage.broker.client.exists(stage.key("marks"))
