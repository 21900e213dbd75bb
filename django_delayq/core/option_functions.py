"""Functions among the options of a task: their checks, and the ids and scores that they derive from a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidJob
from .inputs import short

if TYPE_CHECKING:
    from .task import Task


def check_takes_two(function: object) -> None:
    """Check that ``on_exhausted`` can be called with two arguments; otherwise raise :class:`InvalidJob`."""
    if not callable(function):
        raise InvalidJob(f"on_exhausted must be a function of (job, error), got {short(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin without a signature
    try:
        signature.bind(None, None)
    except TypeError:
        raise InvalidJob(f"on_exhausted is called with (job, error); {short(function)} takes {signature}") from None


def check_derivations(id: object, score: object) -> None:
    """Check the options ``id`` and ``score`` of a task; raise :class:`InvalidJob` if one is not usable."""
    if id is not None and not callable(id) and not (isinstance(id, str) and "{" in id):
        raise InvalidJob(
            f'id must be a function of the call\'s arguments, or a template of them like "order-{{order_id}}", got '
            f"{short(id)}; the id of one job goes to its schedule call"
        )
    if score is not None and not callable(score):
        raise InvalidJob(f"score must be a function of the payload, got {short(score)}")


def with_derived(
    task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a call with the id and the score that its task derives, unless the call gives them.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: a function or template of the task failed.
    """
    completed, merge = dict(options), task.options.merge
    if not merge:
        task.bind(args, dict(kwargs))
    elif not args:
        args = (options.get("payload"),)
    for name in ("id", "score"):
        derive = getattr(task.options, name)
        if derive is not None and completed.get(name) is None:
            try:
                completed[name] = (
                    _fill(task, derive, args, kwargs) if isinstance(derive, str) else derive(*args, **kwargs)
                )
            except Exception as error:
                raise InvalidJob(
                    f"task {task.name}: its {name}= failed for these arguments ({type(error).__name__}: "
                    f"{short(str(error))}); mend {short(derive)}, or give {name}= with the call"
                ) from error
    return completed


def _fill(task: Task, template: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the template filled with the arguments by name, or with the members of a payload."""
    if task.options.merge:
        (payload,) = args
        return template.format(**{"payload": payload, **(payload if isinstance(payload, Mapping) else {})})
    bound = inspect.signature(task.func).bind(*args, **kwargs)
    bound.apply_defaults()
    return template.format(*args, **{**bound.arguments, **kwargs})
