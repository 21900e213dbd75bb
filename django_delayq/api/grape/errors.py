"""Errors as Grape tells them: ``{"code": …, "desc": …}``."""

from __future__ import annotations

from typing import Final

from rest_framework.response import Response

from ..problems import Problem, answer

TUBE_UNKNOWN: Final = 1000
TUBE_EMPTY: Final = 1001
TUBE_INVALID: Final = 1002
TUBE_TOO_LONG: Final = 1003
JOB_ID_EMPTY: Final = 2001
DTR_INVALID: Final = 2002
TTR_INVALID: Final = 2003
#: whatever is not the caller's fault
FAILURE: Final = 9999


class GrapeError(Problem):
    """400 with one of Grape's own codes."""

    def __init__(self, number: int, detail: str) -> None:
        super().__init__(400, "invalid", detail)
        self.number = number


def told(problem: Problem, *, authenticate: str = "") -> Response:
    """A problem as Grape's clients know errors. What Grape has no code for has that of its HTTP status."""
    number = FAILURE if problem.status_code >= 500 else problem.status_code
    if isinstance(problem, GrapeError):
        number = problem.number
    response = answer(problem, authenticate=authenticate)
    response.data = {"code": number, "desc": str(problem.detail)}
    response.content_type = "application/json"
    return response
