"""``delayq_pipeline run`` that stops for good at a step: ``python -m tests.pipeline.history_kill_program STEP``.

It says the step's name on stdout, and waits to be killed.
"""

from __future__ import annotations

import signal
import sys
from functools import partial

import django
from django.core.management import call_command

from django_delayq.pipeline import history


def stops_at(wanted: str, name: str) -> None:
    if name == wanted:
        print(f"at {name}", flush=True)
        signal.pause()


if __name__ == "__main__":
    django.setup()
    from .history_stage import stepping  # imports models

    made = history.History
    # what the command makes its driver of
    history.History = lambda *args: stepping(made(*args), partial(stops_at, sys.argv[1]))  # type: ignore[assignment, misc]
    call_command("delayq_pipeline", "run")
    print("done", flush=True)
