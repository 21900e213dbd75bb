"""Middleware around every schedule call, similar to the middleware around an attempt.

``DELAYQ["SCHEDULE_MIDDLEWARE"]`` names functions that are built once per process with the next call::

    def with_tenant(next):
        def call(scheduling):
            scheduling.options.setdefault("context", {})["tenant"] = tenant.get()
            return next(scheduling)
        return call

The first one is the outermost. A middleware raises to refuse a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import Task
from ..settings.conf import SETTING, Conf, conf, load_function


@dataclass(slots=True, eq=False, repr=False)
class Scheduling:
    """One requested job, before it is checked. Changes made here are stored.

    Attributes:
        task: the task; a middleware may replace it, except in ``schedule_many``.
        args, kwargs: the function's arguments; always empty for a merged task.
        options: options of the call by name: ``delay``, ``id``, ``context``, …; for a merged task also ``payload`` and
            ``score``.
        many: True for an entry of ``schedule_many``. The entry is stored with its chunk, so the handle has no outcome
            yet, and an entry that is not passed on is counted as ``skipped``.
    """

    task: Task
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    many: bool
    #: innermost call; internal, not for middleware
    end: Callable[[Scheduling], object]

    def __repr__(self) -> str:
        return f"<Scheduling {self.task.name}>"


#: calls the rest of the chain; returns the job's handle
Chain = Callable[[Scheduling], Any]

_known: tuple[Conf, Chain] | None = None


def chain() -> Chain | None:
    """Return the middleware of the settings around :attr:`Scheduling.end`; None if there is none.

    Raises:
        Misconfigured: one cannot be imported or called.
    """
    global _known
    settings = conf()
    if not settings.schedule_middleware:
        return None
    known = _known
    if known is None or known[0] is not settings:
        innermost: Chain = _end
        known = _known = settings, reduce(_around, reversed(settings.schedule_middleware), innermost)
    return known[1]


def _end(scheduling: Scheduling) -> object:
    return scheduling.end(scheduling)


def _around(inner: Chain, path: str) -> Chain:
    call = load(path)(inner)
    if not callable(call):
        raise Misconfigured(
            f"{SETTING}['SCHEDULE_MIDDLEWARE']: {path} must return a function of one scheduling, not {short(call)}"
        )

    def checked(scheduling: Scheduling) -> Any:
        handle = call(scheduling)
        if handle is None:  # a forgotten `return`; a middleware raises to refuse a job
            raise Misconfigured(
                f"{SETTING}['SCHEDULE_MIDDLEWARE']: {path} returned None instead of a handle; return what "
                f"next(scheduling) returned, or raise to refuse the job"
            )
        return handle

    return checked


def load(path: str) -> Callable[..., Any]:
    """Return the function at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    return load_function(f"{SETTING}['SCHEDULE_MIDDLEWARE']", path)
