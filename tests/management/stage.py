"""Commands called as functions, and jobs in the places of which they tell."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from django.core.management import call_command

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job
from django_delayq.core.outcomes import Settlement, bury, fail
from tests.app.deeds import note


class Terminal(io.StringIO):
    """Stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(*words: str) -> tuple[str, str]:
    """Return what a command prints on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    call_command(*words, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def run(*words: str) -> str:
    """Return what a command prints on stdout, without blanks around it."""
    return printed(*words)[0].strip()


def told(*words: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(run(*words, "--json"))


def ended(broker: Broker, how: Callable[[Job], Settlement], *ids: str, task: Any = note) -> None:
    """Schedule jobs of the queue ``default``, and end an attempt of each, in this order."""
    queue = broker.queue("default")
    for ident in ids:
        schedule(task, f"text of {ident}", id=ident)
        (job,) = queue.reserve(queue.shard_of(ident), 10, worker="w").jobs
        assert queue.settle([how(job)]) == [True]


def failed(job: Job, **options: Any) -> Settlement:
    """Let the attempt fail; the next one is in a minute."""
    return fail(job, 0, 5, delay_ms=60_000, **options)


def buried(job: Job, error_class: str = "ValueError") -> Settlement:
    """Bury the job with an error that would change the colours of a terminal."""
    error = json.dumps({"message": f"no {job.id}\x1b[31m", "traceback": "Traceback\n  line"}).encode()
    return bury(job, 0, 5, reason="exhausted", outcome="exhausted", error_class=error_class, error=error)
