"""Options of a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core.inputs import short
from .errors import PipelineError
from .quality import EXPECTATIONS, Expectation
from .redis_options import DEFAULT_PREFIX, address_of

_SIGNS = frozenset("*?[]{}\\")


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Location, inputs and retention of a history."""

    #: a path, or a URL that Spark and deltalake can write to (:data:`.store.SCHEMES`)
    root: str
    #: address of Redis: a URL, or JSON for the core's ``RedisConfig.parse``
    redis: str | None = None
    #: or the name of an environment variable that holds the same; Spark's plans do not show its value
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: queues to read now; empty = every one, future ones included. The others keep their positions
    queues: tuple[str, ...] = ()
    #: name of this history's checkpoint below the root
    consumer: str = "history"
    #: task or queue → seconds by which an attempt may be late; "*" = all others
    sla: Mapping[str, float] = field(default_factory=lambda: {"*": 60.0})
    #: events per batch
    max_rows: int = 500_000
    #: days; None = keep forever
    keep_events_days: float | None = 30.0
    keep_attempts_days: float | None = 180.0
    keep_hours_days: float | None = 365.0
    expectations: tuple[Expectation, ...] = EXPECTATIONS
    #: False: a gap in the streams is logged, and reading continues after it
    fail_on_loss: bool = True
    #: seconds to wait for another process on the same history; a stream logs a warning then, and keeps waiting
    wait_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.root or _SIGNS & set(self.root):
            raise PipelineError(
                f"root must be a folder without any of * ? [ ] {{ }} \\ in its name, got {short(self.root)}"
            )
        if not self.consumer or "/" in self.consumer:
            raise PipelineError(f"consumer must be a name, got {short(self.consumer)}")
        if self.max_rows < 1:
            raise PipelineError(f"max_rows must be 1 or more, got {short(self.max_rows)}")
        for who, seconds in self.sla.items():
            if not seconds >= 0:
                raise PipelineError(f"sla: {short(who)} must be a number of seconds from 0 on, got {short(seconds)}")


def source_options(options: HistoryOptions) -> dict[str, str]:
    """Return the options of the format ``delayq.events`` for a history."""
    return {
        **address_of(options.redis, options.redis_env, options.prefix),
        "queue": ",".join(options.queues) or "*",
        "maxRowsPerTrigger": str(options.max_rows),
        "failOnDataLoss": str(options.fail_on_loss).lower(),
    }
