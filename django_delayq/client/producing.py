"""Producer verbs: store jobs."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from .answers import Many, Produced, made
from .base import AT_ONCE, Base, Seconds, chunks, members, size_of
from .errors import Unavailable
from .methods import verb
from .wire import Steps


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


class ProducerVerbs(Base):
    """Producer verbs of the clients."""

    @verb
    def put(self, queue: str, body: bytes | str, **options: Unpack[Options]) -> Steps[Produced]:
        """Store raw bytes in a queue of kind pull; text becomes UTF-8.

        Raises:
            IdTaken, QueueFull, QueuePaused, QueueNotFound, Invalid: the server's response; nothing was stored.
        """
        return self._produce(queue, _raw(body) | members(**options))

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
        return self._produce_many(queue, map(_raw_of, jobs), all_or_none=all_or_none)

    @verb
    def schedule(
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
    ) -> Steps[Produced]:
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
        call = members(
            args=list(args) or None,
            kwargs=None if kwargs is None else dict(kwargs),
            payload=payload,
            score=score,
            durable=durable,
        )
        job = {"task": task, **call, **members(**options)}
        try:
            return (yield from self._produce(queue, job))
        except Unavailable as error:
            if error.code != "unavailable" or "id" not in job:
                raise
            # While Redis is unavailable the server cannot look up a key, but accepts durable jobs. For a job with an
            # id, a second one adds nothing.
            path = ("queues", queue, "jobs")
            answer = yield from self._exchange("POST", *path, body=job, attempts=1, keyed=False)
            return made(Produced, answer.data)

    @verb
    def schedule_many(self, queue: str, jobs: Iterable[Mapping[str, Any]], *, all_or_none: bool = False) -> Steps[Many]:
        """Schedule many jobs: dicts with ``task`` and the arguments and options of :meth:`schedule`.

        See :meth:`put_many`.
        """
        return self._produce_many(queue, (members(**job) for job in jobs), all_or_none=all_or_none)

    def _produce(self, queue: str, job: dict[str, Any]) -> Steps[Produced]:
        return made(Produced, (yield from self._post("queues", queue, "jobs", body=job)))

    def _produce_many(self, queue: str, jobs: Iterable[dict[str, Any]], *, all_or_none: bool) -> Steps[Many]:
        bodies: Iterable[dict[str, Any]] = ({"jobs": chunk} for chunk in chunks(jobs, AT_ONCE, weigh=size_of))
        if all_or_none:
            whole = list(jobs)
            bodies = [{"jobs": whole, "all_or_none": True}] if whole else []
        results, counts = yield from self._post_each(("queues", queue, "jobs"), bodies)
        return Many(results=results, counts=counts)


def _raw(body: bytes | str) -> dict[str, Any]:
    if isinstance(body, str):
        return {"body": body}
    return {"body_base64": base64.b64encode(body).decode()}


def _raw_of(job: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(job, Mapping):
        return _raw(job)
    return _raw(job["body"]) | members(**{name: value for name, value in job.items() if name != "body"})
