"""Consumer verbs: reserve due jobs and settle them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic

from .answers import moment
from .base import SETTLED_AT_ONCE, Base, Seconds, chunks, members, seconds, size_of
from .held import Held, HeldT, held_of
from .methods import verb
from .wire import Pause, Steps

#: longest wait of one request, in seconds; a longer wait takes several requests
_LONGEST_WAIT: Final = 20.0
_REASON_CHARS: Final = 200
#: characters of each part of an error; servers keep fewer
_ERROR_CHARS: Final = 64 * 1024


class ConsumerVerbs(Base, Generic[HeldT]):
    """Consumer verbs of the clients, which differ in the class of the jobs that they hold."""

    _held_class: type[HeldT]

    @verb
    def reserve(
        self,
        *queues: str,
        max: int = 1,
        wait: Seconds = 0,
        ttr: Seconds | None = None,
        worker: str = "",
        deadline_margin: Seconds | None = None,
    ) -> Steps[list[HeldT]]:
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
        margin = None if deadline_margin is None else seconds(deadline_margin)
        if margin is not None and not margin > 0:
            raise ValueError(f"deadline_margin is {margin:g}; give more than 0 seconds, as many as a touch may take")
        end = time.monotonic() + seconds(wait)
        while True:
            left = self._wait_left(end, margin)
            jobs, pause = yield from self._reserve_once(
                queues,
                max,
                min(_LONGEST_WAIT, left) if left > 0 else 0,
                None if ttr is None else seconds(ttr),
                worker or self._worker,
            )
            left = self._wait_left(end, margin)
            if jobs or left <= 0:
                return jobs
            # A server that cannot hold the request returns the time for the next one.
            yield Pause(min(pause, left))

    @verb
    def soon_ending(self, margin: Seconds = 1.0) -> Steps[list[HeldT]]:
        """Return the jobs reserved by this client whose leases end within ``margin``, or are over, the nearest first.

        It sends no request. Jobs that were ended, are known to be lost, or whose objects are gone are not included.
        """
        yield from ()
        most = seconds(margin)
        return sorted((job for job in self._in_hand() if job.seconds_left <= most), key=lambda job: job._ends_at)

    @verb
    def reserve_id(
        self,
        queue: str,
        id: str,
        early: bool = False,
        *,
        buried: bool = False,
        ttr: Seconds | None = None,
        worker: str = "",
    ) -> Steps[HeldT | None]:
        """Reserve the waiting job of this id. Return None if there is none, or it is not due and ``early`` is False.

        With ``buried``, if no job of the id is live, the one that was buried last is taken from the morgue.
        """
        length = None if ttr is None else seconds(ttr)
        options = members(early=early, buried=buried or None, ttr=length, worker=worker or self._worker)
        sent_at = time.monotonic()
        data = yield from self._post("queues", queue, "reserve", body={"id": id, **options})
        jobs = self._keep(data["jobs"], length, sent_at)
        return jobs[0] if jobs else None

    @verb
    def ack(self, jobs: Sequence[HeldT]) -> Steps[list[bool]]:
        """Acknowledge jobs as done. Return for each job if that counted; False = its lease was lost.

        Jobs that were already ended here are not sent, and return False.
        """
        return self._settle("ack", jobs)

    @verb
    def fail(
        self, jobs: Sequence[HeldT], error: BaseException | str = "", delay: Seconds | None = None
    ) -> Steps[list[bool]]:
        """Record failed attempts, which are counted.

        The jobs are due again after ``delay``, by default after their tasks' back-off, or go to the morgue if this was
        the last attempt.
        """
        return self._fail(jobs, error, delay)

    @verb
    def release(
        self, jobs: Sequence[HeldT], delay: Seconds | None = None, *, priority: int | None = None
    ) -> Steps[list[bool]]:
        """Release jobs without counting an attempt, due after ``delay`` or (None) at their old places.

        ``priority`` replaces theirs from now on: 0 (first) … 7.
        """
        return self._settle("release", jobs, delay=delay, priority=priority)

    @verb
    def bury(self, jobs: Sequence[HeldT], reason: str = "") -> Steps[list[bool]]:
        """Move jobs that can never succeed to the morgue, with the reason."""
        return self._bury(jobs, reason)

    @verb
    def touch(self, jobs: Sequence[HeldT], ttr: Seconds | None = None) -> Steps[list[bool]]:
        """Extend the leases: ``ttr`` from now on, by default as long as each job was reserved for.

        Return False for jobs whose lease was lost.
        """

        return self._touch(jobs, ttr)

    def _wait_left(self, end: float, margin: float | None) -> float:
        """Return the seconds until a wait ends: at ``end``, or before the first end of a lease."""
        left = end - time.monotonic()
        if margin is None:
            return left
        return min([left, *(most - margin for job in self._in_hand() if (most := job.seconds_left) > 0)])

    def _in_hand(self) -> list[HeldT]:
        with self._held_guard:
            return [job for job in self._held if job.in_hand]

    def _keep(self, reserved: Sequence[Mapping[str, Any]], ttr: float | None, began: float) -> list[HeldT]:
        jobs = [held_of(self._held_class, one, self, ttr, began) for one in reserved]
        with self._held_guard:
            self._held.update(jobs)
        return jobs

    def _reserve_once(
        self, queues: Sequence[str], most: int, wait: float, ttr: float | None, worker: str
    ) -> Steps[tuple[list[HeldT], float]]:
        body: dict[str, Any] = {"max": most, "wait": round(wait, 3), **members(ttr=ttr), "worker": worker}
        path = ("queues", queues[0], "reserve") if len(queues) == 1 else ("reserve",)
        if len(queues) > 1:
            body["queues"] = list(queues)
        sent_at = time.monotonic()
        answer = yield from self._exchange("POST", *path, body=body, extra=wait)
        # The leases begin when the jobs are found: at any time of a wait, but most often at its end.
        jobs = self._keep(answer.data["jobs"], ttr, time.monotonic() if wait else sent_at)
        return jobs, answer.retry_after or 0.0

    def _fail(
        self, jobs: Sequence[Held], error: BaseException | str, delay: Seconds | None = None
    ) -> Steps[list[bool]]:
        return self._settle("fail", jobs, error=_error_members(error), delay=delay)

    def _bury(self, jobs: Sequence[Held], reason: str) -> Steps[list[bool]]:
        return self._settle("bury", jobs, reason=_text(reason[:_REASON_CHARS]) or None)

    def _touch(self, jobs: Sequence[Held], ttr: Seconds | None) -> Steps[list[bool]]:
        sent_at = time.monotonic()

        def read(job: Held, answer: Mapping[str, Any]) -> bool:
            job.lost, job.should_stop = not answer["held"], answer["stopping"]
            if not job.lost:
                job.lease_ends = moment(answer["lease_ends"])
                job._hold(job.ttr if ttr is None else seconds(ttr), sent_at)
            return not job.lost

        def entry(job: Held) -> dict[str, Any]:
            return members(ttr=job.ttr if ttr is None else ttr)

        return self._each("touch", jobs, entry, read)

    def _settle(self, action: str, jobs: Sequence[Held], **given: Any) -> Steps[list[bool]]:
        def read(job: Held, answer: Mapping[str, Any]) -> bool:
            job.ended, job.lost = True, not answer["counted"]
            return bool(answer["counted"])

        common = members(**given)
        return self._each(action, jobs, lambda _: common, read)

    def _each(
        self,
        action: str,
        jobs: Sequence[Held],
        members_of: Callable[[Held], Mapping[str, Any]],
        read: Callable[[Held, Mapping[str, Any]], bool],
    ) -> Steps[list[bool]]:
        answers: dict[int, bool] = {}
        by_queue: dict[str, list[tuple[int, Held]]] = {}
        for place, job in enumerate(jobs):
            if not (job.ended or job.lost):
                by_queue.setdefault(job.queue, []).append((place, job))
        for queue, held in by_queue.items():
            entries = [(place, job, {"id": job.id, "lease": job.lease, **members_of(job)}) for place, job in held]
            for chunk in chunks(entries, SETTLED_AT_ONCE, weigh=lambda one: size_of(one[2])):
                body = {"jobs": [entry for _, _, entry in chunk]}
                results = (yield from self._post("queues", queue, action, body=body))["results"]
                for (place, job, _), result in zip(chunk, results, strict=True):
                    answers[place] = read(job, result)
        return [answers.get(place, False) for place in range(len(jobs))]


def _error_members(error: BaseException | str) -> dict[str, str] | str | None:
    if isinstance(error, BaseException):
        trace = "".join(traceback.format_exception(error))
        return {"class": _text(type(error).__qualname__), "message": _text(str(error)), "traceback": _text(trace)}
    return _text(error) or None


def _text(text: str) -> str:
    """Return the text in a form that can be sent.

    A job whose error could not be sent would stay leased until the lease expires.
    """
    if len(text) > _ERROR_CHARS:
        half = _ERROR_CHARS // 2
        text = f"{text[:half]}\n… (cut here) …\n{text[-half:]}"
    return text.encode(errors="replace").decode()
