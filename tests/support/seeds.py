"""Seed of tests that draw what they do."""

from __future__ import annotations

import os
import random


def seed_of_run() -> int:
    """Return the seed in ``DELAYQ_SEED``, else a new one, and print it: pytest shows it if the test fails."""
    seed = int(os.environ.get("DELAYQ_SEED", random.randrange(1 << 30)))
    print(f"DELAYQ_SEED={seed} draws the same again")
    return seed
