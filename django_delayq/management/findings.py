"""Results of the checks of ``delayq_check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..core.broker import Broker

Level = Literal["OK", "WARN", "ERROR"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check: one line of output."""

    level: Level
    check: str
    text: str


Check = Callable[[Broker], Iterator[Finding]]
