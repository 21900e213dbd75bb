"""No new jobs in the whole deployment: one switch for all producers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import Broker, NewJob
from tests.support.core_calls import before_layout_change
from tests.support.core_stored import queue_policy, shard_key
from tests.support.core_values import QueuePaused

from .epochs_stage import other
from .stage import Stage


def outcomes(broker: Broker, name: str, n: int = 9) -> set[Any]:
    return set(broker.queue(name).schedule_many(NewJob(f"{name}{number}", "work") for number in range(n)))


def test_while_producers_are_paused_no_queue_takes_new_jobs_and_stored_ones_run(clocked: Broker) -> None:
    stage, wide = Stage(clocked), Stage(clocked, shards=3, name="wide")
    stage.put("running")
    stage.put("failing")
    clocked.pause_producers()
    assert clocked.producers_paused_since() is not None
    assert outcomes(clocked, "wide") == {"paused"}
    with pytest.raises(QueuePaused, match=r"all producers are paused; end it by .* resume-producers"):
        stage.put("new", fresh=True)
    running, failing = stage.take(2)
    assert stage.done(running) == [True]
    assert stage.failed(failing, 1000)
    stage.wait(1000)
    assert stage.take_one().failures == 1, "a retry is no new job"
    clocked.resume_producers()
    assert clocked.producers_paused_since() is None
    assert outcomes(clocked, "wide") == {"created"}
    assert stage.put("new", fresh=True) == "created"
    assert len(wide.queue.present) == 3


def test_a_queue_that_is_created_while_producers_are_paused_takes_no_jobs_either(broker: Broker) -> None:
    broker.queue("q")
    broker.pause_producers()
    late = other(broker).queue("late", shards=2)
    assert set(late.schedule_many(NewJob(f"j{number}", "work") for number in range(9))) == {"paused"}
    assert sorted(broker.queue_names()) == ["late", "q"]
    broker.resume_producers()
    assert outcomes(broker, "late") == {"created"}


def test_a_queue_that_is_being_created_at_that_moment_obeys(broker: Broker) -> None:
    operator = other(broker)

    def order(layout: dict[str, Any]) -> None:
        if not operator.registry.producers_paused:
            operator.pause_producers()

    with before_layout_change(broker, order):
        assert outcomes(broker, "late") == {"paused"}


def test_new_shards_obey_also_when_the_order_comes_between_the_steps(broker: Broker) -> None:
    queue, operator = broker.queue("q", shards=2), other(broker)

    def order(layout: dict[str, Any]) -> None:
        if layout["epoch"] == 1 and not operator.registry.producers_paused:
            operator.pause_producers()

    with before_layout_change(broker, order):
        broker.reshard("q", 3)
    assert (queue.shards, outcomes(broker, "q")) == (3, {"paused"})


def test_the_switch_is_independent_of_pauses_of_single_queues(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.queue(name)
    broker.pause("a", "in")
    broker.pause_producers()
    broker.pause_producers()
    broker.resume("b")
    assert outcomes(broker, "b") == {"paused"}
    broker.resume_producers()
    assert [outcomes(broker, name) for name in ("a", "b")] == [{"paused"}, {"created"}]
    with pytest.raises(QueuePaused, match="queue 'a' is paused"):
        broker.queue("a").schedule(NewJob("x", "work"))
    assert queue_policy(broker.queue("a").layout)["paused"] == "in"


def test_a_shard_that_does_not_know_yet_learns_it_at_the_next_look_of_a_dispatcher(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    broker.pause_producers()
    for number in queue.numbers:
        broker.client.hdel(shard_key(queue, "meta", number), "rules")
        broker.client.hdel(shard_key(queue, "task", number), "\2")
    dispatcher = other(broker)
    dispatcher.queues()[0].tick(0)
    assert outcomes(broker, "q") == {"paused"}
    broker.client.hdel(broker.queues_key, "-producers")
    dispatcher.queues()[0].tick(0)
    assert outcomes(broker, "q") == {"created"}
