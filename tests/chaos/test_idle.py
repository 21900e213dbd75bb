"""The checker finds each due job that waited beside a free slot and each broken limit, and a short campaign none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import idle as program
from .idle_history import BOUND, Crew, Life, Limit, World

#: one process that serves the queues q and r with two threads; another that serves q with one
CREWS = [Crew(1, frozenset("qr"), 2, 0.0), Crew(2, frozenset("q"), 1, 0.0)]
LATE = BOUND + 1


def job(
    start: float, end: float, *, pid: int = 1, queue: str = "q", task: str = "t", due: float = 0.0, group: str = ""
) -> Life:
    return Life(f"{queue}{start}{pid}", queue, task, due or start, start, end, pid, group)


#: waits from 0 to LATE
WAITED = Life("late", "q", "t", 0.0, LATE, LATE + 1, 1)


def in_group(life: Life) -> Life:
    return replace(life, group="g")


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
        (World(CREWS, [job(-1, LATE, group="g"), in_group(WAITED)], {"g": Limit(total=1)}), False),
        (World(CREWS, [job(-1, LATE), in_group(WAITED)], {"g": Limit(total=1)}), True),  # the other has no group
        (World(CREWS, [in_group(WAITED)], {}, {"g": [(0.5, LATE)]}), False),
        (World(CREWS, [job(-1, 0), WAITED], {"q": Limit(interval=LATE, burst=1)}), False),
        (World(CREWS, [job(-1, 0), WAITED], {"q": Limit(interval=LATE, burst=2)}), True),
        (World(CREWS, [job(0, 2), job(1, 3)], {"q": Limit(total=1)}), True),  # a broken limit
        (World(CREWS, [job(0, 1), job(1, 3)], {"q": Limit(total=1)}), False),
        (World(CREWS, [job(0, 1), job(0, 3), job(0.1, 1)], {"t": Limit(interval=1.0, burst=2)}), True),
        (World(CREWS, [job(0, 1), job(0, 3), job(1, 1)], {"t": Limit(interval=1.0, burst=2)}), False),
    ],
)
def test_a_job_that_waited_beside_a_free_slot_is_found(world: World, found: bool) -> None:
    assert bool(world.violations()) == found


def test_a_short_campaign_leaves_no_due_job_beside_a_free_slot(capfd: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--setups", "1", "--seed", "2"])
    shown = capfd.readouterr()
    assert code == 0, shown.err + shown.out
    assert "0 of 1 set-ups" in shown.out


@pytest.mark.slow
def test_a_campaign_leaves_no_due_job_beside_a_free_slot(capfd: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--setups", "12", "--seed", "1"])
    shown = capfd.readouterr()
    assert code == 0, shown.err + shown.out
