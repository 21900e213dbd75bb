"""Code around every schedule call, in the manner of the middlewares around a run.

``DELAYQ["SCHEDULE_MIDDLEWARE"]`` names functions that are built once per process with the next call::

    def with_tenant(next):
        def call(scheduling):
            scheduling.options.setdefault("context", {})["tenant"] = tenant.get()
            return next(scheduling)
        return call

The first one is the outermost. To refuse a job, raise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import Task
from ..settings.conf import SETTING, Conf, conf
from ..settings.loading import load_function


class Scheduling:
    """One job that somebody asks for, before it is checked. What is changed here is what will be stored.

    Attributes:
        task: the task; another one may be put here, except in ``schedule_many``.
        args, kwargs: the function's arguments; of a merged task always empty.
        options: the options of the call by name: ``delay``, ``id``, ``context``, …; of a merged task also ``payload``
            and ``score``.
        many: it is an entry of ``schedule_many``: it is stored with its chunk, so the handle has no outcome yet, and an
            entry that is not passed on is counted as ``skipped``.
    """

    __slots__ = ("args", "end", "kwargs", "many", "options", "task")

    def __init__(
        self,
        task: Task,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        *,
        many: bool,
        end: Callable[[Scheduling], object],
    ) -> None:
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.many = many
        #: what the innermost call does; not for middlewares
        self.end = end

    def __repr__(self) -> str:
        return f"<Scheduling {self.task.name}>"


#: calls the rest of the chain; returns the job's handle
Chain = Callable[[Scheduling], Any]

_known: tuple[Conf, Chain] | None = None


def chain() -> Chain | None:
    """The middlewares of the settings around :attr:`Scheduling.end`; None if there are none.

    Raises:
        Misconfigured: one cannot be imported or called.
    """
    global _known
    settings = conf()
    if not settings.schedule_middleware:
        return None
    if _known is None or _known[0] is not settings:
        innermost: Chain = _end
        _known = settings, reduce(_around, reversed(settings.schedule_middleware), innermost)
    return _known[1]


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
        if handle is None:  # a forgotten `return`; to refuse a job a middleware raises
            raise Misconfigured(
                f"{SETTING}['SCHEDULE_MIDDLEWARE']: {path} returned None instead of a handle; return what "
                f"next(scheduling) returned, or raise to refuse the job"
            )
        return handle

    return checked


def load(path: str) -> Callable[..., Any]:
    """The function at ``path``; :class:`Misconfigured` if there is none."""
    return load_function(f"{SETTING}['SCHEDULE_MIDDLEWARE']", path)
