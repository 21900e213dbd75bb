"""Change of the number of shards during operation, by epochs (T34)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from django_delayq.core import Broker, IdTaken, Inspector, InvalidJob, NewJob, Queue, ack
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_stored import HEAD_START, MAX_SHARDS, check_stored, is_pending, last_tick
from tests.support.duty_stage import cleanup_of

from .bulk_stage import discard_many, kick_many
from .epochs_stage import Killed, clocks, dies_after, epoch_of, next_id, other, reshard, take_all
from .stage import Stage
from .world import unchanged

pytestmark = pytest.mark.usefixtures("impatient")

# -- T34: the change itself ------------------------------------------------------------------------------------------


def test_t34_a_change_moves_nothing_and_loses_nothing(full: Stage) -> None:
    before, counts = full.picture(), full.broker.inspector.counts("q")
    reshard(full, 5)
    assert full.queue.shards == 5
    assert full.queue.epochs == ((0, 3), (1, 5))
    assert full.picture() == before
    after = full.broker.inspector.counts("q")
    assert (after.ready, after.delayed, after.reserved, after.gated, after.failed, after.morgue) == (
        counts.ready,
        counts.delayed,
        counts.reserved,
        counts.gated,
        counts.failed,
        counts.morgue,
    )
    view = full.broker.inspector.get("q", "failing")
    assert view is not None
    assert view.job.failures == 2


def test_t34_what_lives_is_changed_where_it_lives_and_what_is_new_goes_to_the_new_shards(full: Stage) -> None:
    reshard(full, 5)
    assert full.put("ready", args=b"[2]") == "replaced"
    assert full.put("held") == "gated"
    assert full.add("merged", b"three", "3") == "merged"
    assert full.put("ready", on_conflict="ignore") == "ignored"
    with pytest.raises(IdTaken):
        full.put("delayed", on_conflict="error")
    with pytest.raises(IdTaken):
        full.put("delayed", task="other")
    assert full.put("new") == "created"
    assert full.put("made", fresh=True) == "created"
    assert {ident: epoch_of(full.queue, ident) for ident in ("ready", "held", "merged", "delayed", "new", "made")} == {
        "ready": 0,
        "held": 0,
        "merged": 0,
        "delayed": 0,
        "new": 1,
        "made": 1,
    }


def test_t34_an_id_moves_to_the_new_shards_when_its_run_is_over(stage: Stage) -> None:
    stage.put("a")
    (first,) = take_all(stage.queue)
    reshard(stage, 4)
    assert stage.put("a") == "gated"
    assert stage.done(first) == [True]
    assert epoch_of(stage.queue, "a") == 0, "what was gated is live where its run was"
    (second,) = take_all(stage.queue)
    assert stage.done(second) == [True]
    assert stage.put("a") == "created"
    (third,) = take_all(stage.queue)
    assert third.shard // MAX_SHARDS == 1
    assert first.token < second.token < third.token


def test_the_fencing_tokens_go_on_from_the_largest_of_the_old_shards(clocked: Broker) -> None:
    stage = Stage(clocked, shards=3)
    for number in stage.queue.numbers:
        clocked.client.hset(stage.key("meta", number), "token", (number + 1) * 10**15)
    reshard(stage, 2)
    stage.put("a")
    (job,) = take_all(stage.queue)
    assert job.token == 3 * 10**15 + HEAD_START + 1


def test_the_same_number_again_changes_nothing_and_a_wrong_one_is_refused(full: Stage) -> None:
    with unchanged(full.broker):
        assert full.broker.reshard("q", 3)["epoch"] == 0
        for shards in (0, -1, MAX_SHARDS + 1, True, 2.0):
            with pytest.raises(InvalidJob, match="1 to 1024"):
                full.broker.reshard("q", shards)  # type: ignore[arg-type]
        with pytest.raises(InvalidJob, match="no queue 'other'"):
            full.broker.reshard("other", 5)


def test_a_changer_that_wakes_up_too_late_spoils_nothing(broker: Broker) -> None:
    queue, fast = broker.queue("q", shards=2), other(broker)
    slept = []

    def sleep(call: ScriptCall) -> None:
        if call.name == "open" and not slept:
            slept.append(True)
            fast.epochs.finish("q")
            fast.reshard("q", 4)
            fast.pause("q", "out")

    with watch_calls(broker, before=sleep):
        broker.reshard("q", 3)
    assert queue.epochs == ((0, 2), (1, 3), (2, 4), (3, 3)), "it wanted three, and did not see that there were three"
    assert queue.schedule(NewJob("a", "work")) == "created"
    assert take_all(queue) == [], "the pause is in force"
    for number in queue.numbers[:-3]:
        assert queue.schedule(NewJob(next_id(queue, number), "work")) == "created"
    assert broker.inspector.count_shards(queue, queue.numbers[-3:]).ready == 10, "older shards are closed"


# -- killed in between -----------------------------------------------------------------------------------------------


def test_t34_whoever_comes_by_finishes_a_change_that_was_killed_after_any_step(broker: Broker) -> None:
    steps, finished = 0, False
    while not finished:
        name = f"q{steps}"
        caller = other(broker)
        stale = caller.queue(name, shards=3)
        for ident in ("old", "held"):
            stale.schedule(NewJob(ident, "work"))
        (held,) = stale.reserve_id("held", worker="w").jobs
        changer = other(broker)
        changer.queue(name)
        with contextlib.suppress(Killed), dies_after(changer, steps):
            changer.reshard(name, 4)
            finished = True
        assert stale.schedule_many([NewJob(f"j{n}", "work") for n in range(30)]) == ["created"] * 30
        assert stale.schedule(NewJob("old", "work")) == "replaced"
        assert stale.schedule(NewJob("made", "work", fresh=True)) == "created"
        assert stale.settle([ack(held, 0, 0)]) == [True]
        assert stale.schedule(NewJob("held", "work")) == "created"
        assert stale.shards == (4 if steps > 1 else 3), "before any shard is closed nobody waits for it"
        assert len(take_all(stale)) == 33
        cleanup_of(caller, [stale]).run()
        assert not is_pending(stale.layout)
        steps += 1
    assert steps > 3 + 4 + 2


# -- who has not heard of it -----------------------------------------------------------------------------------------

STALE: dict[str, tuple[Callable[[Queue], object], object]] = {
    "schedule": (lambda q: q.schedule(NewJob("x", "work")), "replaced"),
    "schedule many": (lambda q: q.schedule_many([NewJob("x", "work", on_conflict="ignore")]), ["ignored"]),
    "schedule another": (lambda q: q.schedule(NewJob("y", "work")), "created"),
    "schedule made": (lambda q: q.schedule(NewJob("z", "work", fresh=True)), "created"),
    "cancel": (lambda q: q.cancel("x"), "cancelled"),
    "reschedule": (lambda q: q.reschedule("x", delay_ms=5), True),
    "run now": (lambda q: q.run_now("x"), True),
    "reserve": (lambda q: [job.id for job in q.reserve_id("x", worker="w", early=True).jobs], ["x"]),
    "kick": (lambda q: q.kick("dead"), "kicked"),
    "discard": (lambda q: q.discard("dead"), True),
    "kick many": (lambda q: kick_many(q, ["dead", "nobody"]), {"kicked": 1, "gone": 1}),
    "discard many": (lambda q: discard_many(q, ["dead", "nobody"]), {"discarded": 1, "gone": 1}),
    "get": (lambda q: Inspector(q.registry).get("q", "x").state, "delayed"),  # type: ignore[union-attr]
    "page": (lambda q: [view.id for view in Inspector(q.registry).page("q", "morgue").jobs], ["dead"]),
    "counts": (lambda q: Inspector(q.registry).counts("q").delayed, 1),
    "tick": (lambda q: q.schedule_tick(NewJob("t", "work"), 1000), "fired"),
}


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize("verb", STALE)
def test_t34_a_caller_with_an_old_layout_is_sent_on(clocked: Broker, verb: str, retired: bool) -> None:
    stage = Stage(clocked, shards=3)
    stale = other(clocked).queue("q")
    reshard(stage, 5)
    if retired:
        stage.wait(130_000)
        assert clocked.epochs.retire("q") == [0]
        clocks(stage, 0, 3)
    stage.put("x", at=900_000)
    stage.in_morgue("dead")
    stage.queue.schedule_tick(NewJob("t", "work"), 2000)
    stage.queue.cancel("t")
    act, expected = STALE[verb]
    assert stale.epochs == ((0, 3),)
    assert act(stale) == expected


def test_a_queue_whose_registry_is_older_than_its_shards_goes_on_in_a_new_epoch(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    stored = broker.read_layout("q")[0]
    broker.reshard("q", 3)
    broker.client.hset(broker.queues_key, "q", stored)
    late = other(broker).queue("q")
    assert late.schedule(NewJob("a", "work")) == "created"
    assert queue.schedule(NewJob("a", "work")) == "replaced"
    assert late.epochs == ((0, 2), (1, 3), (2, 2)), "the forgotten epoch is among the old ones"
    assert [job.id for job in take_all(queue)] == ["a"]


# -- recurring -------------------------------------------------------------------------------------------------------


def test_a_tick_that_was_fired_in_an_old_epoch_is_not_fired_again(stage: Stage) -> None:
    queue = stage.queue
    since = queue.first_sight("tick", "every 1s")
    assert queue.schedule_tick(NewJob("tick", "work"), since + 1000) == "created"
    (job,) = take_all(queue)
    reshard(stage, 3)
    assert queue.schedule_tick(NewJob("tick", "work"), since + 1000) == "fired"
    assert last_tick(queue, "tick") == since + 1000
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "gated"
    stage.done(job)
    stage.done(*take_all(queue))
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "fired", "the old shard knows"
    stage.wait(130_000)
    assert stage.broker.epochs.retire("q") == [0]
    assert last_tick(queue, "tick") == since + 2000, "and told it to the new one"
    assert queue.first_sight("tick", "every 1s") == since + 2000
    assert queue.schedule_tick(NewJob("tick", "work"), since + 2000) == "fired"
    assert queue.schedule_tick(NewJob("tick", "work"), since + 3000) == "created"


# -- the check -------------------------------------------------------------------------------------------------------


@pytest.mark.broken_on_purpose
def test_an_id_that_lives_in_two_epochs_is_found(stage: Stage) -> None:
    stage.put("a")
    reshard(stage, 3)
    assert check_stored(stage.broker).violations == []
    stage.broker.client.hdel(stage.key("meta"), "rules")
    ident = next(f"i{n}" for n in range(100) if stage.put(f"i{n}") and epoch_of(stage.queue, f"i{n}") == 0)
    stage.queue.rule(0, {"closing": True})
    clone = stage.queue.shard(stage.queue.shard_of(ident))
    body = stage.broker.client.hget(stage.key("body"), ident)
    stage.broker.client.hset(clone.names["body"], ident, body)
    stage.broker.client.zadd(clone.names["due.4"], {ident: stage.us})
    found = [line for line in check_stored(stage.broker).violations if "two epochs" in line]
    assert found == [f"q[{clone.number}] '{ident}': live in two epochs"]


# -- the morgue of a queue with several epochs -------------------------------------------------------------------------


def test_t34_a_job_comes_back_from_an_old_morgue_as_it_was(full: Stage) -> None:
    queue = full.queue
    key = full.broker.inspector.graves("q", "dead")[0].job.key
    reshard(full, 5)
    assert queue.kick("dead", delay_ms=700) == "kicked"
    view = full.broker.inspector.get("q", "dead")
    assert view is not None
    job = view.job
    assert (job.shard // MAX_SHARDS, job.key, job.task, job.args, job.failures) == (1, key, "work", b"[9]", 0)
    assert view.due_ms == full.us // 1000 + 700
    assert full.picture().get("morgue") is None
    assert queue.kick("dead") == ""


def test_the_records_of_an_id_are_in_the_order_of_their_burials_whatever_their_epochs(stage: Stage) -> None:
    keys = []
    for shards in (3, 2, 4):
        keys.append(stage.in_morgue("a"))
        stage.wait(1)
        reshard(stage, shards)
    inspector = stage.broker.inspector
    assert [view.job.key for view in inspector.graves("q", "a")] == keys[::-1]
    first = inspector.graves_page("q", "a", limit=2)
    rest = inspector.graves_page("q", "a", cursor=first.cursor)
    assert [view.job.key for page in (first, rest) for view in page.jobs] == keys[::-1]
    assert rest.cursor == ""
    assert stage.queue.discard("a"), "the youngest"
    assert [view.job.key for view in inspector.graves("q", "a")] == keys[1::-1]


def test_a_kick_respects_what_lives_in_the_other_epoch(full: Stage) -> None:
    queue = full.queue
    full.in_morgue("both")
    full.put("both", at=800_000)  # lives in the old shards, and lies in their morgue
    reshard(full, 5)
    assert queue.kick("both") == "live"
    assert queue.kick("both", replace=True) == "kicked"
    assert epoch_of(queue, "both") == 0
    full.put("dead", at=800_000)  # lives in the new shards
    assert queue.kick("dead") == "live"
    assert queue.kick("dead", replace=True) == "kicked"
    assert epoch_of(queue, "dead") == 1
    # Dead in the new epoch, alive in the old one.
    assert queue.cancel("dead") == "cancelled"
    reshard(full, 2)
    (job,) = queue.reserve_id("ready", worker="w").jobs
    full.buried(job)
    assert queue.kick("ready") == "kicked"
    assert epoch_of(queue, "ready") == 2


def test_payloads_come_back_from_an_old_morgue_with_their_scores_and_unite_with_the_live_ones(stage: Stage) -> None:
    stage.add("a", b"one", "1.5")
    stage.add("a", b"two", "0.5")
    (job,) = stage.take()
    stage.buried(job)
    reshard(stage, 3)
    stage.add("a", b"three", "1.0")
    assert stage.queue.kick("a") == "kicked"
    (again,) = take_all(stage.queue)
    assert [(p.data, p.score) for p in again.payloads] == [(b"two", "0.5"), (b"three", "1.0"), (b"one", "1.5")]
    assert again.shard // MAX_SHARDS == 1
    assert {p.key for p in job.payloads} < {p.key for p in again.payloads}


def test_a_kick_that_was_killed_between_its_two_shards_brings_nothing_back_twice(stage: Stage) -> None:
    stage.in_morgue("a")
    reshard(stage, 3)
    dying = other(stage.broker)
    with pytest.raises(Killed), dies_after(dying, 1):  # the record was read
        dying.queue("q").kick("a")
    dying = other(stage.broker)
    with pytest.raises(Killed), dies_after(dying, 5):  # not in the old shard, put into the new one; the grave stays
        dying.queue("q").kick("a")
    (job,) = take_all(stage.queue)
    assert stage.done(job) == [True]
    assert stage.queue.kick("a") == "kicked", "this was known, and only the grave had to be dug up"
    assert stage.picture() == {}


def test_a_broken_body_comes_back_broken(stage: Stage) -> None:
    stage.put("a", args=b"[1]")
    stage.broker.client.hset(stage.key("body"), "a", b"\xff" + b"x" * 30)
    batch = stage.batch()
    assert [job.id for job in batch.broken] == ["a"]
    reshard(stage, 2)
    stage.put("b", task="work")
    assert stage.queue.kick("a") == "kicked"
    assert take_all(stage.queue)[0].id == "b"
    assert [view.id for view in stage.broker.inspector.page("q", "morgue").jobs] == ["a"]
