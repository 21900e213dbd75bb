"""``DELAYQ["CONTEXT"]``: context variables that travel with a job, from the schedule call to around the handler.

``{"trace": "shop.tracing.trace_id"}`` puts the value that ``trace_id`` has at the schedule call into the job's context
under "trace", and sets it again before the handler (a handler that schedules passes it on, therefore). Of a batch the
first job's context is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.job import Job
from .conf import SETTING, Conf, conf
from .loading import load

Links = Mapping[str, ContextVar[Any]]
_NOTHING: Final[Mapping[str, Any]] = {}

_known: tuple[Conf, Links] | None = None


def links(settings: Conf | None = None) -> Links:
    """The context variables by the names under which they travel.

    Raises:
        Misconfigured: a path cannot be imported, or there is no ContextVar there.
    """
    global _known
    settings = settings or conf()
    if not settings.context:
        return _NOTHING
    if _known is None or _known[0] is not settings:
        _known = settings, {name: link(name, path) for name, path in settings.context.items()}
    return _known[1]


def link(name: str, path: str) -> ContextVar[Any]:
    """The variable at ``path``; :class:`Misconfigured` if there is none."""
    where = f"{SETTING}['CONTEXT'][{name!r}]"
    found = load(where, path)
    if not isinstance(found, ContextVar):
        raise Misconfigured(f"{where}: {path} is no contextvars.ContextVar, it is {short(found)}")
    return found


def collect() -> Mapping[str, Any]:
    """What the variables hold here and now; those that are not set, or None, are left out."""
    found = links()
    if not found:
        return _NOTHING
    values = {name: variable.get(None) for name, variable in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def restore(job: Job, found: Links) -> None:
    """Set the variables as they were at the schedule call of ``job``, for the rest of the current context."""
    context = job.context
    for name, variable in found.items():
        if name in context:
            variable.set(context[name])
