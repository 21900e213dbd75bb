"""The checker finds each due job that waited beside a free slot, and a short campaign leaves none."""

from __future__ import annotations

import pytest

from . import idle as program
from .idle_history import BOUND, Crew, Life, Limit, World

#: one process that serves the queues q and r with two threads; another that serves q with one
CREWS = [Crew(1, frozenset("qr"), 2, 0.0), Crew(2, frozenset("q"), 1, 0.0)]
LATE = BOUND + 1


def job(start: float, end: float, *, pid: int = 1, queue: str = "q", task: str = "t", due: float = 0.0) -> Life:
    return Life(f"{queue}{start}{pid}", queue, task, due or start, start, end, pid)


#: waits from 0 to LATE
WAITED = Life("late", "q", "t", 0.0, LATE, LATE + 1, 1)


@pytest.mark.parametrize(
    ("world", "found"),
    [
        (World(CREWS, [WAITED], {}), True),
        (World(CREWS, [job(-1, 9, pid=2), WAITED], {}), True),  # a slot of the first one is free
        (World(CREWS, [job(-1, 9, pid=2), job(-1, 9), job(-1, LATE, queue="r"), WAITED], {}), False),
        (World(CREWS, [job(-1, 9, pid=2), job(-1, 9), job(-1, 0.5, queue="r"), WAITED], {}), True),
        (World(CREWS, [job(-1, 9, pid=2), job(-1, 9), job(-1, 1.5, queue="r"), WAITED], {}), False),
        (World(CREWS[1:], [Life("r", "r", "t", 0.0, LATE, 9, 2)], {}), False),  # nobody serves its queue
        (World([Crew(1, frozenset("q"), 2, LATE - 1)], [WAITED], {}), False),
        (World([Crew(1, frozenset("q"), 2, 0.0, until=1.0)], [WAITED], {}), False),
        (World(CREWS, [WAITED], {}, {"q": [(0.5, LATE)]}), False),
        (World(CREWS, [WAITED], {}, {"r": [(0.5, LATE)]}), True),
        (World(CREWS, [job(-1, LATE), WAITED], {"q": Limit(total=1)}), False),
        (World(CREWS, [job(-1, LATE), WAITED], {"t": Limit(total=1)}), False),
        (World(CREWS, [job(-1, LATE), WAITED], {"t": Limit(total=2)}), True),
        (World(CREWS, [job(-1, LATE), WAITED], {"t": Limit(local=1)}), True),  # not in the other process
        (World(CREWS, [job(-1, LATE), job(-1, LATE, pid=2), WAITED], {"t": Limit(local=1)}), False),
        (World(CREWS, [Life("never", "q", "t", 0.0), job(8, 9)], {}), True),
    ],
)
def test_a_job_that_waited_beside_a_free_slot_is_found(world: World, found: bool) -> None:
    assert bool(world.violations()) == found


def test_a_short_campaign_leaves_no_due_job_beside_a_free_slot(capfd: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--setups", "1", "--seed", "2"])
    shown = capfd.readouterr()
    assert code == 0, shown.err + shown.out
    assert shown.out.endswith("0 of 1 set-ups left due jobs beside a free slot\n")


@pytest.mark.slow
def test_a_campaign_leaves_no_due_job_beside_a_free_slot(capfd: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--setups", "8", "--seed", "1"])
    shown = capfd.readouterr()
    assert code == 0, shown.err + shown.out
