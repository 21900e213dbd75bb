"""The clients: producer and consumer verbs, defined once for both, and plain requests for everything else."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack

from .errors import ApiError, JobNotFound, Unavailable
from .http import Answer, Asynchronous, Blocking, Exchanges, Steps, http_options, httpx, path_of, verb
from .jobs import AsyncHeldJob, Held, HeldJob, HeldT, Many, Produced, held_of, moment

T = TypeVar("T")

Seconds = float | timedelta
#: jobs of one settling request
SETTLED_AT_ONCE: Final = 250
#: jobs of one request that produces jobs
AT_ONCE: Final = 1000
#: maximum size of the jobs of one request; servers accept bodies of 4 MiB unless their settings differ
MOST_BYTES: Final = 2 * 1024 * 1024
#: longest wait of one request, in seconds; a longer wait takes several requests
_LONGEST_WAIT: Final = 20.0
_REASON_CHARS: Final = 200
#: characters of each part of an error; servers keep fewer
_ERROR_CHARS: Final = 64 * 1024


class Options(TypedDict, total=False):
    """Options of a job, as for :func:`django_delayq.schedule`; spans are seconds or ``timedelta``."""

    id: str | int
    delay: Seconds
    at: datetime | float
    priority: int
    on_conflict: str
    due_policy: str
    reset_retries: bool
    max_attempts: int
    retry_in: float | Sequence[float] | str
    timeout: Seconds
    ttr: Seconds
    expires: Seconds
    context: Mapping[str, Any]
    wait_for_room: Seconds
    wait_for_confirmation: bool


class Verbs(Exchanges, Generic[HeldT]):
    """Verbs of both clients, which differ in the class of the jobs that they hold, and in how they send requests.

    Args:
        url: address under which the project includes ``django_delayq.api.urls`` ("https://shop.example/delayq/").
        token: token of a user with the required permissions; "" = none.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504, with growing pauses, or after the
            time in Retry-After (more than 30 s: the error is raised at once). Every attempt of a POST carries the same
            Idempotency-Key.
        worker: name of the holder of reserved jobs; default: this host and process.
        http: client of httpx to send requests with, for other certificates, headers or proxies; it is not closed.

    Raises:
        ValueError: the address or the token is invalid.
    """

    _held_class: type[HeldT]

    def __init__(
        self, url: str, *, token: str = "", timeout: float = 30.0, retries: int = 2, worker: str = "", http: Any = None
    ) -> None:
        super().__init__(url, token=token, timeout=timeout, retries=retries)
        self._options = http_options(self._secure) if http is None else {}
        self._given = http
        self._worker_name = worker
        #: event loop → its client of httpx, of those that wait in coroutines
        self._by_loop = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]()
        #: reserved jobs whose objects exist
        self._held: weakref.WeakSet[HeldT] = weakref.WeakSet()
        self._held_guard = threading.Lock()

    @property
    def _worker(self) -> str:
        """Name of the holder of reserved jobs. A forked process has another number than its parent."""
        return self._worker_name or f"http-{socket.gethostname()[:200]}-{os.getpid()}"

    # -- any request ---------------------------------------------------------------------------------------------------

    @verb
    async def request(self, method: str, path: str, json: Any = None, *, query: Mapping[str, Any] | None = None) -> Any:
        """Send a request that has no method here, with the same retries, and return its JSON; None if it has none.

        Args:
            method: HTTP method.
            path: address below that of the client ("v1/queues/mail/pause"), percent-encoded.
            json: the body; None = no body.
            query: parameters; None is left out.

        Raises:
            ApiError: the request was refused, or there was no response.
            ValueError: the body contains a value that JSON lacks.
        """
        return (await self._exchange(method, path, json, query=query)).data

    async def _page(self, path: str, member: str, query: Mapping[str, Any], cursor: str | None) -> Any:
        """Return the items of a page, and the cursor of the next one."""
        answer = await self._exchange("GET", path, query={**_members(**query), "cursor": cursor})
        return answer.data[member], answer.data["cursor"]

    def _post(self, *parts: str, body: Any, **options: Any) -> Steps[Answer]:
        return self._exchange("POST", path_of("v1", *parts), body, **options)

    # -- produce -------------------------------------------------------------------------------------------------------

    @verb
    def put(self, queue: str, body: bytes | str, **options: Unpack[Options]) -> Steps[Produced]:
        """Store raw bytes in a queue of kind pull; text becomes UTF-8.

        Raises:
            IdTaken, QueueFull, QueuePaused, QueueNotFound, Invalid: the server's response; nothing was stored.
        """
        return self._produce(queue, _raw({"body": body, **options}))

    @verb
    def put_many(
        self, queue: str, jobs: Iterable[bytes | str | Mapping[str, Any]], *, all_or_none: bool = False
    ) -> Steps[Many]:
        """Store many jobs. A job is its body, or a dict with ``body`` and options like those of :meth:`put`.

        They are sent in requests of up to 1,000 jobs and about 2 MiB.

        Args:
            queue: name of the queue.
            jobs: the jobs.
            all_or_none: if a job is refused, store none of the jobs of its shard; for up to 250 jobs, in one request.

        Raises:
            ApiError: a request was refused. None of its jobs was stored; ``done`` has the results of the requests
                before it.
        """
        return self._produce_many(queue, map(_raw, jobs), all_or_none=all_or_none)

    @verb
    async def schedule(
        self,
        queue: str,
        task: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        payload: Any = None,
        score: float | str | None = None,
        durable: bool | None = None,
        **options: Unpack[Options],
    ) -> Produced:
        """Schedule a task that has ``@task(api=True)``.

        Args:
            queue: name of the queue.
            task: name of the registered task ("shop.cancel_order").
            args: positional arguments, JSON.
            kwargs: keyword arguments, JSON.
            payload: for a merged task, instead of ``args`` and ``kwargs``; it needs an ``id``.
            score: score of the payload.
            durable: also keep the job in the database until it is done; None = the task's setting. With an ``id`` it is
                accepted while the server's Redis is unavailable ("outbox").
            options: see :class:`Options`.

        Raises:
            IdTaken, QueueFull, QueuePaused, Invalid: the server's response; nothing was stored.
        """
        called = {"args": list(args) or None, "kwargs": None if kwargs is None else dict(kwargs), "payload": payload}
        job = _members(task=task, **called, score=score, durable=durable, **options)
        try:
            return await self._produce(queue, job)
        except Unavailable as error:
            if error.code != "unavailable" or "id" not in job:
                raise
            # While Redis is unavailable the server cannot look up a key, but accepts durable jobs. For a job with an
            # id, a second one adds nothing.
            return await self._produce(queue, job, retries=0, keyed=False)

    @verb
    def schedule_many(self, queue: str, jobs: Iterable[Mapping[str, Any]], *, all_or_none: bool = False) -> Steps[Many]:
        """Schedule many jobs: dicts with ``task`` and the arguments and options of :meth:`schedule`.

        See :meth:`put_many`.
        """
        return self._produce_many(queue, (_members(**job) for job in jobs), all_or_none=all_or_none)

    @verb
    async def job(self, queue: str, id: str) -> dict[str, Any] | None:
        """Return one job as the OpenAPI document describes it, with masked arguments; None if there is none."""
        try:
            found = await self._exchange("GET", path_of("v1", "queues", queue, "jobs", id))
        except JobNotFound:
            return None
        return dict(found.data)

    @verb
    async def cancel_job(self, queue: str, id: str) -> str:
        """Cancel one job: "cancelled", "stopping" (it is running), or "outbox" (a relay sends it).

        Raises:
            JobNotFound: there is no such job.
        """
        answer = await self._exchange("DELETE", path_of("v1", "queues", queue, "jobs", id))
        return str(answer.data["outcome"])

    @verb
    async def reschedule_job(
        self, queue: str, id: str, *, delay: Seconds | None = None, at: datetime | float | None = None
    ) -> datetime | None:
        """Set another due time for one job and return it.

        Raises:
            JobNotFound: there is no such job.
            Conflict: it is running and nothing waits behind it.
        """
        path = path_of("v1", "queues", queue, "jobs", id)
        answer = await self._exchange("PATCH", path, _members(delay=delay, at=at))
        return moment(answer.data["due"])

    async def _produce(self, queue: str, job: dict[str, Any], **options: Any) -> Produced:
        data = (await self._post("queues", queue, "jobs", body=job, **options)).data
        return Produced(id=data["id"], queue=data["queue"], outcome=data["outcome"], due=moment(data["due"]))

    async def _produce_many(self, queue: str, jobs: Iterable[dict[str, Any]], *, all_or_none: bool) -> Many:
        bodies: Iterable[dict[str, Any]] = ({"jobs": chunk} for chunk in _chunks(jobs, AT_ONCE, weigh=_size_of))
        if all_or_none:
            whole = list(jobs)
            bodies = [{"jobs": whole, "all_or_none": True}] if whole else []
        results: list[tuple[str | None, str]] = []
        counts: Counter[str] = Counter()
        for body in bodies:
            try:
                answer = (await self._post("queues", queue, "jobs", body=body)).data
            except ApiError as error:
                error.done = list(results)
                raise
            results += [(one["id"], one["outcome"]) for one in answer["results"]]
            counts.update(answer["counts"])
        return Many(results=results, counts=dict(counts))

    # -- consume -------------------------------------------------------------------------------------------------------

    @verb
    async def reserve(
        self,
        *queues: str,
        max: int = 1,
        wait: Seconds = 0,
        ttr: Seconds | None = None,
        worker: str = "",
        deadline_margin: Seconds | None = None,
    ) -> list[HeldT]:
        """Reserve up to ``max`` due jobs of a queue, or of several queues that are served in turn.

        Args:
            queues: names of the queues.
            max: 1 … 250.
            wait: seconds to wait for the first job.
            ttr: seconds until the leases of the jobs expire, unless they are touched; None = the ``ttr`` that each job
                was scheduled with, else 60.
            worker: name of the holder; default: the client's.
            deadline_margin: end the wait so many seconds before the lease of a job ends that this client reserved
                before; :meth:`soon_ending` returns it. Due jobs are returned nevertheless.

        Returns:
            The jobs; an empty list if there was none in time.

        Raises:
            ApiError: the request was refused, or there was no response.
            ValueError: no queue, or ``deadline_margin`` is not more than 0.
        """
        if not queues:
            raise ValueError('which queue? client.reserve("mail"), or several: client.reserve("mail", "sms")')
        margin = _seconds(deadline_margin)
        if margin is not None and not margin > 0:
            raise ValueError(f"deadline_margin is {margin:g}; give more than 0 seconds, as many as a touch may take")
        end, length = time.monotonic() + _seconds(wait), _seconds(ttr)
        several = {"queues": list(queues)} if len(queues) > 1 else {}
        path = ("reserve",) if several else ("queues", queues[0], "reserve")
        body = {"max": max, "worker": worker or self._worker, **several, **_members(ttr=length)}
        while True:
            left, sent_at = self._wait_left(end, margin), time.monotonic()
            waited = round(min(_LONGEST_WAIT, left), 3) if left > 0 else 0
            answer = await self._post(*path, body={**body, "wait": waited}, extra=waited)
            # The leases begin when the jobs are found: at any time of a wait, but most often at its end.
            jobs = self._keep(answer.data["jobs"], length, time.monotonic() if waited else sent_at)
            left = self._wait_left(end, margin)
            if jobs or left <= 0:
                return jobs
            # A server that cannot hold the request returns the time for the next one.
            await self._sleep(min(answer.retry_after or 0.0, left))

    @verb
    async def soon_ending(self, margin: Seconds = 1.0) -> list[HeldT]:
        """Return the jobs reserved by this client whose leases end within ``margin``, or are over, the nearest first.

        It sends no request. Jobs that were ended, are known to be lost, or whose objects are gone are not included.
        """
        most = _seconds(margin)
        return sorted((job for job in self._in_hand() if job.seconds_left <= most), key=lambda job: job._ends_at)

    @verb
    async def reserve_id(
        self,
        queue: str,
        id: str,
        early: bool = False,
        *,
        buried: bool = False,
        ttr: Seconds | None = None,
        worker: str = "",
    ) -> HeldT | None:
        """Reserve the waiting job of this id. Return None if there is none, or it is not due and ``early`` is False.

        With ``buried``, if no job of the id is live, the one that was buried last is taken from the morgue.
        """
        length = _seconds(ttr)
        options = _members(early=early, buried=buried or None, ttr=length, worker=worker or self._worker)
        sent_at = time.monotonic()
        answer = await self._post("queues", queue, "reserve", body={"id": id, **options})
        jobs = self._keep(answer.data["jobs"], length, sent_at)
        return jobs[0] if jobs else None

    def _ack(self, jobs: Sequence[Held]) -> Steps[list[bool]]:
        """Acknowledge jobs as done. Return for each job if that counted; False = its lease was lost.

        Jobs that were already ended here are not sent, and return False.
        """
        return self._settle("ack", jobs)

    def _fail(
        self, jobs: Sequence[Held], error: BaseException | str = "", delay: Seconds | None = None
    ) -> Steps[list[bool]]:
        """Record failed attempts, which are counted.

        The jobs are due again after ``delay``, by default after their tasks' back-off, or go to the morgue if this was
        the last attempt.
        """
        return self._settle("fail", jobs, error=_error_members(error), delay=delay)

    def _release(
        self, jobs: Sequence[Held], delay: Seconds | None = None, *, priority: int | None = None
    ) -> Steps[list[bool]]:
        """Release jobs without counting an attempt, due after ``delay`` or (None) at their old places.

        ``priority`` replaces theirs from now on: 0 (first) … 7.
        """
        return self._settle("release", jobs, delay=delay, priority=priority)

    def _bury(self, jobs: Sequence[Held], reason: str = "") -> Steps[list[bool]]:
        """Move jobs that can never succeed to the morgue, with the reason."""
        return self._settle("bury", jobs, reason=_sendable(reason[:_REASON_CHARS]) or None)

    def _touch(self, jobs: Sequence[Held], ttr: Seconds | None = None) -> Steps[list[bool]]:
        """Extend the leases: ``ttr`` from now on, by default as long as each job was reserved for.

        Return False for jobs whose lease was lost.
        """
        given = _members(ttr=ttr)
        return self._settle("touch", jobs, of_job=lambda job: given or _members(ttr=job.ttr))

    ack, fail, release = verb(_ack), verb(_fail), verb(_release)
    bury, touch = verb(_bury), verb(_touch)

    def _wait_left(self, end: float, margin: float | None) -> float:
        """Return the seconds until a wait ends: at ``end``, or before the first end of a lease."""
        held = [] if margin is None else [job.seconds_left - margin for job in self._in_hand() if job.seconds_left > 0]
        return min([end - time.monotonic(), *held])

    def _in_hand(self) -> list[HeldT]:
        with self._held_guard:
            return [job for job in self._held if job.in_hand]

    def _keep(self, reserved: Sequence[Mapping[str, Any]], ttr: float | None, began: float) -> list[HeldT]:
        jobs = [held_of(self._held_class, one, self, ttr, began) for one in reserved]
        with self._held_guard:
            self._held.update(jobs)
        return jobs

    async def _settle(
        self,
        action: str,
        jobs: Sequence[Held],
        of_job: Callable[[Held], Mapping[str, Any]] = lambda _: {},
        **given: Any,
    ) -> list[bool]:
        """Send an action on jobs that are in hand, ``given`` with each of them, and return the answer of each."""
        answers: dict[int, bool] = {}
        by_queue: dict[str, list[tuple[int, Held, dict[str, Any]]]] = {}
        common = _members(**given)
        for place, job in enumerate(jobs):
            if job.in_hand:
                entry = {"id": job.id, "lease": job.lease, **common, **of_job(job)}
                by_queue.setdefault(job.queue, []).append((place, job, entry))
        for queue, held in by_queue.items():
            for chunk in _chunks(held, SETTLED_AT_ONCE, weigh=lambda one: _size_of(one[2])):
                body, sent_at = {"jobs": [entry for _, _, entry in chunk]}, time.monotonic()
                results = (await self._post("queues", queue, action, body=body)).data["results"]
                for (place, job, entry), result in zip(chunk, results, strict=True):
                    answers[place] = job._apply(result, entry.get("ttr"), sent_at)
        return [answers.get(place, False) for place in range(len(jobs))]


class Client(Verbs[HeldJob], Blocking):
    """Client of the HTTP API of django_delayq; see :class:`Verbs` for its arguments.

    It is thread-safe; its connections are kept alive. Every method raises :class:`ApiError`, or a more specific
    subclass.
    """

    _held_class = HeldJob
    _http: httpx.Client | None = None
    #: process that opened the connections: a forked one must not use those of its parent
    _pid = 0

    def pages(self, path: str, member: str, **query: Any) -> Iterator[Any]:
        """Yield the items of a list ("v1/queues/mail/jobs", "jobs"), whose pages are fetched as needed.

        Args:
            path: address below that of the client, percent-encoded.
            member: member of a page that has its items.
            query: parameters of the list.
        """
        cursor: str | None = None
        while True:
            items, cursor = self._run(self._page(path, member, query, cursor))
            yield from items
            if not cursor:
                return

    def close(self) -> None:
        """Close the connections. The client can still be used: it opens new ones."""
        with self._held_guard:
            if self._http is not None:
                self._closing()
                self._http = None

    def _run(self, steps: Steps[T]) -> T:
        try:
            steps.send(None)  # it blocks in its requests and pauses, so it is never suspended
        except StopIteration as end:
            value: T = end.value
            return value
        raise AssertionError("a verb of a blocking client was suspended")

    async def _send(self, **request: Any) -> httpx.Response:
        return self._client().request(**request)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _client(self) -> httpx.Client:
        if self._given is not None:
            given: httpx.Client = self._given
            return given
        with self._held_guard:
            if self._http is None or self._pid != os.getpid():
                self._http, self._pid = httpx.Client(**self._options), os.getpid()
                self._closing = weakref.finalize(self, self._http.close)
                self._closing.atexit = False
            return self._http

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Verbs[AsyncHeldJob], Asynchronous):
    """Client of the HTTP API for asyncio, with the methods and arguments of :class:`Client`.

    Its methods are awaited; lists are iterated with ``async for``. Any number of tasks may share it. Each event loop
    has its own connections, which are kept alive.
    """

    _held_class = AsyncHeldJob

    async def pages(self, path: str, member: str, **query: Any) -> AsyncIterator[Any]:
        """Yield the items of a list; see :meth:`Client.pages`."""
        cursor: str | None = None
        while True:
            items, cursor = await self._run(self._page(path, member, query, cursor))
            for item in items:
                yield item
            if not cursor:
                return

    async def close(self) -> None:
        """Close the connections of this event loop. The client can still be used: it opens new ones."""
        http = self._by_loop.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()

    async def _run(self, steps: Steps[T]) -> T:
        return await steps

    async def _send(self, **request: Any) -> httpx.Response:
        return await self._client().request(**request)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        http: httpx.AsyncClient | None = self._given or self._by_loop.get(loop)
        if http is None:
            http = self._by_loop[loop] = httpx.AsyncClient(**self._options)
        return http

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _seconds(span: Any) -> Any:
    return span.total_seconds() if isinstance(span, timedelta) else span


def _members(**given: Any) -> dict[str, Any]:
    """Return the members that are not None as JSON values: spans in seconds, times in ISO 8601.

    Raises:
        ValueError: a time without a time zone.
    """
    return {name: _plain(name, value) for name, value in given.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} has no time zone, so the moment is unknown: {value}; give an aware datetime")
        return value.isoformat()
    return _seconds(value)


def _size_of(entry: Mapping[str, Any]) -> int:
    """Return the size of an entry as JSON, in bytes."""
    return len(json.dumps(entry, ensure_ascii=False).encode(errors="replace"))


def _chunks(items: Iterable[T], size: int, *, weigh: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of up to ``size``, and of at most ``MOST_BYTES`` in total."""
    chunk: list[T] = []
    weight = 0
    for item in items:
        own = weigh(item)
        if chunk and (len(chunk) == size or weight + own > MOST_BYTES):
            yield chunk
            chunk, weight = [], 0
        chunk.append(item)
        weight += own
    if chunk:
        yield chunk


def _raw(job: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    options = dict(job) if isinstance(job, Mapping) else {"body": job}
    body = options.pop("body")
    content = {"body": body} if isinstance(body, str) else {"body_base64": base64.b64encode(body).decode()}
    return content | _members(**options)


def _error_members(error: BaseException | str) -> dict[str, str] | str | None:
    if isinstance(error, BaseException):
        trace = "".join(traceback.format_exception(error))
        texts = {"class": type(error).__qualname__, "message": str(error), "traceback": trace}
        return {name: _sendable(text) for name, text in texts.items()}
    return _sendable(error) or None


def _sendable(text: str) -> str:
    """Return the text in a form that can be sent.

    A job whose error could not be sent would stay leased until the lease expires.
    """
    if len(text) > _ERROR_CHARS:
        half = _ERROR_CHARS // 2
        text = f"{text[:half]}\n… (cut here) …\n{text[-half:]}"
    return text.encode(errors="replace").decode()
