"""Work on a whole queue that ends with the request that asked for it."""

from __future__ import annotations

from collections.abc import Callable

from django_delayq.core.bulk import Progress
from django_delayq.repair.sweeping import Sweep


def chunks(n: int) -> Callable[[Progress], dict[str, int]]:
    def act(progress: Progress) -> dict[str, int]:
        for place in range(1, n + 1):
            progress(place * 250, n * 250)
        return {"done": n * 250}

    return act


def test_what_fits_into_the_time_is_done_and_added_up() -> None:
    sweep = Sweep(60)
    assert [sweep.run(chunks(3)), sweep.run(chunks(2))] == [{"done": 750}, {"done": 500}]
    assert (sweep.over, sweep.seen, sweep.total, sweep.seconds) == (False, 1250, 1250, 60)


def test_what_takes_too_long_ends_behind_a_chunk_and_so_does_what_comes_behind() -> None:
    sweep = Sweep(-1)
    assert [sweep.run(chunks(3)), sweep.run(chunks(2))] == [{}, {}]
    assert (sweep.over, sweep.seen, sweep.total) == (True, 250, 750)


def test_what_ends_with_the_time_is_not_called_unfinished() -> None:
    sweep = Sweep(-1)
    assert sweep.run(chunks(1)) == {"done": 250}
    assert not sweep.over
