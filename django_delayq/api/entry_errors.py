"""Errors of job entries, with a JSON pointer to the invalid member."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from ..access.problems import Problem, pointer_token
from ..core.errors import InvalidJob
from ..core.inputs import suggest
from ..core.task import Task

#: maximum number of errors reported for one request
MOST_ERRORS: Final = 50
#: members of entries of pull queues
PULL_ONLY: Final = ("body", "body_base64")
#: start of an error message about one member: "delay is …", "at= lies …", "expires=… is …"
_SUBJECT: Final = re.compile(r"(argument )?([a-z_]+|\d+|'[^']*')")


class InvalidEntry(InvalidJob):
    """Error for an invalid entry; ``member`` is the JSON pointer to the invalid member, relative to the entry."""

    def __init__(self, member: str, text: str) -> None:
        super().__init__(text)
        self.member = member


class TaskNotFound(Exception):
    """Error for a task name that cannot be scheduled over HTTP."""


def refuse_members(options: dict[str, Any], members: frozenset[str], *, pull: bool) -> NoReturn:
    """Raise the error for an entry with a member that is not among ``members``."""
    name = next(name for name in options if name not in members)
    if name in ("payload", "score"):
        hint = " It is for merged tasks."
    elif name in PULL_ONLY and not pull:
        hint = " It is for queues of kind pull."
    elif name in ("task", "args", "kwargs", "durable") and pull:
        hint = " This queue is of kind pull: its jobs are bytes, not calls of tasks."
    else:
        hint = suggest(name, members)
    pointer = pointer_token(name[:60])
    names = ", ".join(sorted(members if pull else {*members, "task"}))
    raise InvalidEntry(f"/{pointer}", f"unknown member.{hint} Known are: {names}")


def locate_error(error: Exception, task: Task | None, members: frozenset[str]) -> InvalidEntry:
    """Return the error with a pointer to the member its message is about."""
    text = str(error)
    if task is not None:
        text = text.removeprefix(f"task {task.name}: ")
    subject = _SUBJECT.match(text)
    if subject is None:
        return InvalidEntry("", text)
    argument, word = subject.groups()
    if argument:
        word = pointer_token(word.strip("'"))
        return InvalidEntry(f"/args/{word}" if word.isdigit() else f"/kwargs/{word}", text)
    return InvalidEntry(f"/{word}" if word in members else "", text)


def invalid_entries(errors: list[tuple[str, str]]) -> Problem:
    """Return a 400 problem for these pairs of a JSON pointer and a text."""
    where, text = errors[0]
    return Problem(400, "invalid", f"{where or '/'}: {text}. Nothing was stored", errors=errors)


def tasks_not_found(errors: list[tuple[str, str]]) -> Problem:
    """Return a 404 problem for these pairs of a JSON pointer and a text."""
    return Problem(404, "task_not_found", f"{errors[0][1]}. Nothing was stored", errors=errors)
