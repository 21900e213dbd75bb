"""Take due jobs, and say how they ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .answers import moment
from .base import SETTLED_AT_ONCE, Base, Seconds, chunks, said, seconds, size_of
from .held import HeldJob, held_of

#: longest wait of one request, seconds; a longer one is several
_LONGEST_WAIT: Final = 20.0
_REASON_CHARS: Final = 200
#: of each part of an error; servers keep less
_ERROR_CHARS: Final = 64 * 1024


class Consuming(Base):
    """The verbs of who does the work."""

    def reserve(
        self, *queues: str, max: int = 1, wait: Seconds = 0, ttr: Seconds = 60, worker: str = ""
    ) -> list[HeldJob]:
        """Take up to ``max`` due jobs of a queue, or of several that are served in turn.

        Args:
            queues: names.
            max: 1 … 250.
            wait: seconds to wait for the first job.
            ttr: seconds until the jobs are somebody else's again, unless they are touched.
            worker: who reserves, as others see it; default: the client's.

        Returns:
            The jobs; an empty list if there was none in time.

        Raises:
            ApiError: the request was refused, or there was no answer.
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
            # Who cannot wait for us says when it is worth asking again.
            time.sleep(min(pause, left))

    def ack(self, jobs: Sequence[HeldJob]) -> list[bool]:
        """They are done. Of each whether that counted; False = its lease was lost.

        Jobs that were ended here before are not sent, and are False.
        """
        return self._settle("ack", jobs)

    def fail(
        self, jobs: Sequence[HeldJob], error: BaseException | str = "", delay: Seconds | None = None
    ) -> list[bool]:
        """The attempts failed and count. They are due again after ``delay``, by default after their tasks' back-off, or
        go to the morgue where this was the last attempt."""
        return self._settle("fail", jobs, error=_told(error), delay=delay)

    def release(self, jobs: Sequence[HeldJob], delay: Seconds | None = None) -> list[bool]:
        """Give them back without counting an attempt, after ``delay`` or (None) at their old places."""
        return self._settle("release", jobs, delay=delay)

    def bury(self, jobs: Sequence[HeldJob], reason: str = "") -> list[bool]:
        """They can never succeed: into the morgue, where a person finds the reason."""
        return self._settle("bury", jobs, reason=_text(reason[:_REASON_CHARS]) or None)

    def touch(self, jobs: Sequence[HeldJob], ttr: Seconds | None = None) -> list[bool]:
        """Hold them longer: ``ttr`` from now on, by default as long as each was reserved for. False where the lease was
        lost."""

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
    """What can be sent of it: an error that cannot be told would leave its job to the end of the lease."""
    if len(text) > _ERROR_CHARS:
        half = _ERROR_CHARS // 2
        text = f"{text[:half]}\n… (cut here) …\n{text[-half:]}"
    return text.encode(errors="replace").decode()
