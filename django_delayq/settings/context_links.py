"""``DELAYQ["CONTEXT"]``: context variables that are stored with a job at the schedule call and set for its handler.

``{"trace": "shop.tracing.trace_id"}`` stores the value of ``trace_id`` at the schedule call in the job's context under
"trace", and sets the variable again before the handler. A handler that schedules therefore passes it on. For a batch
the context of the first job is set.
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
    """Return the context variables by the names under which they are stored.

    Raises:
        Misconfigured: a path cannot be imported, or is not a ContextVar.
    """
    global _known
    settings = settings or conf()
    if not settings.context:
        return _NOTHING
    known = _known
    if known is None or known[0] is not settings:
        known = _known = settings, {name: link(name, path) for name, path in settings.context.items()}
    return known[1]


def link(name: str, path: str) -> ContextVar[Any]:
    """Return the variable at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    where = f"{SETTING}['CONTEXT'][{name!r}]"
    variable = load(where, path)
    if not isinstance(variable, ContextVar):
        raise Misconfigured(f"{where}: {path} is no contextvars.ContextVar, it is {short(variable)}")
    return variable


def collect() -> Mapping[str, Any]:
    """Return the current values of the variables, without those that are unset or None."""
    linked = links()
    if not linked:
        return _NOTHING
    values = {name: variable.get(None) for name, variable in linked.items()}
    return {name: value for name, value in values.items() if value is not None}


def restore(job: Job, links: Links) -> None:
    """Set the variables to their values at the schedule call of ``job``, for the rest of the current context."""
    context = job.context
    for name, variable in links.items():
        if name in context:
            variable.set(context[name])
