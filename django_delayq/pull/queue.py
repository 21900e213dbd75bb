"""Public entry for pulling jobs: ``Queue("orders").reserve(wait=20)``."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from .. import connections
from ..core.builder import RAW_TASK, RawJobBuilder
from ..core.counts import Counts
from ..core.errors import InvalidJob, JobIsLimited, QueueUnavailable
from ..core.inputs import check_holder, check_id, check_int, check_known, check_queue_name
from ..core.job_view import JobView
from ..core.limits import offer_of
from ..core.options import PLAIN_JOB
from ..core.queue import Queue as CoreQueue
from ..core.records.frames import CHUNK
from ..core.times import span_ms_of, ttr_ms_of
from ..outbox.producer import call_briefly
from ..scheduling.build import job_rules
from ..scheduling.sending import Prepared, send
from ..scheduling.verbs import JobHandle
from ..settings.conf import SETTING, check_installed, collect_context, conf
from ..transactions import ON_COMMIT, in_transaction, warn_of_other_transaction
from ..worker.attempt import NEVER
from .coordinator import coordinator_of
from .held import HeldJob, give_back
from .limits import limits_here
from .search import Holder, Search

Wait = float | timedelta | None


class Queue:
    """One queue, or several that are served in turn: ``Queue("orders", "mails")``. Thread-safe.

    Creating one does not call Redis. Every method raises :class:`QueueUnavailable` when Redis cannot be reached.

    Raises:
        InvalidJob: a name is invalid, or no name was given.
    """

    def __init__(self, *names: str) -> None:
        if not names:
            raise InvalidJob('which queue? Queue("orders"), or several: Queue("orders", "mails")')
        #: the queues, without duplicates
        self.names = tuple(dict.fromkeys(check_queue_name(name) for name in names))
        self._held: WeakSet[HeldJob] = WeakSet()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Queue({', '.join(map(repr, self.names))})"

    # -- reserve -----------------------------------------------------------------------------------------------------

    def reserve(
        self,
        max: int = 1,
        wait: Wait = 0,
        *,
        ttr: float | timedelta | None = None,
        by: str = "",
        deadline_margin: Wait = None,
    ) -> list[HeldJob]:
        """Reserve up to ``max`` due jobs. Each call starts with another queue and another shard.

        Args:
            max: 1 … 250.
            wait: seconds (or a ``timedelta``) to wait for the first job; 0 = do not wait, None = forever. Waiting costs
                less than one command per second, and a job that is scheduled meanwhile arrives within milliseconds.
            ttr: seconds (or a ``timedelta``) until the leases of the jobs expire, unless they are touched; None = the
                ``ttr`` that each job was scheduled with, else 60. An expired lease counts as a crash of its holder; see
                ``crash_limit``.
            by: name of the holder in ``delayq_status`` and events; default: this host and process.
            deadline_margin: end the wait so many seconds before the lease of a job ends that was reserved by this
                object before the call; :meth:`soon_ending` returns it. Due jobs are returned nevertheless.

        Returns:
            The jobs; an empty list if there was none in time.

        Raises:
            InvalidJob: an argument is wrong.
            QueueUnavailable: Redis could not be reached, at once or when the wait was over.
        """
        limit, holder = check_int("max", max, 1, CHUNK), _holder(by, ttr)
        end = time.monotonic() + (NEVER if wait is None else span_ms_of("wait", wait) / 1000)
        margin = None if deadline_margin is None else span_ms_of("deadline_margin", deadline_margin) / 1000
        while True:
            jobs = Search(coordinator_of(), self.names, limit, holder).run(self._give_up(end, margin))
            if jobs or self._give_up(end, margin) <= time.monotonic():  # later if a job was touched or ended meanwhile
                return self._keep(jobs)

    def _give_up(self, end: float, margin: float | None) -> float:
        """Return when a wait ends: at ``end``, or before the first end of a lease."""
        if margin is None:
            return end
        now, lefts = time.monotonic(), [job.seconds_left for job in self._in_hand()]
        return min([end, *(now + left - margin for left in lefts if left > 0)])

    def reserve_id(
        self,
        id: str | int,
        early: bool = False,
        *,
        buried: bool = False,
        ttr: float | timedelta | None = None,
        by: str = "",
    ) -> HeldJob | None:
        """Reserve the waiting job of this id.

        With ``buried``, if no job of the id is live, the one that was buried last is taken from the morgue: kicked, its
        failures reset, and reserved in one atomic step. Return None if there is none, or if it is not due and ``early``
        is False.

        Raises:
            InvalidJob: an argument is wrong.
            JobIsLimited: the job has a group or limits over all workers. It waits again; so does one of the morgue.
        """
        ident, holder = check_id(id), _holder(by, ttr)
        for queue in coordinator_of().open(self.names):
            held = reserve_id(queue, ident, holder, early=early, buried=buried)
            if held is not None:
                return self._keep([held])[0]
        return None

    def soon_ending(self, margin: float | timedelta = 1.0) -> list[HeldJob]:
        """Return the jobs reserved here whose leases end within ``margin``, or are over: end them now, or touch them.

        They are ordered by the end of their leases. Jobs that were ended or are known to be lost are not included, nor
        are jobs whose handles were garbage-collected.
        """
        most = span_ms_of("margin", margin) / 1000
        return sorted((job for job in self._in_hand() if job.seconds_left <= most), key=lambda job: job.deadline)

    def _in_hand(self) -> list[HeldJob]:
        with self._lock:
            return [job for job in self._held if job.in_hand]

    def _keep(self, jobs: list[HeldJob]) -> list[HeldJob]:
        with self._lock:
            self._held.update(jobs)
        return jobs

    # -- put ---------------------------------------------------------------------------------------------------------

    def put(
        self, body: bytes | bytearray | memoryview | str, *, using_db: str | None = None, **options: Any
    ) -> JobHandle:
        """Store raw bytes in a queue of kind "pull"; :attr:`HeldJob.body` returns the same bytes. Text becomes UTF-8.

        Inside ``transaction.atomic()`` it is sent after the commit, like :func:`django_delayq.schedule`.

        Args:
            body: at most ``MAX_ARGS_BYTES`` bytes; it may be empty.
            using_db: alias of the database whose transaction the call waits for.
            options: ``delay``, ``at``, ``id``, ``priority``, ``group``, ``on_conflict``, ``due_policy``,
                ``reset_retries``, ``max_attempts``, ``retry_in``, ``ttr``, ``expires``, ``context``,
                ``wait_for_room`` and ``wait_for_confirmation``, as for :func:`django_delayq.schedule`.

        Raises:
            TypeError: an unknown option, or a body that is neither bytes nor text.
            InvalidJob: the queue is not of kind "pull", the body is too large, or an option is wrong.
            IdTaken, QueueFull, QueuePaused, NotConfirmed, QueueUnavailable: the reply of Redis; after a commit it is
                logged instead.
        """
        check_installed()
        name = self._only("put")
        check_known(options, sorted(PLAIN_JOB), "option", TypeError)
        new = RawJobBuilder(RAW_TASK, job_rules(), collect_context()).build((_bytes_of(body),), {}, options)
        handle = JobHandle(new.id, name, ON_COMMIT, new.due_ms_here, using_db=using_db)
        warn_of_other_transaction("put", using_db)
        _check_kind(name, waits=in_transaction(using_db))
        send(Prepared(new, handle))
        return handle

    # -- inspect and pause -------------------------------------------------------------------------------------------

    def peek(self, limit: int = 10, place: str = "waiting") -> list[JobView]:
        """Return the first jobs that are waiting, reserved, failed or in the morgue, without reserving them."""
        name, limit = self._only("peek"), check_int("limit", limit, 1, CHUNK)
        return connections.broker().inspector.page(name, place, limit=limit).jobs

    def counts(self) -> Counts:
        """Return the numbers of jobs by place."""
        return connections.broker().inspector.counts(self._only("counts"))

    def pause(self, direction: str = "both", *, seconds: float | timedelta | None = None) -> None:
        """Stop storing new jobs ("in"), handing jobs out ("out") or both; held jobs continue.

        Args:
            direction: in, out or both.
            seconds: end the pause by itself after this time; None = it lasts until :meth:`resume`.

        Raises:
            InvalidJob: there is no such queue or direction, or the time is not above 0.
        """
        for name in self.names:
            connections.broker().pause(name, direction, seconds=seconds)

    def resume(self, direction: str = "both") -> None:
        """End a pause and wake the waiters."""
        for name in self.names:
            connections.broker().resume(name, direction)

    def _only(self, verb: str) -> str:
        if len(self.names) > 1:
            raise InvalidJob(f"{self!r} are several queues; {verb} is for one: Queue({self.names[0]!r}).{verb}(…)")
        return self.names[0]


def _holder(by: str, ttr: float | timedelta | None) -> Holder:
    worker = f"pull-{socket.gethostname()[:200]}-{os.getpid()}" if by == "" else check_holder(by)
    return Holder(worker, None if ttr is None else ttr_ms_of(ttr))


def reserve_id(
    queue: CoreQueue, ident: str, holder: Holder, *, early: bool = False, buried: bool = False
) -> HeldJob | None:
    """Reserve the waiting (or buried) job of an id; see :meth:`.Queue.reserve_id`."""
    batch = queue.reserve_id(ident, early=early, buried=buried, **holder.arguments())
    held = next((HeldJob(queue, job, batch, ttr_ms=holder.ttr_ms) for job in batch.jobs), None)
    limits = {} if held is None else limits_here(queue, offer_of(held.record))
    if held is not None and limits:
        give_back([held])
        raise JobIsLimited(
            f"{ident!r} of {queue.name} is not handed out by its id, because it has limits ({', '.join(limits)}); a "
            "reserve without an id hands it out when they let it start"
        )
    return held


def _check_kind(name: str, *, waits: bool) -> None:
    """Check that a queue is of kind "pull".

    With ``waits`` Redis may be unavailable now, because the bytes are sent after a commit; then the settings are used.
    """
    try:
        existing = call_briefly(lambda broker: broker.existing(name)) if waits else connections.existing_queue(name)
    except QueueUnavailable:
        if not waits:
            raise
        existing = None
    kind = conf().queue(name).kind if existing is None else existing.kind
    if kind != "pull":
        raise InvalidJob(
            f"queue {name!r} is of kind {kind!r}, whose jobs are calls of tasks: use schedule(). For raw bytes give it "
            f'{SETTING}["QUEUES"][{name!r}] = {{"kind": "pull"}} before its first use'
        )


def _bytes_of(body: object) -> bytes:
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob(f"the body is not valid Unicode ({error.reason}); give bytes") from None
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"the body must be bytes or str, not {type(body).__name__}; encode it, or use schedule()")
    raw, limit = bytes(body), conf().max_args_bytes
    if len(raw) > limit:
        raise InvalidJob(
            f"the body has {len(raw)} bytes, at most {limit} are stored; store the data elsewhere and put "
            f"its key, or raise {SETTING}['MAX_ARGS_BYTES']"
        )
    return raw
