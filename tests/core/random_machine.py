"""Settings of all random machines: short and always the same, or a long campaign with new lives every time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

EXAMPLES = os.environ.get("DELAYQ_MODEL_EXAMPLES")


def run_machine(machine: type[RuleBasedStateMachine], examples: int, *, steps: int = 40) -> None:
    """Run a machine; ``DELAYQ_MODEL_EXAMPLES`` replaces the number of its lives and makes it a campaign."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(EXAMPLES or examples),
            stateful_step_count=steps,
            deadline=None,
            derandomize=EXAMPLES is None,
            database=None,
            print_blob=False,
            # A run that is always the same fails at once; its history is made short by a campaign.
            phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
