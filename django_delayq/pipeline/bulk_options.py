"""Options and result of a bulk load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.records.frames import CHUNK
from ..rows import names_in
from .inputs import PART_BYTES
from .redis_options import DEFAULT_PREFIX, address_of

#: options that map the columns of a row to its job
MAPPING: Final = ("id", "due", "args", "kwargs", "payload", "score", "context", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Mapping from rows to jobs, and the target of a bulk load.

    ``id``, ``due``, ``args`` … name columns of the input, see :func:`~.expressions.jobs`. ``more`` are options of the
    format ``delayq`` (:mod:`.write_options`): onConflict, expires, maxAttempts and so on.
    """

    queue: str
    id: str
    task: str | None = None
    due: str | None = None
    args: tuple[str, ...] = ()
    kwargs: tuple[str, ...] = ()
    payload: str | None = None
    score: str | None = None
    context: tuple[str, ...] = ()
    #: name of a column
    priority: str | None = None
    #: address of Redis, a URL or JSON; or the environment variable that holds it
    redis: str | None = None
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: None = generate one
    run_id: str | None = None
    #: jobs per call to Redis
    chunk: int = CHUNK
    #: minimum number of Spark tasks (files), or the exact number (other inputs); None = the number of cores
    parts: int | None = None
    #: maximum number of bytes of a file that one task reads
    part_bytes: int = PART_BYTES
    #: jobs per second
    rate: float | None = None
    #: folder for rows that are not valid jobs; None = the first of them aborts the write
    quarantine: str | None = None
    close: bool = True
    #: the bulk load will never be resumed, so no fingerprint of its rows is stored
    once: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the input that the jobs are made of."""
        single = [self.payload, self.score, self.priority]
        if self.due is not None and self.due.isidentifier():  # neither a delay nor a moment
            single.append(self.due)
        named = [*names_in(self.id), *self.args, *self.kwargs, *self.context, *filter(None, single)]
        return tuple(dict.fromkeys(named))

    def address(self) -> dict[str, str]:
        """Return the options that address Redis."""
        return address_of(self.redis, self.redis_env, self.prefix)

    def format_options(self, run_id: str, source: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the format ``delayq``."""
        options: dict[str, Any] = {
            "nullDue": "fail",
            **self.more,
            **self.address(),
            "queue": self.queue,
            "task": self.task,
            "runId": run_id,
            "chunk": self.chunk,
            "source": json.dumps(dict(source)),
            "close": "false",
            "rateLimit": self.rate,
            "quarantine": self.quarantine,
            "onError": "quarantine" if self.quarantine else None,
        }
        return {name: str(value) for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Result of a bulk load, as counted in Redis: each row once, however often it was sent."""

    run_id: str
    #: rows of the input that have an outcome
    rows: int
    #: number of rows by outcome: created, ignored, replaced, …
    counts: Mapping[str, int]
    #: rows in the quarantine
    bad: int
    seconds: float
    #: the bulk load was closed before this call, which wrote nothing
    was_over: bool = False
    #: rows written earlier, by a previous attempt at this bulk load
    before: int = 0

    @property
    def created(self) -> int:
        """Number of jobs created."""
        return self.counts.get("created", 0)

    @property
    def known(self) -> int:
        """Number of valid rows that created no job."""
        return self.rows - self.bad - self.created

    @property
    def rows_per_second(self) -> float:
        """Rows per second in this call, without the rows written earlier."""
        return (self.rows - self.before) / self.seconds if self.seconds > 0 else 0.0
