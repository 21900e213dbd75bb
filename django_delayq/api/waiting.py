"""Long poll: an answer that Django under ASGI awaits before it is sent.

Who the caller is, whether he may and what he asks for is settled by the view, in a thread as always, whose database
connections are closed then. What the view gives to Django is a :class:`WaitingResponse`, whose ``render`` is a
coroutine: Django awaits that where it would render other responses. So a wait holds no database connection and blocks
no thread, and the view is the same plain one under ASGI and WSGI, where nothing waits.

Each request under ASGI has a thread of Django's own that idles meanwhile. A middleware that is not made for ASGI
(``async_capable``) would block another one for as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from rest_framework.response import Response

from ..core.errors import DelayQError
from ..pull.held import HeldJob, give_back
from ..pull.search import Search
from ..pull.vigil import Vigil, give_back_soon, in_thread
from ..settings.conf import conf
from . import problems
from .held import shown
from .idempotency import Kept
from .permissions import identity_of

if TYPE_CHECKING:
    from rest_framework.request import Request

logger: Final = logging.getLogger("django_delayq.api")

#: seconds after which a caller comes again who was not made to wait
RETRY_AFTER: Final = "1"


def can_wait(request: Request) -> bool:
    """Whether the answer to this request may be awaited."""
    return isinstance(request._request, ASGIRequest)


def answer(search: Search) -> Response:
    """What is there now."""
    jobs = search.run(0.0)
    return Response(_shown(jobs), headers={} if jobs else {"Retry-After": RETRY_AFTER})


def _shown(jobs: list[HeldJob]) -> dict[str, Any]:
    try:
        return {"jobs": shown(jobs)}
    except BaseException:
        give_back(jobs)
        raise


def let_go_of_databases() -> None:
    """Closes the connections of this thread, unless they are in a transaction, which then is not the request's own."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


class WaitingResponse(Response):
    """The answer to a reserve that may wait.

    Args:
        request: whose answer it is.
        search: what is asked for.
        seconds: how long it may wait.
    """

    def __init__(self, request: Request, search: Search, seconds: float) -> None:
        super().__init__()
        #: where the answer is to be kept, if its request carried a key
        self.kept: Kept | None = None
        self._asked_by = request
        self._user = identity_of(request.user)
        self._search = search
        self._seconds = seconds
        self._jobs: list[HeldJob] = []
        self._finishing: Future[None] | None = None

    async def render(self) -> WaitingResponse:  # type: ignore[override]
        """Waits; Django awaits this. If the client goes away before the answer does, its jobs go back at once."""
        try:
            await self._answer()
        except BaseException:  # the client is gone; or a fault of ours, and then nobody gets an answer either
            self._is_over()
            raise
        # Behind this there are only the host's middlewares. Where the request is a task of its own (before Django 6),
        # its end tells if they were interrupted; elsewhere nobody hears of it, and the leases end by themselves.
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda request: self._is_over() if request.cancelled() else None)
        return self

    async def _answer(self) -> None:
        waits = _waits()
        give_up = time.monotonic() + self._seconds if waits.has_room(self._user) else 0.0
        vigil = Vigil(self._search)
        problem: DelayQError | None = None
        with waits.having(vigil, self._user):
            try:
                self._jobs = await vigil.run(give_up)
            except DelayQError as error:
                problem = error
        early = waits.ending or time.monotonic() < give_up
        self._finishing = in_thread(lambda: self._finish(problem, early=early))
        await asyncio.wrap_future(self._finishing)

    def _finish(self, problem: DelayQError | None, *, early: bool) -> None:
        if problem is None:
            self.data = _shown(self._jobs)
            if not self._jobs and (early or not self._search.give_up):
                self["Retry-After"] = RETRY_AFTER
        else:
            self._become(problem)
        if self.kept is not None:
            self.kept.keep(self)
        super().render()

    def _become(self, error: DelayQError) -> None:
        found = problems.handle(error, {"request": self._asked_by})
        if found is None:
            raise error
        self.status_code, self.data, self.content_type = found.status_code, found.data, found.content_type
        for name, value in found.headers.items():
            self[name] = value

    def _is_over(self) -> None:
        if self._finishing is None:
            self._take_back()
        else:
            self._finishing.add_done_callback(lambda _: self._take_back())

    def _take_back(self) -> None:
        """Nobody hears the answer. One that is kept is for the next request with the same key."""
        if self.kept is not None and self.is_rendered:
            return
        give_back_soon(self._jobs)
        if self.kept is not None:
            in_thread(self.kept.drop)


class Waits:
    """Of one event loop, in whose thread it is used; mostly the only one of the process."""

    def __init__(self) -> None:
        self.ending = False
        #: each with its user
        self._vigils: dict[Vigil, bytes] = {}

    def has_room(self, user: bytes) -> bool:
        """Return True if one more wait fits in, and in this user's share."""
        api, users = conf().api, list(self._vigils.values())
        return not self.ending and len(users) < api.max_waiting and users.count(user) < api.max_waiting_per_user

    @contextlib.contextmanager
    def having(self, vigil: Vigil, user: bytes) -> Iterator[None]:
        """One more waits meanwhile."""
        self._vigils[vigil] = user
        try:
            yield
        finally:
            del self._vigils[vigil]

    def end(self) -> None:
        """Answer every wait now, and let no further request wait."""
        self.ending = True
        for vigil in self._vigils:
            vigil.end()


_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Waits]] = WeakKeyDictionary()


def _waits() -> Waits:
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = Waits()
    return found


def end_waits() -> None:
    """Answer every reserve that waits in this process now; later ones are answered at once.

    A server that stops lets its requests end, so one that waits holds it up for as long as it waits (20 s at most).
    Servers do not announce their end to an application, and their signal handlers are their own: call this where yours
    lets you. It may be called from any thread, and from a signal handler.
    """
    for loop, waits in list(_by_loop.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(waits.end)
