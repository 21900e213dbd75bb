"""Long polling: responses that Django awaits under ASGI before they are sent.

Authentication, permission and validation happen in the view, as always in a thread, whose database connections are then
closed. The view returns a :class:`WaitingResponse`, whose ``render`` is a coroutine: Django awaits it where it would
render other responses. So a wait holds no database connection and blocks no thread, and the same plain view serves ASGI
and WSGI. Under WSGI nothing waits.

Under ASGI Django keeps one idle thread for each request meanwhile. A middleware that is not made for ASGI
(``async_capable``) would block another thread for as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from rest_framework.request import Request
from rest_framework.response import Response

from ..access import problems
from ..access.views import identity_of
from ..core.errors import DelayQError
from ..pull.held import HeldJob, give_back
from ..pull.search import Search, give_back_soon, in_thread
from ..settings.conf import conf
from .content import render_held_jobs
from .idempotency import IdempotencyRecord
from .settle import TTR

logger: Final = logging.getLogger("django_delayq.api")

#: seconds after which a caller retries if its request could not wait
RETRY_AFTER: Final = "1"
#: a lease that the caller holds ends within its margin
DEADLINE_SOON: Final = {"deadline_soon": True}


def can_wait(request: Request) -> bool:
    """Return True if the response to this request may be awaited."""
    return isinstance(request._request, ASGIRequest)


def answer(search: Search, record: IdempotencyRecord | None, *, deadline_soon: bool = False) -> Response:
    """Return a response with the jobs that are due now."""
    jobs = search.run(0.0)
    if deadline_soon:
        return Response({**_rendered(jobs, record), **DEADLINE_SOON})
    return Response(_rendered(jobs, record), headers={} if jobs else {"Retry-After": RETRY_AFTER})


def reserved(job: HeldJob | None, record: IdempotencyRecord | None) -> Response:
    """Return a response with the job, if one was reserved."""
    return Response(_rendered([] if job is None else [job], record))


def _rendered(jobs: list[HeldJob], record: IdempotencyRecord | None) -> dict[str, Any]:
    try:
        rendered = {"jobs": render_held_jobs(jobs)}
    except BaseException:
        give_back(jobs)
        raise
    if record is not None:  # a response that is sent again must not hand out a lease that has ended
        lefts = [int(job.seconds_left * 1000) for job in jobs if job.in_hand]
        record.keep_at_most(max(1, min(lefts, default=TTR * 1000)))
    return rendered


def let_go_of_databases() -> None:
    """Close this thread's database connections, except those in a transaction, which is not the request's own."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


class WaitingResponse(Response):
    """Response to a reserve that may wait.

    Args:
        request: the request.
        search: the search for due jobs.
        seconds: how long it may wait.
        to_deadline: True = the wait ends because of a lease that the caller holds.
    """

    def __init__(self, request: Request, search: Search, seconds: float, *, to_deadline: bool = False) -> None:
        super().__init__()
        #: record in which to store the response if its request carried a key
        self.record: IdempotencyRecord | None = None
        self._reserve_request = request
        self._user = identity_of(request.user)
        self._search = search
        self._seconds = seconds
        self._to_deadline = to_deadline
        self._jobs: list[HeldJob] = []
        self._finishing: Future[None] | None = None

    async def render(self) -> WaitingResponse:  # type: ignore[override]
        """Wait for jobs; Django awaits this coroutine.

        If the client disconnects before the response is sent, its jobs are released at once.
        """
        try:
            await self._answer()
        except BaseException:  # the client disconnected, or a bug, and then no response is sent either
            self._handle_interruption()
            raise
        # After this only the project's middlewares run. Where the request is a task of its own (before Django 6), its
        # end shows whether they were interrupted; elsewhere nothing reports it, and the leases run out.
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda request: self._handle_interruption() if request.cancelled() else None)
        return self

    async def _answer(self) -> None:
        waits = _waits()
        give_up = time.monotonic() + self._seconds if waits.has_room(self._user) else 0.0
        problem: DelayQError | None = None
        with waits.having(self._search, self._user):
            try:
                self._jobs = await self._search.run_async(give_up)
            except DelayQError as error:
                problem = error
        early = waits.ending or time.monotonic() < give_up
        self._finishing = in_thread(lambda: self._finish(problem, early=early))
        await asyncio.wrap_future(self._finishing)

    def _finish(self, problem: DelayQError | None, *, early: bool) -> None:
        if problem is None:
            self.data = _rendered(self._jobs, self.record)
            stopped = early or not self._search.give_up
            if self._to_deadline and not stopped:
                self.data |= DEADLINE_SOON
            if not self._jobs and stopped:
                self["Retry-After"] = RETRY_AFTER
        else:
            self._copy_problem(problem)
        if self.record is not None:
            self.record.keep(self)
        super().render()

    def _copy_problem(self, error: DelayQError) -> None:
        response = problems.handle(error, {"request": self._reserve_request})
        if response is None:
            raise error
        self.status_code, self.data, self.content_type = response.status_code, response.data, response.content_type
        for name, value in response.headers.items():
            self[name] = value

    def _handle_interruption(self) -> None:
        if self._finishing is None:
            self._release_jobs()
        else:
            self._finishing.add_done_callback(lambda _: self._release_jobs())

    def _release_jobs(self) -> None:
        """Release the jobs after a response that was not delivered.

        A stored response keeps its jobs: it is for the next request with the same key.
        """
        if self.record is not None and self.is_rendered:
            return
        give_back_soon(self._jobs)
        if self.record is not None:
            in_thread(self.record.drop)


class Waits:
    """Pending waits of one event loop, used in its thread; usually the only loop of the process."""

    def __init__(self) -> None:
        self.ending = False
        #: search that waits → its user
        self._pending: dict[Search, bytes] = {}

    def has_room(self, user: bytes) -> bool:
        """Return True if one more wait fits within the limits of the process and of this user."""
        api, users = conf().api, list(self._pending.values())
        return not self.ending and len(users) < api.max_waiting and users.count(user) < api.max_waiting_per_user

    @contextlib.contextmanager
    def having(self, search: Search, user: bytes) -> Iterator[None]:
        """Register a wait for the duration of the block."""
        self._pending[search] = user
        try:
            yield
        finally:
            del self._pending[search]

    def end(self) -> None:
        """End every wait now, and let no further request wait."""
        self.ending = True
        for search in self._pending:
            search.end()


_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Waits]] = WeakKeyDictionary()


def _waits() -> Waits:
    loop = asyncio.get_running_loop()
    waits = _by_loop.get(loop)
    if waits is None:
        waits = _by_loop[loop] = Waits()
    return waits


def end_waits() -> None:
    """Answer every waiting reserve in this process now; later ones are answered at once.

    A stopping server waits for its open requests, so a long poll delays it by up to 20 s. Servers do not notify
    applications of a shutdown, and install their own signal handlers: call this from a hook of your server. It may be
    called from any thread, and from a signal handler.
    """
    for reference in _by_loop.keyrefs():  # a copy, to which other threads add nothing
        loop = reference()
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_by_loop[loop].end)
