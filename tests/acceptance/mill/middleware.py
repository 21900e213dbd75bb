"""Code around runs: one that is broken for some jobs, before or after the handler."""

from __future__ import annotations

from typing import Any

from django_delayq.worker.attempt import Attempt
from django_delayq.worker.hooks import Call


def fragile(following: Call) -> Call:
    def call(run: Attempt) -> Any:
        if run.job.id.startswith("middleware-before"):
            raise RuntimeError("the middleware is broken before the handler")
        result = following(run)
        if run.job.id.startswith("middleware-after"):
            raise RuntimeError("the middleware is broken after the handler")
        return result

    return call
