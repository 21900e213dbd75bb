"""Innocent jobs with poisonous neighbours, in random worlds of real processes: who is buried, and for what."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from django_delayq.core import Broker
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import eventually, places, put

from ..support.seeds import seed_of_run

CRASH_LIMIT = 2  # of the task "deadly"


@pytest.mark.parametrize("seed", [1, 2])
def test_no_innocent_job_is_buried_beside_a_poisonous_one(
    program: Callable[..., Program],
    broker: Broker,
    seed: int,
) -> None:
    live_beside_poison(program, broker, random.Random(seed), innocents=40, poisonous=1)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(20))
def test_no_innocent_job_is_buried_beside_many_poisonous_ones(
    program: Callable[..., Program],
    broker: Broker,
    round_: int,
) -> None:
    seed = seed_of_run()
    live_beside_poison(program, broker, random.Random(seed), innocents=150, poisonous=random.Random(seed).randint(2, 5))


def live_beside_poison(
    program: Callable[..., Program],
    broker: Broker,
    dice: random.Random,
    *,
    innocents: int,
    poisonous: int,
) -> None:
    """Only poison is buried, for crashes of its own, and nothing else starts more than twice."""
    jobs = [("brief", f"innocent-{number}", dice.choice((1, 1, 2, 26))) for number in range(innocents)]
    jobs += [("deadly", f"poison-{number}", 26) for number in range(poisonous)]
    dice.shuffle(jobs)
    for task, ident, most in jobs:
        put(broker, task, dice.uniform(0, 0.1), id=ident, options=b'{"max_attempts":%d}' % most)
    running = program(processes=dice.randint(1, 3), threads=dice.randint(2, 4), quarantine=dice.randint(1, 3))
    eventually(lambda: hasten(broker, poisonous) and places(broker) == {"morgue": poisonous}, "an end", seconds=90)

    graves = {view.id: view for view in broker.inspector.page("default", "morgue", limit=250).jobs}
    assert sorted(graves) == sorted(ident for task, ident, _ in jobs if task == "deadly")
    starts = Counter(ident for word, ident, _, _ in running.trace() if word == "begun")
    for ident, view in graves.items():
        assert view.reason == "poison"
        # One crash beside others, of which nobody knows whose it was; from then on each is its own.
        assert CRASH_LIMIT <= view.job.crashes == starts[ident] <= CRASH_LIMIT + 1
    ended = Counter(ident for word, ident, _, _ in running.trace() if word == "ended")
    for task, ident, _ in jobs:
        if task == "brief":
            assert 1 <= ended[ident] <= starts[ident] <= 2, f"{ident}: nothing but its neighbour's crash runs it again"
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def hasten(broker: Broker, poisonous: int) -> bool:
    """The second and later crashes are tried again after ten seconds and more: do not wait for that."""
    for number in range(poisonous):
        broker.queue("default").run_now(f"poison-{number}")
    return True
