"""The morgue of a queue with several epochs."""

from __future__ import annotations

import pytest

from tests.support.core_stored import MAX_SHARDS

from .bulk_stage import discard_all, kick_all
from .epochs_stage import Killed, dies_after, epoch_of, other, reshard, take_all
from .stage import Stage

pytestmark = pytest.mark.usefixtures("impatient")


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


def test_payloads_come_back_from_an_old_morgue_with_their_scores(stage: Stage) -> None:
    stage.add("a", b"one", "1.5")
    stage.add("a", b"two", "0.5")
    (job,) = stage.take()
    stage.buried(job)
    reshard(stage, 3)
    assert stage.queue.kick("a") == "kicked"
    stage.add("a", b"three", "1.0")
    (again,) = take_all(stage.queue)
    assert [(p.data, p.score) for p in again.payloads] == [(b"two", "0.5"), (b"three", "1.0"), (b"one", "1.5")]
    assert again.key == job.key
    assert {p.key for p in job.payloads} < {p.key for p in again.payloads}


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


def test_merged_jobs_of_two_epochs_unite_where_the_live_one_is(stage: Stage) -> None:
    stage.add("a", b"old", "1")
    (job,) = stage.take()
    stage.buried(job)
    reshard(stage, 3)
    stage.add("a", b"new", "2")
    assert stage.queue.kick("a") == "kicked"
    (both,) = take_all(stage.queue)
    assert [p.data for p in both.payloads] == [b"old", b"new"]
    assert both.shard // MAX_SHARDS == 1


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


def test_a_whole_morgue_comes_back_from_two_epochs(full: Stage) -> None:
    full.in_morgue("both")
    full.put("both", at=800_000)
    reshard(full, 5)
    full.in_morgue("young")
    (job,) = full.queue.reserve_id("ready", worker="w").jobs
    full.buried(job)
    assert kick_all(full.queue, delay_ms=900_000) == {"kicked": 3, "live": 1}
    assert {ident: epoch_of(full.queue, ident) for ident in ("both", "dead", "young", "ready")} == {
        "both": 0,
        "dead": 1,
        "young": 1,
        "ready": 1,
    }
    assert discard_all(full.queue) == {"discarded": 1}
