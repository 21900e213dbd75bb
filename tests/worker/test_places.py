"""Start times of the next child in a supervisor's place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django_delayq.worker.supervisor import LONG_LIFE, Place


def child(*, born: float, ready: bool = True) -> Any:
    return SimpleNamespace(born=born, board=SimpleNamespace(ready=born + 0.1 if ready else 0.0))


def pauses(place: Place, deaths: int, *, ready: bool = True, expected: bool = False) -> list[float]:
    """The pauses behind so many children that died a second after their start."""
    found = []
    for number in range(deaths):
        now = 100.0 * number
        place.plan_restart(child(born=now - 1, ready=ready), now, expected=expected)
        found.append(place.start_at - now)
    return found


def test_the_first_three_children_that_die_fast_are_replaced_at_once_and_the_next_ones_after_pauses() -> None:
    assert pauses(Place(0), 11) == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_children_that_never_served_are_replaced_after_pauses_from_the_first_on() -> None:
    assert pauses(Place(0), 4, ready=False) == [1, 2, 4, 8]


def test_a_child_that_lived_for_a_while_or_ended_on_purpose_ends_the_pauses() -> None:
    place = Place(0)
    assert pauses(place, 5)[-1] == 2
    place.plan_restart(child(born=1000 - LONG_LIFE), 1000, expected=False)
    assert (place.start_at, pauses(place, 4)) == (1000, [0, 0, 0, 1])
    assert pauses(place, 1, expected=True) == [0] and pauses(place, 3) == [0, 0, 0]


def test_a_quarantine_child_that_died_at_work_is_replaced_at_once_and_one_that_never_served_is_not() -> None:
    place = Place(3, quarantine=True)
    assert pauses(place, 6) == [0] * 6
    assert pauses(place, 3, ready=False) == [1, 2, 4]
