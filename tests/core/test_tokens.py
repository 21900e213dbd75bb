"""Fencing tokens: a later holder of an id has a larger one than every earlier holder, whatever was lost or changed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest

from django_delayq.core import Broker, Job, release
from tests.support.core_stored import number_of, set_clock

from .epochs_stage import epoch_of, other, reshard, take_all
from .stage import Stage

MS = 1000


class Fence:
    """Database row that only a later holder may write: ``UPDATE … WHERE fence < token``."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("CREATE TABLE account (fence INTEGER)")
        self.database.execute("INSERT INTO account VALUES (0)")

    def close(self) -> None:
        self.database.close()

    def admits(self, job: Job) -> bool:
        update = "UPDATE account SET fence = ? WHERE fence < ?"
        return self.database.execute(update, (job.token, job.token)).rowcount == 1


@pytest.fixture
def fence() -> Iterator[Fence]:
    with contextlib.closing(Fence()) as opened:
        yield opened


def hold(stage: Stage, ident: str = "a") -> Job:
    """Reserve the job of an id, after scheduling it if it does not exist."""
    if epoch_of(stage.queue, ident) is None:
        stage.put(ident)
    (job,) = (job for job in take_all(stage.queue) if job.id == ident)
    return job


def test_after_a_loss_of_all_data_the_new_holder_passes_a_fence_of_before(broker: Broker, fence: Fence) -> None:
    stage = Stage(broker, clock=False)
    for shards in (3, 1, 5, 2):
        broker.reshard("q", shards)
        job = hold(stage)
        assert job.shard >= number_of(1, 0) and fence.admits(job)
        stage.done(job)
    for key in broker.client.scan_iter(f"*{broker.prefix}*"):
        broker.client.delete(key)
    fresh = Stage(other(broker), clock=False)
    job = hold(fresh)
    assert job.shard == 0, "the epochs begin anew"
    assert fence.admits(job)


def test_no_token_of_a_new_epoch_is_ahead_of_the_clock(broker: Broker) -> None:
    stage = Stage(broker, clock=False)
    for shards in (3, 1, 5, 2):
        broker.reshard("q", shards)
        job = hold(stage)
        assert job.token <= broker.now_ms() * 1000
        stage.done(job)


def test_through_both_epochs_of_a_change_every_holder_passes_the_fence(broker: Broker, fence: Fence) -> None:
    stage = Stage(broker, clock=False)
    for shards in (4, 2, 3):
        job = hold(stage)
        assert fence.admits(job)
        broker.reshard("q", shards)
        stage.settle(release(job))
        for _ in range(20):
            job = hold(stage)
            assert fence.admits(job)
            stage.settle(release(job))
        old = hold(stage)
        assert fence.admits(old)
        stage.done(old)
        new = hold(stage)
        assert new.shard > old.shard and fence.admits(new)
        stage.done(new)


@pytest.mark.parametrize("behind", [0, 30, 2000], ids=lambda ms: f"{ms}ms-behind")
@pytest.mark.parametrize("later", [0, 1500, 2110, 600_000], ids=lambda ms: f"{ms}ms-later")
def test_the_clocks_of_old_and_new_shards_may_differ_by_two_seconds(clocked: Broker, behind: int, later: int) -> None:
    stage = Stage(clocked)
    job = hold(stage)

    def set_clocks() -> None:
        for place, off in ((number_of(0, 0), 0), (number_of(1, 0), behind), (number_of(1, 1), behind)):
            set_clock(stage.queue, place, stage.us - off * MS)

    set_clocks()
    clocked.reshard("q", 2)
    stage.settle(release(job))
    stage.us += later * MS
    set_clocks()
    tokens = [job.token]
    for _ in range(30):
        job = hold(stage)
        tokens.append(job.token)
        stage.settle(release(job))
    stage.done(hold(stage))
    new = hold(stage)
    assert new.shard >= number_of(1, 0)
    assert tokens == sorted(set(tokens)) and new.token > tokens[-1]


def test_a_closing_shard_that_lost_its_last_writes_gives_larger_tokens_all_the_same(clocked: Broker) -> None:
    """This happens after a failover to a lagging replica; the clock is not lost."""
    stage = Stage(clocked)
    job = hold(stage)
    reshard(stage, 2)
    meta = stage.key("meta")
    kept = clocked.client.hget(meta, "token")
    stage.wait(10)
    stage.settle(release(job))
    lost = hold(stage)
    stage.settle(release(lost))
    clocked.client.hset(meta, "token", kept)
    stage.wait(1)
    assert hold(stage).token > lost.token
