"""A scheduler of the project's own decides which shard is next; its errors harm nobody."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest

from django_delayq.core import Broker, Misconfigured
from django_delayq.worker.scheduler import DueShard
from tests.support.attempt_stage import NEVER
from tests.support.waiting_stage import ShardSelector
from tests.support.worker_stage import config_of_settings, put, registry_of, run_dry

from .test_shard_selector import served, sources

HERE = "tests.worker.test_own_scheduler"


def last_first(due: Sequence[DueShard]) -> DueShard:
    return due[-1]


class Turns:
    """A scheduler with state."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, due: Sequence[DueShard]) -> DueShard:
        self.turn += 1
        return due[self.turn % len(due)]


class Broken:
    def __init__(self) -> None:
        raise ZeroDivisionError("no state")


class Mute:
    """Its objects cannot be called."""


async def late(due: Sequence[DueShard]) -> DueShard:
    return due[0]


def test_it_decides_among_the_shards_with_due_work() -> None:
    seen: list[Sequence[DueShard]] = []

    def choose(due: Sequence[DueShard]) -> DueShard:
        seen.append(due)
        return last_first(due)

    first, second, third = sources(1, 4, 1)
    first.due_at, third.due_at = 7.0, NEVER
    second.sent_at = 8.5
    assert ShardSelector([first, second, third], scheduler=choose).due(9.0) is second
    assert seen == [(DueShard("q0", 0, 1.0, 2.0, math.inf), DueShard("q1", 0, 4.0, math.inf, 0.5))]


def test_it_is_not_called_without_a_choice() -> None:
    def never(due: Sequence[DueShard]) -> DueShard:
        raise AssertionError

    first, second = sources(1, 1)
    second.due_at = NEVER
    selector = ShardSelector([first, second], scheduler=never)
    assert selector.due(9.0) is first
    first.due_at = NEVER
    assert selector.due(9.0) is None


@pytest.mark.parametrize("wrong", [lambda due: 1 / 0, lambda due: None, lambda due: "q1", lambda due: due[99]])
def test_when_it_fails_the_weights_decide_and_it_is_logged_once(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        names = served(ShardSelector(sources(3, 1), scheduler=wrong), 40)
    assert names.count("q0") == 30
    (record,) = caplog.records
    assert '"weighted" decides whenever that happens' in record.getMessage()
    assert record.exc_info


def test_a_failure_now_and_then_leaves_the_other_choices_to_it() -> None:
    calls: list[int] = []

    def moody(due: Sequence[DueShard]) -> DueShard:
        calls.append(len(due))
        if len(calls) == 1:
            raise KeyError("once")
        return last_first(due)

    assert served(ShardSelector(sources(1, 1), scheduler=moody), 4) == ["q0", "q1", "q1", "q1"]


def test_a_worker_serves_every_queue_in_the_order_of_its_scheduler(broker: Broker) -> None:
    ran: list[str] = []

    def work(queue: str) -> None:
        ran.append(queue)

    for queue in ("a", "b", "c"):
        put(broker, "work", queue, queue=queue)
    run_dry(broker, registry_of(work), queues=("a", "b", "c"), threads=1, prefetch_ms=0.0, scheduler=last_first)
    assert ran == ["c", "b", "a"]


def test_the_setting_names_a_function_or_a_class(settings: Any) -> None:
    def scheduler_of(path: str) -> Any:
        settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"scheduler": path}}
        return config_of_settings().scheduler

    assert scheduler_of("lag") == "lag"
    assert scheduler_of(f"{HERE}.last_first") is last_first
    made = scheduler_of(f"{HERE}.Turns")
    assert isinstance(made, Turns)
    assert served(ShardSelector(sources(1, 1), scheduler=made), 3) == ["q1", "q0", "q1"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no.such", "cannot be imported"),
        (f"{HERE}.HERE", "is not callable"),
        (f"{HERE}.Broken", r"Broken\(\) failed: ZeroDivisionError: no state"),
        (f"{HERE}.Mute", "are not callable; give the class a method __call__"),
        (f"{HERE}.late", "is async or a generator"),
    ],
)
def test_a_wrong_scheduler_is_refused_before_anything_starts(settings: Any, path: str, text: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"scheduler": path}}
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['WORKER'\]\['scheduler'\]: .*{text}"):
        config_of_settings()
