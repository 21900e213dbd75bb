"""The checker finds every kind of broken promise, and a short campaign breaks none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import __main__ as program, durable, masters
from .history import Limit, Promise, exceeded, violations


def start(at: float, *, due: float = 0.0, token: int = 1) -> dict[str, Any]:
    return {"event": "start", "id": "a", "at": at, "due": due, "token": token}


END = {"event": "end", "id": "a", "at": 3.0}


@pytest.mark.parametrize(
    ("promise", "trace", "morgue", "live", "sentence"),
    [
        (Promise("a"), [], [], [], "a: acknowledged and lost (0 starts)"),
        (Promise("a"), [start(1)], [], [], "a: acknowledged and lost (1 starts)"),
        (Promise("a", doomed=True), [start(1)], [], [], "a: acknowledged and lost (1 starts)"),
        (Promise("a"), [start(1), END], ["a"], [], "a: in the morgue, though no attempt of it failed for good"),
        (Promise("a"), [start(1), END], [], ["a"], "a: still in the queue"),
        (Promise("a", due=2.0), [start(1, due=2.0), END], [], [], "a: started 1.000 s early"),
        (Promise("a", due=2.5), [start(2, due=1.0), END], [], [], "a: started 0.500 s early"),
        (
            Promise("a", cancel="cancelled", cancelled_at=1.0),
            [start(2), END],
            [],
            [],
            "a: started after its cancellation was acknowledged",
        ),
        (
            Promise("a"),
            [start(1, token=7), start(2, token=7), END],
            [],
            [],
            "a: fencing tokens do not grow: [7, 7]",
        ),
    ],
)
def test_a_broken_promise_is_found(
    promise: Promise, trace: list[dict[str, Any]], morgue: list[str], live: list[str], sentence: str
) -> None:
    assert violations([promise], trace, morgue, live) == [sentence]


def test_a_history_in_which_all_was_kept_has_no_violations() -> None:
    promises = [
        Promise("a", due=1.0),
        Promise("b", cancel="cancelled", cancelled_at=1.0),
        Promise("c", cancel="unknown"),
        Promise("e", cancel="unknown"),
        Promise("f", cancel="stopping"),
        Promise("d", doomed=True),
    ]
    trace = [start(1.0, due=1.0), start(2.0, due=1.0, token=2), END, {**END, "id": "c"}]
    assert violations(promises, trace, ["d"], []) == []


def test_a_start_that_is_one_too_many_for_a_limit_is_found() -> None:
    promises = [Promise(ident, limits=("x",)) for ident in "abcd"]
    spans = {"a": (0.0, 0.4), "b": (0.1, 0.2), "c": (0.2, 0.5), "d": (0.3, 9.0)}
    trace = [
        {"event": event, "id": ident, "at": at, "token": 1}
        for ident, span in spans.items()
        for event, at in zip(("start", "end"), span, strict=True)
    ]
    assert list(exceeded(promises, trace, {"x": Limit(2)}, 1.5)) == [], "d was frozen"
    assert len(list(exceeded(promises, trace, {"x": Limit(1)}, 1.5))) == 2


@pytest.mark.parametrize(("at_ms", "found"), [((0, 0, 100), 0), ((0, 10, 20), 1), ((0, 0, 0, 0), 2)])
def test_a_start_beyond_a_rate_is_found_by_when_jobs_were_handed_out(at_ms: tuple[int, ...], found: int) -> None:
    promises = [Promise(str(place), limits=("x",)) for place in range(len(at_ms))]
    trace = [
        {"event": "start", "id": str(place), "at": 9.0, "token": 10**15 + ms * 1000} for place, ms in enumerate(at_ms)
    ]
    assert len(list(exceeded(promises, trace, {"x": Limit(rate=10.0, burst=2)}, 0.1))) == found


def test_a_short_campaign_breaks_no_promise(capfd: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--seconds", "6", "--seed", "3", "--only", "server"])
    shown = capfd.readouterr()
    assert code == 0, shown.err
    assert "\nserver: 0 broken promises\n" in shown.out


def test_orders_that_are_not_charged_exactly_once_are_found() -> None:
    orders, regrets = Counter(["a", "b", "c", "d"]), Counter(["c", "d"])
    assert durable.violations(orders, regrets, Counter(["a", "a", "c", "e"])) == [
        "a: ordered, and charged 2 times",
        "b: ordered, and charged 0 times",
        "c: regretted, and charged 1 times",
        "e: never committed, and charged 1 times",
    ]
    assert durable.violations(orders, regrets, Counter(["a", "b"])) == []


@pytest.mark.slow
def test_postgresql_and_redis_die_and_each_order_is_charged_once(tmp_path: Path) -> None:
    assert durable.run(tmp_path, 12.0, 5) == []


@pytest.mark.slow
def test_masters_of_a_cluster_die_and_no_promise_is_broken(tmp_path: Path) -> None:
    assert masters.run(tmp_path, 12.0, 5) == []
