"""Recurring tasks on several machines, of which one dies."""

from __future__ import annotations

from collections import Counter

from .conftest import MakeMill
from .world import until

ENV = {"MILL_CLOCK": "1"}


def test_each_tick_is_run_once_by_two_nodes_of_which_one_is_killed_in_between(make_mill: MakeMill) -> None:
    mill = make_mill(lease=1.5)
    nodes = [mill.start("--threads", 2, queues="clock", **ENV) for _ in range(2)]

    def has_ended(count: int) -> None:
        until(lambda: len(mill.lines("end")) >= count and mill.counts("clock").reserved == 0, f"the end of run {count}")

    has_ended(2)
    nodes[0].kill()
    gone = len(mill.starts())
    has_ended(gone + 3)
    ticks = Counter(round(line["due"] * 1000) for line in mill.starts())
    assert set(ticks.values()) == {1}, ticks
    first, last = min(ticks), max(ticks)
    # A tick that meets a job which still waits is merged into it.
    waited = [(line["due"] * 1000, line["at"] * 1000) for line in mill.starts()]
    merged = [tick for tick in range(first, last, 1000) if any(due < tick <= at for due, at in waited)]
    assert set(range(first, last + 1, 1000)) - set(merged) <= set(ticks), "a tick is missing"
    assert first % 1000 == 0
    assert {line["id"] for line in mill.starts()} == {"recurring:mill.strike"}
    assert {line["pid"] for line in mill.starts()[gone:]} == set(nodes[1].children())
    late = max(line["at"] - line["due"] for line in mill.starts())
    print(f"{len(ticks)} ticks, the latest began {late * 1000:.0f} ms after its time")
