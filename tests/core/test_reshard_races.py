"""Changes of the number of shards while producers, workers and operators act at random."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator

import pytest

from django_delayq.core import Broker, DelayQError, IdTaken, Job, NewJob, Queue, ack, bury, fail, release
from tests.support.core_stored import assert_invariants

from .epochs_stage import Killed, dies_after, other, reshard
from .stage import Stage


class Crowd:
    """Processes with different layouts of a queue, and one that repeatedly reshards it and is killed meanwhile."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = broker
        self.queues = [other(broker).queue("q", shards=3) for _ in range(4)]
        self.held: list[Job] = []
        self.running: set[str] = set()

    def ident(self) -> str:
        return f"i{self.random.randrange(12)}"

    def schedule(self, queue: Queue) -> None:
        conflict = self.random.choice(["replace", "ignore"])
        if self.random.random() < 0.3:
            outcomes = queue.schedule_many(NewJob(self.ident(), "work", on_conflict=conflict) for _ in range(6))
            assert "closed" not in outcomes
        else:
            queue.schedule(NewJob(self.ident(), "work", on_conflict=conflict))

    def reserve(self, queue: Queue) -> None:
        queue.reload()
        number = self.random.choice(queue.numbers)
        for job in queue.reserve(number, 2, worker="w").jobs:
            assert job.id not in self.running, "two leases of one id"
            self.running.add(job.id)
            self.held.append(job)

    def settle(self, queue: Queue) -> None:
        if self.held:
            job = self.held.pop(self.random.randrange(len(self.held)))
            end = self.random.choice(
                [ack(job, 0, 0), fail(job, 0, 0, delay_ms=0), release(job), bury(job, 0, 0, reason="why")]
            )
            assert queue.settle([end]) == [True]
            self.running.discard(job.id)

    def kick(self, queue: Queue) -> None:
        queue.kick(self.ident(), replace=self.random.random() < 0.5)

    def cancel(self, queue: Queue) -> None:
        queue.cancel(self.ident())

    def run_now(self, queue: Queue) -> None:
        queue.run_now(self.ident())

    def reshard(self, queue: Queue) -> None:
        changer = other(self.broker)
        calls = self.random.randrange(12) if self.random.random() < 0.7 else 10_000
        with contextlib.suppress(Killed), dies_after(changer, calls):
            changer.reshard("q", self.random.randrange(1, 6))

    def retire(self, queue: Queue) -> None:
        self.broker.epochs.retire("q")

    def act(self) -> None:
        acts = (
            [self.schedule] * 6
            + [self.reserve] * 8
            + [self.settle] * 6
            + [self.kick, self.kick, self.cancel, self.run_now, self.retire]
        )
        acts += [self.reshard] if self.random.random() < 0.7 else []
        self.random.choice(acts)(self.random.choice(self.queues))


@pytest.mark.parametrize("seed", range(4))
def test_t34_whatever_comes_together_no_id_ever_lives_twice(broker: Broker, seed: int) -> None:
    broker.takeover_seconds = 0.0
    crowd = Crowd(broker, seed)
    for turn in range(400):
        with contextlib.suppress(IdTaken):
            crowd.act()
        if turn % 20 == 0:
            broker.known_queue("q")
            assert_invariants(broker)
    assert broker.queue("q").layout["epoch"] > 2


def test_a_call_that_finds_no_open_shard_gives_up_and_says_so(broker: Broker) -> None:
    broker.change_seconds = 0.05
    queue = broker.queue("q")
    broker.registry.change_layout("q", lambda layout: {**layout, "next": [1, 2]})
    queue.rule(0, {"closing": True})
    with pytest.raises(DelayQError, match="delayq_reshard q --status"):
        queue.schedule(NewJob("a", "work"))


def test_a_stream_of_jobs_without_end_leaves_nothing_behind_in_the_sender(full: Stage) -> None:
    reshard(full, 2)
    most = 0

    def news() -> Iterator[NewJob]:
        nonlocal most
        for n in range(5000):
            if n % 500 == 499:
                most = max(most, sum(type(one) is NewJob for one in gc.get_objects()))
            yield NewJob(f"j{n}", "work")

    before = sum(type(one) is NewJob for one in gc.get_objects())
    assert full.queue.count_many(news()) == {"created": 5000}
    assert 250 < most - before <= 2 * 4 * 250, "what is sent, and what is packed meanwhile"
