import sys, pytest
from hypothesis import settings, Phase, HealthCheck
import tests.core.test_model as t
from hypothesis.stateful import run_state_machine_as_test
def test_lives(connection):
    machine = type("LivesHere", (t.Lives,), {"connection": connection})
    run_state_machine_as_test(machine, settings=settings(max_examples=int(__import__('os').environ.get("N","150")), stateful_step_count=50, deadline=None, database=None, print_blob=False, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)))
