"""Bulk operations on jobs selected by SQL: retry, cancel, discard and reschedule.

The selection is made on a snapshot and carried out by the core's own verbs in chunks, each job by the key of its
generation. A job that has since run, been replaced or been cancelled is left alone, and so is a new job under the same
id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..core import actions
from ..core.bulk import act_in_shard, retried
from ..core.errors import InvalidJob
from ..core.inputs import check_choice
from ..core.queue import Queue
from .errors import PipelineError
from .redis_options import open_broker
from .selection import Home, Names, Selection, act_on, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: verb -> the states of jobs that it applies to
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "retry": ("waiting", "morgue"),
    "cancel": ("waiting", "reserved", "gated"),
    "discard": ("morgue",),
    "reschedule": ("waiting", "gated"),
}
VERBS: Final = tuple(STATES)
#: additional condition for a job
_BESIDES: Final[Mapping[str, str]] = {"retry": "state = 'morgue' or failures > 0"}
#: descriptions of the jobs that a verb applies to
FOR: Final[Mapping[str, str]] = {
    "retry": "failed jobs that wait, and jobs in the morgue",
    "cancel": "waiting, running and gated jobs",
    "discard": "jobs in the morgue",
    "reschedule": "waiting and gated jobs",
}


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """Operation to carry out, and the selection of its jobs.

    ``access``: the options of the format ``delayq`` that address Redis. ``where``: a condition of Spark SQL over its
    columns. ``queues``: empty = all. ``delay_ms`` from now, or ``due_ms`` (Unix ms): required for reschedule; retry
    accepts only a delay. ``replace``: jobs of the morgue replace live plain ones of the same ids.
    """

    verb: str
    where: str
    access: Mapping[str, str]
    queues: tuple[str, ...] = ()
    delay_ms: int | None = None
    due_ms: int | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        try:
            check_choice("verb", self.verb, VERBS)
        except InvalidJob as error:
            raise PipelineError(str(error)) from None
        given = [name for name in ("delay_ms", "due_ms") if getattr(self, name) is not None]
        if self.verb == "reschedule" and len(given) != 1:
            raise PipelineError("reschedule needs a time; give either a delay from now or a moment")
        if self.verb == "retry" and "due_ms" in given:
            raise PipelineError("retry takes a delay and no moment; retry the jobs, then reschedule them")
        if self.verb in ("cancel", "discard") and given:
            raise PipelineError(f"{self.verb} takes no time; leave the delay or the moment out")
        if self.replace and self.verb != "retry":
            raise PipelineError("replace applies to retried jobs of the morgue only; leave it out")


def choose(spark: SparkSession, options: MaintainOptions) -> Selection:
    """Select the jobs without changing them.

    Raises:
        PipelineError: the condition is invalid.
    """
    return select(
        spark,
        options.access,
        options.where,
        queues=options.queues,
        states=STATES[options.verb],
        besides=_BESIDES.get(options.verb, "true"),
    )


def carry_out(
    frame: DataFrame,
    options: MaintainOptions,
    *,
    total: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Apply the operation to the selected jobs.

    Args:
        frame: the frame of a :class:`~.selection.Selection`.
        total: their number, for ``progress``.
        progress: called with the number of processed jobs and the total.

    Returns:
        The number of jobs by outcome: retried, live (blocked by a live job), running; cancelled, stopping (it is
            running and will not be retried), ungated; discarded; moved; gone (it has changed since the snapshot);
            unreadable.

    Raises:
        QueueUnavailable: Redis cannot be reached. Finished chunks stay done; a repeated call handles the rest.
    """
    with open_broker(options.access) as broker:
        act = partial(_act, options)
        return act_on(broker, frame, act, total=total, progress=progress)


def _act(options: MaintainOptions, queue: Queue, home: Home, names: Names) -> Mapping[str, int]:
    _, number, buried = home
    match options.verb:
        case "retry":
            action = (
                actions.Kick(options.delay_ms or 0, replace=options.replace)
                if buried
                else actions.retry_failed(options.delay_ms)
            )
        case "cancel":
            action = actions.cancel_selected()
        case "discard":
            action = actions.Discard()
        case _:
            action = actions.reschedule_selected(due_ms=options.due_ms, delay_ms=options.delay_ms)
    return retried(Counter(act_in_shard(queue, number, names, action)))
