"""Which shard is next, and when."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.core import Misconfigured
from tests.support.attempt_stage import NEVER, Pace
from tests.support.waiting_stage import DueShard, ShardSelector, Source
from tests.support.worker_stage import config_of_settings


def queue(name: str, shards: int = 1) -> Any:
    return SimpleNamespace(name=name, shards=shards, numbers=tuple(range(shards)))


def sources(*weights: float) -> list[Source]:
    return [Source(queue(f"q{number}"), 0, Pace(), weight) for number, weight in enumerate(weights)]


def served(
    selector: ShardSelector, times: int, what: Callable[[Source], Any] = lambda source: source.queue.name
) -> list[Any]:
    """Reserve so often, each time with more left; the queues in their order, or something else of the shards."""
    names = []
    for _ in range(times):
        source = selector.due(1.0)
        assert source is not None
        selector.begin_reserve(source, 1.0)
        selector.apply_reply(source, 1.0, 0.0, 1)
        names.append(what(source))
    return names


def test_every_shard_is_due_at_first_and_turns_are_taken() -> None:
    selector = ShardSelector(sources(1, 1, 1))
    assert served(selector, 6) == ["q0", "q1", "q2"] * 2


def test_a_shard_without_room_keeps_its_turn() -> None:
    selector = ShardSelector(sources(1, 1))
    turns = []
    for _ in range(6):
        turns += served(selector, 1)
        selector.due(1.0)  # all slots are full
    assert turns == ["q0", "q1"] * 3


def test_weights_are_kept() -> None:
    selector = ShardSelector(sources(3, 1))
    assert served(selector, 40).count("q0") == 30


def test_who_slept_has_no_credit() -> None:
    first, second = sources(1, 1)
    selector = ShardSelector([first, second])
    second.due_at = NEVER
    served(selector, 100)
    second.due_at = 0.0
    assert served(selector, 10).count("q1") <= 6


def test_an_answer_sets_the_next_moment() -> None:
    (source,) = sources(1)
    selector = ShardSelector([source])
    selector.begin_reserve(source, 10.0)
    selector.apply_reply(source, 10.0, None, 0)
    assert selector.next_due_at() == NEVER and selector.due(1e9) is None
    selector.apply_reply(source, 10.0, 250.0, 0)
    assert selector.next_due_at() == 10.25
    selector.apply_reply(source, 10.0, 0.0, 5)
    assert selector.next_due_at() == 10.0


def test_a_token_that_overtakes_the_answer_is_not_lost() -> None:
    (source,) = sources(1)
    selector = ShardSelector([source])
    selector.begin_reserve(source, 10.0)
    selector.wake([("q0", 0)])
    selector.apply_reply(source, 10.0, None, 0)
    assert selector.due(10.0) is source


def test_due_but_nothing_there_is_asked_for_ever_more_rarely() -> None:
    (source,) = sources(1)
    selector = ShardSelector([source])
    waits = []
    for _ in range(10):
        selector.apply_reply(source, 0.0, 0.0, 0)
        waits.append(source.due_at)
    assert waits == sorted(waits) and waits[0] >= 0.02 and waits[-1] == 1.0


def test_a_nudge_before_the_rest_is_not_lost() -> None:
    selector = ShardSelector(sources(1))
    selector.resting = True
    selector.nudge()
    begin = time.monotonic()
    selector.rest(begin + 10)
    assert time.monotonic() - begin < 1


def test_a_token_ends_the_rest() -> None:
    (source,) = sources(1)
    source.due_at = NEVER
    selector = ShardSelector([source])
    selector.resting = True
    rested = threading.Event()
    thread = threading.Thread(target=lambda: (selector.rest(time.monotonic() + 60), rested.set()))
    thread.start()
    selector.wake([("q0", 0), ("unknown", 3)])
    assert rested.wait(5) and source.due_at == 0.0
    thread.join()


def test_processes_begin_at_different_shards() -> None:
    starts = []
    for index in range(5):
        selector = ShardSelector(index=index)
        selector.serve([queue("a", 4)])
        assert sorted(source.shard for source in selector.sources) == [0, 1, 2, 3]
        starts += served(selector, 1, lambda source: source.shard)
    assert starts == [0, 1, 2, 3, 0]


def test_shards_of_one_queue_share_its_pace_and_known_ones_keep_their_state() -> None:
    selector = ShardSelector(weights={"a": 2.0}, batch_size={"a": 7, "b": 1}.__getitem__)
    selector.serve([queue("a", 3), queue("b")])
    made = selector.sources
    assert [(source.queue.name, source.shard, source.stride, source.pace.size) for source in made] == [
        ("a", 0, 0.5, 7),
        ("a", 1, 0.5, 7),
        ("a", 2, 0.5, 7),
        ("b", 0, 1.0, 1),
    ]
    assert made[0].pace is made[2].pace is not made[3].pace
    selector.serve([queue("a", 4)])
    assert selector.sources[:3] == made[:3] and selector.sources[3].pace is made[0].pace
    assert selector.names == {"a"}


@pytest.mark.parametrize(
    ("seconds", "free", "waiting", "room"),
    [
        (None, 5, 0, 5),  # not measured: no more than free slots
        (None, 5, 3, 2),
        (30.0, 5, 0, 5),  # slow: no more than free slots
        (30.0, 0, 0, 0),
        (0.0001, 5, 0, 500),  # tiny: 50 ms of work
        (0.0001, 0, 100, 400),
        (0.01, 2, 0, 5),
    ],
)
def test_room_is_free_slots_or_fifty_milliseconds_of_work(seconds: Any, free: int, waiting: int, room: int) -> None:
    pace = Pace()
    pace.seconds = seconds
    assert pace.room(free, waiting, 0.05) == room


def test_the_pace_believes_slow_runs_sooner_than_fast_ones() -> None:
    pace = Pace()
    pace.measured(0.001, 10)
    assert pace.seconds == pytest.approx(0.0001) and pace.tiny
    pace.measured(1.0, 1)
    assert pace.seconds > 0.4
    pace.measured(0.001, 10)
    assert pace.seconds > 0.3
    pace.at_least(9.0)
    assert pace.seconds == 9.0


def test_a_run_that_goes_on_never_makes_the_pace_look_faster() -> None:
    pace = Pace()
    pace.measured(10.0, 1)
    pace.at_least(1.0)
    assert pace.seconds == 10.0
    pace.at_least(30.0)
    assert pace.seconds == 30.0


def test_a_shard_that_may_not_be_reserved_from_takes_no_safety_check_from_the_others() -> None:
    selector = ShardSelector(sources(1, 1, 1))
    limited, now = selector.sources[0], time.monotonic()
    checked = Counter[str]()
    for source in selector.sources:
        selector.begin_reserve(source, now)
        selector.apply_reply(source, now, None, 0)
    for _ in range(90):
        now += 1.0
        selector.next_safety_check(now, 5.0)
        while (due := selector.due(now)) is not None:
            checked[due.queue.name] += 1
            if due is limited:
                selector.postpone(due, NEVER)
            else:
                selector.begin_reserve(due, now)
                selector.apply_reply(due, now, None, 0)
    assert set(checked.values()) <= {5, 6}, "each once in a rotation of 15 s"


# --- a scheduler of the project's own


HERE = "tests.worker.test_shard_selector"


def last_first(due: Sequence[DueShard]) -> DueShard:
    return due[-1]


class Turns:
    """A scheduler with state."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, due: Sequence[DueShard]) -> DueShard:
        self.turn += 1
        return due[self.turn % len(due)]


turns = Turns()


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
    assert "the weights decide whenever that happens" in record.getMessage()
    assert record.exc_info


def test_the_setting_names_a_function_or_a_callable_object(settings: Any) -> None:
    def scheduler_of(path: str | None) -> Any:
        settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"scheduler": path}}
        return config_of_settings().scheduler

    assert scheduler_of(None) is None
    assert scheduler_of(f"{HERE}.last_first") is last_first
    assert scheduler_of(f"{HERE}.turns") is turns
    assert served(ShardSelector(sources(1, 1), scheduler=turns), 3) == ["q1", "q0", "q1"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no.such", "cannot be imported"),
        (f"{HERE}.HERE", "is not callable"),
        (f"{HERE}.late", "is async or a generator"),
    ],
)
def test_a_wrong_scheduler_is_refused_before_anything_starts(settings: Any, path: str, text: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "WORKER": {"scheduler": path}}
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['WORKER'\]\['scheduler'\]: .*{text}"):
        config_of_settings()
