"""Put jobs in."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from .answers import Many, Produced, made
from .base import AT_ONCE, Base, Seconds, chunks, said, size_of
from .errors import ApiError, Unavailable


class Options(TypedDict, total=False):
    """Options of a job, as :func:`django_delayq.schedule` has them; spans are seconds or ``timedelta``."""

    id: str | int
    delay: Seconds
    at: datetime | float
    priority: int
    on_conflict: str
    due_policy: str
    reset_retries: bool
    max_attempts: int
    retry_in: float | Sequence[float] | str
    expires: Seconds
    context: Mapping[str, Any]


class Producing(Base):
    """The verbs of who has work for others."""

    def put(self, queue: str, body: bytes | str, **options: Unpack[Options]) -> Produced:
        """Store raw bytes in a queue of kind pull; text becomes UTF-8.

        Raises:
            IdTaken, QueueFull, QueuePaused, QueueNotFound, Invalid: the server's answer; nothing was stored.
        """
        return self._produced(queue, _raw(body) | said(**options))

    def put_many(self, queue: str, jobs: Iterable[bytes | str | Mapping[str, Any]]) -> Many:
        """Store many at once. A job is its body, or a dict with ``body`` and options like those of :meth:`put`.

        They go in requests of up to 1,000 jobs and about 2 MiB.

        Raises:
            ApiError: a request was refused. Nothing of it was stored; ``done`` has the results of those before it.
        """
        return self._many(queue, map(_raw_of, jobs))

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
    ) -> Produced:
        """Schedule a task that has ``@task(api=True)``.

        Args:
            queue: the queue.
            task: the name that it is registered under ("shop.cancel_order").
            args: positional arguments, JSON.
            kwargs: keyword arguments, JSON.
            payload: of a merged task, instead of ``args`` and ``kwargs``; it needs an ``id``.
            score: of the payload.
            durable: keep it in the database, too, until it is done; None = as the task says. With an ``id`` it is
                taken in while the server's Redis is away ("outbox").
            options: see :class:`Options`.

        Raises:
            IdTaken, QueueFull, QueuePaused, Invalid: the server's answer; nothing was stored.
        """
        call = said(
            args=list(args) or None,
            kwargs=None if kwargs is None else dict(kwargs),
            payload=payload,
            score=score,
            durable=durable,
        )
        job = {"task": task, **call, **said(**options)}
        try:
            return self._produced(queue, job)
        except Unavailable as error:
            if error.code != "unavailable" or "id" not in job:
                raise
            # While Redis is away nobody can look a key up, but durable jobs are taken in. Of those that have an id a
            # second one is none more.
            path = ("v1", "queues", queue, "jobs")
            return made(Produced, self._wire.ask("POST", *path, body=job, attempts=1, keyed=False).data)

    def schedule_many(self, queue: str, jobs: Iterable[Mapping[str, Any]]) -> Many:
        """Schedule many at once: dicts with ``task`` and the arguments and options of :meth:`schedule`."""
        return self._many(queue, (said(**job) for job in jobs))

    def _produced(self, queue: str, job: dict[str, Any]) -> Produced:
        return made(Produced, self._post("queues", queue, "jobs", body=job))

    def _many(self, queue: str, jobs: Iterable[dict[str, Any]]) -> Many:
        results: list[tuple[str | None, str]] = []
        counts: Counter[str] = Counter()
        for chunk in chunks(jobs, AT_ONCE, weigh=size_of):
            try:
                answer = self._post("queues", queue, "jobs", body={"jobs": chunk})
            except ApiError as error:
                error.done = results
                raise
            results += [(one["id"], one["outcome"]) for one in answer["results"]]
            counts.update(answer["counts"])
        return Many(results=results, counts=dict(counts))


def _raw(body: bytes | str) -> dict[str, Any]:
    if isinstance(body, str):
        return {"body": body}
    return {"body_base64": base64.b64encode(body).decode()}


def _raw_of(job: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(job, Mapping):
        return _raw(job)
    return _raw(job["body"]) | said(**{name: value for name, value in job.items() if name != "body"})
