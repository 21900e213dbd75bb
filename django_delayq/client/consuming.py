"""Consumer verbs: reserve due jobs and settle them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .answers import moment
from .base import SETTLED_AT_ONCE, Base, Seconds, chunks, said, seconds, size_of
from .held import HeldJob, held_of

#: longest wait of one request, in seconds; a longer wait takes several requests
_LONGEST_WAIT: Final = 20.0
_REASON_CHARS: Final = 200
#: characters of each part of an error; servers keep fewer
_ERROR_CHARS: Final = 64 * 1024


class Consuming(Base):
    """Consumer verbs of the client."""

    def reserve(
        self, *queues: str, max: int = 1, wait: Seconds = 0, ttr: Seconds = 60, worker: str = ""
    ) -> list[HeldJob]:
        """Reserve up to ``max`` due jobs of a queue, or of several queues that are served in turn.

        Args:
            queues: names of the queues.
            max: 1 … 250.
            wait: seconds to wait for the first job.
            ttr: seconds until the leases of the jobs expire, unless they are touched.
            worker: name of the holder; default: the client's.

        Returns:
            The jobs; an empty list if there was none in time.

        Raises:
            ApiError: the request was refused, or there was no response.
        """
        if not queues:
            raise ValueError('which queue? client.reserve("mail"), or several: client.reserve("mail", "sms")')
        end = time.monotonic() + seconds(wait)
        while True:
            left = end - time.monotonic()
            jobs, pause = self._reserve(
                queues, max, min(_LONGEST_WAIT, left) if left > 0 else 0, seconds(ttr), worker or self._worker
            )
            left = end - time.monotonic()
            if jobs or left <= 0:
                return jobs
            # A server that cannot hold the request returns the time for the next one.
            time.sleep(min(pause, left))

    def ack(self, jobs: Sequence[HeldJob]) -> list[bool]:
        """Acknowledge jobs as done. Return for each job if that counted; False = its lease was lost.

        Jobs that were already ended here are not sent, and return False.
        """
        return self._settle("ack", jobs)

    def fail(
        self, jobs: Sequence[HeldJob], error: BaseException | str = "", delay: Seconds | None = None
    ) -> list[bool]:
        """Record failed attempts, which are counted.

        The jobs are due again after ``delay``, by default after their tasks' back-off, or go to the morgue if this was
        the last attempt.
        """
        return self._settle("fail", jobs, error=_told(error), delay=delay)

    def release(self, jobs: Sequence[HeldJob], delay: Seconds | None = None) -> list[bool]:
        """Release jobs without counting an attempt, due after ``delay`` or (None) at their old places."""
        return self._settle("release", jobs, delay=delay)

    def bury(self, jobs: Sequence[HeldJob], reason: str = "") -> list[bool]:
        """Move jobs that can never succeed to the morgue, with the reason."""
        return self._settle("bury", jobs, reason=_text(reason[:_REASON_CHARS]) or None)

    def touch(self, jobs: Sequence[HeldJob], ttr: Seconds | None = None) -> list[bool]:
        """Extend the leases: ``ttr`` from now on, by default as long as each job was reserved for.

        Return False for jobs whose lease was lost.
        """

        def read(job: HeldJob, answer: Mapping[str, Any]) -> bool:
            job.lost, job.should_stop = not answer["held"], answer["stopping"]
            if not job.lost:
                job.lease_ends = moment(answer["lease_ends"])
            return not job.lost

        return self._each("touch", jobs, lambda job: {"ttr": job.ttr if ttr is None else seconds(ttr)}, read)

    def _reserve(
        self, queues: Sequence[str], most: int, wait: float, ttr: float, worker: str
    ) -> tuple[list[HeldJob], float]:
        body: dict[str, Any] = {"max": most, "wait": round(wait, 3), "ttr": ttr, "worker": worker}
        path = ("v1", "queues", queues[0], "reserve") if len(queues) == 1 else ("v1", "reserve")
        if len(queues) > 1:
            body["queues"] = list(queues)
        answer = self._wire.ask("POST", *path, body=body, extra=wait)
        return [held_of(one, self, ttr) for one in answer.data["jobs"]], answer.retry_after or 0.0

    def _settle(self, verb: str, jobs: Sequence[HeldJob], **members: Any) -> list[bool]:
        def read(job: HeldJob, answer: Mapping[str, Any]) -> bool:
            job.ended, job.lost = True, not answer["counted"]
            return bool(answer["counted"])

        told = said(**members)
        return self._each(verb, jobs, lambda _: told, read)

    def _each(
        self,
        verb: str,
        jobs: Sequence[HeldJob],
        members: Callable[[HeldJob], Mapping[str, Any]],
        read: Callable[[HeldJob, Mapping[str, Any]], bool],
    ) -> list[bool]:
        answers: dict[int, bool] = {}
        by_queue: dict[str, list[tuple[int, HeldJob]]] = {}
        for place, job in enumerate(jobs):
            if not (job.ended or job.lost):
                by_queue.setdefault(job.queue, []).append((place, job))
        for queue, held in by_queue.items():
            entries = [(place, job, {"id": job.id, "lease": job.lease, **members(job)}) for place, job in held]
            for chunk in chunks(entries, SETTLED_AT_ONCE, weigh=lambda one: size_of(one[2])):
                body = {"jobs": [entry for _, _, entry in chunk]}
                results = self._post("queues", queue, verb, body=body)["results"]
                for (place, job, _), result in zip(chunk, results, strict=True):
                    answers[place] = read(job, result)
        return [answers.get(place, False) for place in range(len(jobs))]


def _told(error: BaseException | str) -> dict[str, str] | str | None:
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
