"""Conditions and orders by which the clients choose jobs."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict


class Where(TypedDict, total=False):
    """Conditions; a job meets all of them.

    ``text`` is in the id, the task's name, the arguments or payloads (canonical JSON without masked values), the
    context or the last error; ``prefix`` begins the id, ``id_to`` is the last one, ``failures`` the least number,
    ``failures_to`` the greatest one.
    """

    text: str
    task: str
    prefix: str
    id_from: str
    id_to: str
    due_from: datetime | float
    due_before: datetime | float
    failures: int
    failures_to: int
    never_started: bool
    buried_from: datetime | float
    buried_before: datetime | float


class Listing(Where, total=False):
    """Filters of a list of jobs; by default all waiting jobs (or the whole morgue).

    ``state`` is delayed, ready, waiting, reserved, gated or failed (not for the morgue), ``by`` one of its orders,
    ``order`` asc or desc, ``min`` and ``max`` are bounds in the unit of ``by``, ``limit`` (up to 250) is a page's size.
    """

    state: str
    by: str
    order: str
    limit: int
    id: str
    min: datetime | float | str
    max: datetime | float | str
