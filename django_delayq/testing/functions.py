"""Methods of the active in-memory queue as importable functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from .fake import Fake, active, actives

P = ParamSpec("P")
R = TypeVar("R")


class _ActiveClock:
    """Clock of the active in-memory queue."""

    @property
    def now(self) -> datetime:
        """Current time (UTC)."""
        return active().clock.now

    def __repr__(self) -> str:
        return f"<clock {self.now}>" if actives else "<clock, no in-memory queue is active>"


def _function_of(method: Callable[Concatenate[Fake, P], R]) -> Callable[P, R]:
    """Return the method as a function on the active queue, with its docstring and signature."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(active(), *args, **kwargs)

    signature = inspect.signature(method)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


clock: Final = _ActiveClock()
scheduled_jobs = _function_of(Fake.scheduled_jobs)
assert_scheduled = _function_of(Fake.assert_scheduled)
refute_scheduled = _function_of(Fake.refute_scheduled)
run_due = _function_of(Fake.run_due)
arun_due = _function_of(Fake.arun_due)
freeze = _function_of(Fake.freeze)
travel = _function_of(Fake.travel)
fail_next = _function_of(Fake.fail_next)
redis_down = _function_of(Fake.redis_down)
