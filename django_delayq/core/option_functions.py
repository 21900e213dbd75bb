"""Functions among the options of a task: their checks, and ids, due times and scores that they derive from a call."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidJob, Misconfigured
from .inputs import short

if TYPE_CHECKING:
    from .task import Task

#: kinds of parameters whose arguments may be given by position
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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


def check_derivations(id: object, at: object, score: object) -> None:
    """Check the options ``id``, ``at`` and ``score`` of a task; raise :class:`InvalidJob` if one is not usable."""
    if id is not None and not callable(id) and not (isinstance(id, str) and "{" in id):
        raise InvalidJob(
            f'id must be a function of the call\'s arguments, or a template of them like "order-{{order_id}}", got '
            f"{short(id)}; the id of one job goes to its schedule call"
        )
    if at is not None and not callable(at):
        raise InvalidJob(
            f"at must be a function of the call's arguments that returns the due time, got {short(at)}; the due time "
            "of one job goes to its schedule call"
        )
    if score is not None and not callable(score):
        raise InvalidJob(f"score must be a function of the payload, got {short(score)}")


def check_template(template: object, function: Callable[..., Any]) -> None:
    """Check that the arguments of a function can fill an id template; raise :class:`Misconfigured` if none can."""
    parameters = inspect.signature(function).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    if not isinstance(template, str) or inspect.Parameter.VAR_KEYWORD in kinds:
        return
    by_place = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in _BY_PLACE for kind in kinds)
    for name in _names_in(template):
        if not (int(name) < by_place if name.isdigit() else name in parameters):
            raise Misconfigured(
                f"the id {short(template)} names no argument {name!r} of {short(function)}; it takes "
                f"{', '.join(map(repr, parameters)) or 'none'}"
            )


def _names_in(template: str) -> Iterator[str]:
    """Yield the names and numbers of the arguments in a template, also of those inside formats."""
    numbers = count()
    try:
        for _, field, form, _ in Formatter().parse(template):
            if field is not None:
                yield re.split(r"[.\[]", field, maxsplit=1)[0] or str(next(numbers))
                yield from _names_in(form or "")
    except ValueError as error:
        raise Misconfigured(f"the id {short(template)} is no template ({error}); write it like order-{{pk}}") from None


def with_derived(
    task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a call with the id, due time and score that its task derives, unless it gives them.

    A ``delay`` of the call is a due time, too.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: a function or template of the task failed.
    """
    completed, merge = dict(options), task.options.merge
    if not merge:
        task.bind(args, dict(kwargs))
    elif not args:
        args = (options.get("payload"),)
    for name in ("id", "at", "score"):
        derive = getattr(task.options, name)
        given = completed.get(name) is not None or (name == "at" and completed.get("delay") is not None)
        if derive is not None and not given:
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
