"""Hooks for a framework: connection handling, signals, log set-up. The worker itself depends on no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.job import Job
from ..core.task import Task
from .record import AttemptLog, Formatter

if TYPE_CHECKING:
    from .attempt import CurrentJob


def _do_nothing() -> None: ...


def _wants_none(event: str, task: Task | None) -> bool:
    return False


def _ignore_event(event: str, **details: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Optional callables around a process, its job threads and each job.

    Events for ``notify`` (each with ``job`` and ``task``, the latter None when not registered here):
    ``job_started``; ``job_succeeded`` (seconds); ``job_failed`` (error, outcome, retry_in seconds, None = never);
    ``job_buried`` (error, reason). They are sent from the job's thread, before the outcome of the attempt is stored. A
    batch sends one for each of its jobs. ``before_job`` and ``after_job`` are called once for a batch, with its first
    job.

    Outcomes of jobs whose process is gone are sent from a thread of a supervisor or a dispatcher (:mod:`.orphans`),
    within ``thread_start``, ``before_job``, ``after_job`` and ``thread_end``.
    """

    #: called before the first / after the last part of the process runs
    process_start: Callable[[], None] = _do_nothing
    process_stop: Callable[[], None] = _do_nothing
    #: called in each thread that runs jobs, at its start and its end
    thread_start: Callable[[], None] = _do_nothing
    thread_end: Callable[[], None] = _do_nothing
    #: called before the handler, in its thread. An exception gives the job back without counting an attempt
    before_job: Callable[[Job], None] | None = None
    #: called after the handler, whatever its outcome, and before the ack. An exception makes a successful attempt a
    #: failed one
    after_job: Callable[[Job], None] | None = None
    #: returns True if a task's event has receivers; called before anything is prepared for it
    wants: Callable[[str, Task | None], bool] = _wants_none
    #: sends an event; exceptions are logged
    notify: Callable[..., None] = _ignore_event
    #: returns the stored form of a handler's exception; if it fails itself, the default form is stored
    format_error: Formatter | None = None
    #: sends a failure to an error tracker, given the job and the error; called for each counted failure, before it is
    #: stored. Exceptions are logged
    report_error: Callable[[CurrentJob, BaseException], None] | None = None
    #: logs how attempts ended
    log: AttemptLog = field(default_factory=AttemptLog)
    #: returns the seconds until the next attempt, given the error and the number of earlier failures; None = use the
    #: back-off.
    #: Not called for errors that the task's own ``retry_for`` names
    retry_delay: Callable[[BaseException, int], float | None] | None = None
    #: called once, before the process ends although jobs still run, or by a fatal error (flush logs), with the error or
    #: without an argument; there is little time left
    last_words: Callable[..., object] = _do_nothing
