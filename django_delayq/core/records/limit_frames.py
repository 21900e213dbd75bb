"""Limits that a reserve names (``lua/lib/park.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .frames import pack


@dataclass(frozen=True, slots=True)
class Allowance:
    """Number of jobs of a task that a reserve may hand out.

    Args:
        tasks: the name of the task, and its aliases.
        left: that number.
        local: the limit is one of each process, so that another consumer may have room.
    """

    tasks: tuple[str, ...]
    left: int
    local: bool = False


def pack_allowances(allowances: Sequence[Allowance]) -> bytes:
    """Return the allowances as an argument of the script."""
    return pack([{"tasks": one.tasks, "left": max(one.left, 0), "is_local": one.local} for one in allowances])
