"""Where a framework plugs in: connection hygiene, signals, log set-up. The worker itself knows none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.job import Job
from ..core.task import Task
from .record import Formatter


def _nothing() -> None: ...


def _deaf(event: str, task: Task | None) -> bool:
    return False


def _mute(event: str, **details: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Callables around a process, its job threads and each job. All are optional.

    Events for ``notify`` (each with ``job`` and ``task``, the latter None when not registered here):
    ``job_started``; ``job_succeeded`` (seconds); ``job_failed`` (error, outcome, retry_in seconds, None = never);
    ``job_buried`` (error, reason). They are sent from the job's thread, before the end of the run is stored; of a
    batch, one for each of its jobs. ``before_job`` and ``after_job`` surround a batch once, with its first job.

    Ends of jobs whose process is gone are sent from a thread of a supervisor or a dispatcher (:mod:`.orphans`), within
    ``thread_start``, ``before_job``, ``after_job`` and ``thread_end``.
    """

    #: before the first / after the last part of the process runs
    process_start: Callable[[], None] = _nothing
    process_stop: Callable[[], None] = _nothing
    #: in each thread that runs jobs
    thread_start: Callable[[], None] = _nothing
    thread_end: Callable[[], None] = _nothing
    #: before the handler, in its thread. What it raises gives the job back without counting an attempt
    before_job: Callable[[Job], None] | None = None
    #: after the handler, whatever it did, and before the ack. What it raises makes a returned run a failed one
    after_job: Callable[[Job], None] | None = None
    #: whether anybody listens to an event of a task: asked before anything is prepared for it
    wants: Callable[[str, Task | None], bool] = _deaf
    #: tell about an event; what it raises is logged
    notify: Callable[..., None] = _mute
    #: the stored form of what a handler raised; if it fails itself, the default form is stored
    format_error: Formatter | None = None
    #: seconds until the next attempt after an error, with the number of earlier failures; None = by the back-off.
    #: What the task's own ``retry_for`` names is not asked about
    retry_delay: Callable[[BaseException, int], float | None] | None = None
    #: the very last call before the process ends although jobs still run (flush logs); there is little time left
    last_words: Callable[[], None] = _nothing
