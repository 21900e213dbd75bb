"""Durable jobs sent twice by independent senders are stored once (G4, G5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_delayq.core import InvalidJob, NewJob, Payload, bury, new_id
from tests.support.core_calls import ScriptCall, send_twice, watch_calls
from tests.support.core_stored import MAX_SHARDS, digest
from tests.support.core_values import QueuePaused, new_key

from .epochs_stage import Killed, clocks, epoch_of, other, reshard, take_all
from .stage import T0, Stage
from .world import unchanged

KEY = b"\x80" + b"k" * 15
pytestmark = pytest.mark.usefixtures("impatient")


def put(stage: Stage, ident: str = "a", *, key: bytes = KEY, **options: object) -> str:
    return stage.put(ident, key=key, **options)  # type: ignore[arg-type]


def add(stage: Stage, ident: str = "a", data: bytes = b"p", *, key: bytes = KEY, **options: object) -> str:
    return stage.put(ident, task="sync", payload=Payload(data, "1", key), on_conflict="merge", **options)  # type: ignore[arg-type]


def is_known(stage: Stage, ident: str = "a", key: bytes = KEY) -> bool:
    """Return True if the generation, or the payload, is known."""
    return stage.queue.knows([(ident, key, digest(b"p"))])[0]


# -- sent twice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["waiting", "reserved", "gated", "failed", "morgue", "ended", "cancelled"])
def test_a_generation_that_is_here_is_not_started_again(stage: Stage, place: str) -> None:
    if place == "gated":
        stage.put("a")
        stage.take()
    put(stage)
    assert is_known(stage)
    if place == "cancelled":
        stage.queue.cancel("a")
    elif place not in ("waiting", "gated"):
        job = stage.take_one()
        ends = {"failed": stage.failed, "morgue": stage.buried, "ended": stage.done, "reserved": lambda job: None}
        ends[place](job)
    counters, window = stage.counters(), stage.broker.client.llen(stage.key("window"))
    with unchanged(stage.broker):
        assert put(stage, args=b"[2]", delay_ms=5) == "known"
        assert stage.queue.schedule_many([NewJob("a", "work", key=KEY)]) == ["known"]
        assert stage.queue.count_many([NewJob("a", "work", key=KEY)]) == {"known": 1}
        assert is_known(stage)
    assert stage.counters() == counters
    assert stage.broker.client.llen(stage.key("window")) == window, "it keeps no shard from its end"


@pytest.mark.parametrize(
    "place", ["waiting", "reserved", "behind a run", "its twin runs", "failed", "morgue", "oldest", "absorbed", "ended"]
)
def test_a_payload_that_is_here_is_not_put_in_again(stage: Stage, place: str) -> None:
    if place in ("behind a run", "its twin runs"):
        stage.add("a", b"o" if place == "behind a run" else b"p")
        stage.take()
    add(stage)
    stage.add("a", b"q", "2")
    assert is_known(stage)
    if place == "absorbed":
        assert add(stage, key=new_key(durable=True)) == "merged"
    elif place in ("reserved", "failed", "morgue", "oldest", "ended"):
        job = stage.take_one()
        ends = {
            "failed": stage.failed,
            "morgue": stage.buried,
            "ended": stage.done,
            "reserved": lambda job: None,
            "oldest": lambda job: stage.settle(replace(bury(job, 1, 2, reason="why"), oldest=True)),
        }
        ends[place](job)
    with unchanged(stage.broker):
        assert add(stage) == "known"
        assert is_known(stage)


def test_payloads_are_known_by_their_own_keys_in_the_morgue_although_their_marks_were_taken(stage: Stage) -> None:
    add(stage)
    add(stage, data=b"q", key=KEY[:-1] + b"q")
    stage.buried(stage.take_one())
    stage.taken_marks()
    assert is_known(stage)
    assert add(stage, data=b"q", key=KEY[:-1] + b"q") == "known"
    assert not is_known(stage, key=KEY[:-1] + b"x")


def test_what_nobody_knows_any_more_may_be_sent_again(stage: Stage) -> None:
    """The completion was collected, so the row is gone. A later sender has stalled; a deadline would stop it."""
    put(stage)
    stage.done(stage.take_one())
    assert stage.taken_marks() == {KEY: "done"}
    assert not is_known(stage)
    assert put(stage) == "created"


def test_only_durable_keys_are_looked_for(stage: Stage) -> None:
    key = new_key()
    assert put(stage, key=key) == "created"
    assert put(stage, key=key) == "replaced"


def test_among_others_of_a_chunk_only_those_are_left_alone_that_are_known(stage: Stage) -> None:
    put(stage)
    news = [NewJob("a", "work", key=KEY), NewJob("b", "work"), NewJob("c", "work", key=KEY[:-1] + b"c")]
    assert stage.queue.schedule_many(news) == ["known", "created", "created"]
    assert stage.counters() == {"created": 3}


def test_what_is_known_is_so_although_the_queue_takes_nothing_now(stage: Stage) -> None:
    put(stage)
    stage.broker.pause("q", "in")
    assert put(stage) == "known"
    with pytest.raises(QueuePaused):
        put(stage, "b", key=new_key(durable=True))


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


@pytest.mark.parametrize(
    ("ident", "key", "hash_"),
    [("", KEY, b""), ("a\0", KEY, b""), ("a" * 256, KEY, b""), ("a", b"short", b""), ("a", KEY, b"short")],
)
def test_what_cannot_be_known_is_refused(stage: Stage, ident: str, key: bytes, hash_: bytes) -> None:
    with pytest.raises(InvalidJob):
        stage.queue.knows([(ident, key, hash_)])


def test_many_are_asked_for_at_once(stage: Stage) -> None:
    keys = [new_key(durable=True) for _ in range(600)]
    stage.queue.schedule_many(NewJob(f"j{n}", "work", key=key) for n, key in enumerate(keys) if n % 2)
    assert stage.queue.knows([(f"j{n}", key) for n, key in enumerate(keys)]) == [bool(n % 2) for n in range(600)]
    assert stage.queue.knows([]) == []


# -- deadlines -------------------------------------------------------------------------------------------------------


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
        assert stage.queue.schedule(NewJob("a", "work", key=KEY), not_after_ms=T0 + 100) == "created"
    assert replies == [(b"c", b"c")]
    assert stage.queue.schedule(NewJob("a", "work", key=KEY), not_after_ms=T0 + 100) == "late"


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
    assert stage.queue.schedule_many([NewJob("a", "work", key=KEY), NewJob("b", "work")]) == ["known", "created"]
    assert stale.schedule(NewJob("a", "work", key=KEY)) == "known"
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


def test_t34_payloads_that_come_back_out_of_an_old_morgue_are_known_in_the_new_epoch(stage: Stage) -> None:
    add(stage)
    stage.buried(stage.take_one())
    reshard(stage, 3)
    assert stage.queue.kick("a") == "kicked"
    assert stage.taken_marks() == {KEY: "live"}
    assert is_known(stage)
    assert add(stage) == "known"
    (job,) = take_all(stage.queue)
    stage.done(job)
    assert stage.taken_marks() == {KEY: "done"}


def test_a_job_that_is_replaced_by_one_out_of_an_old_morgue_is_done(stage: Stage) -> None:
    stage.in_morgue("a")
    reshard(stage, 3)
    put(stage)
    assert stage.queue.kick("a", replace=True) == "kicked"
    assert stage.taken_marks() == {KEY: "done"}


def test_what_is_thrown_out_of_an_old_morgue_is_done(stage: Stage) -> None:
    put(stage)
    stage.buried(stage.take_one())
    reshard(stage, 3)
    assert stage.queue.discard("a")
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
    add(stage)
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
