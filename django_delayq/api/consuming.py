"""Consumer endpoints for any language: reserve due jobs under a lease, and report how they ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..core.inputs import one_line
from ..pull.coordinator import coordinator_of
from ..pull.queue import reserve_id
from ..pull.search import Holder, Search
from ..settings.conf import conf
from . import requests, responses, settle
from .base import ApiView, operation
from .waiting import WaitingResponse, answer, can_wait, let_go_of_databases, reserved

#: maximum bytes of a holder's name
_NAME_BYTES: Final = 255


class Consuming(ApiView):
    """Reserves, and ends of held jobs.

    Of an end `counted` is false if the lease was lost: then nothing was changed.
    """

    tag = "consuming"

    @operation("POST v1/queues/{queue}/reserve", "consume", reads=requests.Reserve, returns=responses.HeldJobs)
    def reserve(self, request: Request, queue: str) -> Response:
        """Reserve due jobs of a queue.

        The caller holds each job until `lease_ends`. Settle it with ack, fail, release or bury, or extend the lease
        with touch; each needs its id and `lease`. A lease that runs out counts as a crash. With `wait`, a server under
        ASGI responds as soon as a job is due, and with an empty list if none was due in time. Send the next request
        after `Retry-After`, or at once if there is none. A caller that holds jobs during the wait gives their
        `lease_ends` as `holding`: the wait ends `deadline_margin` seconds before the first of them, with
        `deadline_soon`. In a queue of kind python this competes with its workers. With `id` the job of this id is
        reserved (with `buried` also from the morgue, its failures reset).
        """
        options = self.read(request)
        if "id" not in options:
            return self._take(request, (queue,), options)
        opened, ident, holder = self.queue(queue), options["id"], _holder(request, options)
        held = reserve_id(opened, ident, holder, early=options["early"], buried=options["buried"])
        return reserved(held, self._record)

    def queues_of_address(self, request: Request) -> Sequence[str]:
        """Return the queue, if the address names one."""
        return tuple(self.kwargs.values())

    def queues_of_body(self, request: Request) -> Sequence[str]:
        """Return the queues of a reserve from several."""
        names: Sequence[str] = () if self.kwargs else self.read(request)["queues"]
        return names

    @operation("POST v1/reserve", "consume", reads=requests.ReserveFromMany, returns=responses.HeldJobs)
    def reserve_from_many(self, request: Request) -> Response:
        """Reserve due jobs of several queues.

        Each call begins with another of the queues. Otherwise this is the reserve of one queue.
        """
        options = self.read(request)
        return self._take(request, options["queues"], options)

    @operation("POST v1/queues/{queue}/ack", "consume", reads=requests.Ack, returns=responses.Settled)
    def ack(self, request: Request, queue: str) -> Response:
        """Acknowledge jobs: they are done and deleted.

        `counted` is false if the lease was lost (it ran out, the job was settled before, or another client holds it):
        then nothing was changed. After a 503 some jobs may be settled. If the request is repeated with the same
        Idempotency-Key, these are `true` again, provided that all jobs of the request have the same outcome.
        """
        return self._settle(request, queue)

    @operation("POST v1/queues/{queue}/fail", "consume", reads=requests.Fail, returns=responses.Settled)
    def fail(self, request: Request, queue: str) -> Response:
        """Report failed attempts.

        Each counts as an attempt. The job is due again after its back-off, or `delay`; after its last attempt it is in
        the morgue. `counted` is as for ack.
        """
        return self._settle(request, queue)

    @operation("POST v1/queues/{queue}/release", "consume", reads=requests.Release, returns=responses.Settled)
    def release(self, request: Request, queue: str) -> Response:
        """Release jobs.

        No attempt is counted. They are due after `delay`, or keep their due times. `counted` is as for ack.
        """
        return self._settle(request, queue)

    @operation("POST v1/queues/{queue}/bury", "consume", reads=requests.Bury, returns=responses.Settled)
    def bury(self, request: Request, queue: str) -> Response:
        """Bury jobs: they go to the morgue with the reason.

        `counted` is as for ack.
        """
        return self._settle(request, queue)

    @operation("POST v1/queues/{queue}/touch", "consume", reads=requests.Touch, returns=responses.Touched)
    def touch(self, request: Request, queue: str) -> Response:
        """Extend leases.

        The leases last `ttr` seconds from now on, by default as long as each job's own, else 60. `held` is false if the
        lease was lost. `stopping` is true if the job was cancelled: it may be settled in any way, and is not retried.
        """
        opened = self.queue(queue)
        return Response({"results": settle.touch(opened, self.read(request)["jobs"])})

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand the key's record to a waiting response, which stores itself, and close the database connections."""
        if isinstance(response, WaitingResponse):
            response.record, self._record = self._record, None
            let_go_of_databases()
        return super().finalize_response(request, response, *args, **kwargs)

    def _take(self, request: Request, names: tuple[str, ...], options: Mapping[str, Any]) -> Response:
        """Return the response, or one that is to be awaited."""
        for name in names:
            self.queue(name)  # reserving must not create a queue
        coordinator, holder = coordinator_of(connections.hurried_broker()), _holder(request, options)
        search = Search(coordinator, names, options["max"], holder)
        wait, left = min(options["wait"], conf().api.max_wait), _until_deadline(options)
        if min(wait, left) > 0 and can_wait(request):
            return WaitingResponse(request, search, min(wait, left), to_deadline=left < wait)
        return answer(search, self._record, deadline_soon=left <= 0)

    def _settle(self, request: Request, queue: str) -> Response:
        """End the held jobs of a request by the verb of its address, and return the results."""
        opened = self.queue(queue)
        jobs = self.read(request)["jobs"]
        seed = None if self._record is None else self._record.call()
        counted = settle.settle(opened, jobs, str(self.action), _name_of(request), seed)
        return Response({"results": [{"id": job.id, "counted": one} for job, one in zip(jobs, counted, strict=True)]})


def _holder(request: Request, options: Mapping[str, Any]) -> Holder:
    """Return the holder that a request names."""
    return Holder(options["worker"] or _name_of(request), options.get("ttr"))


def _name_of(request: Request) -> str:
    """Return the user's name, made fit to be stored as a holder's."""
    name = one_line(request.user.get_username())
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


def _until_deadline(options: Mapping[str, Any]) -> float:
    """Return the seconds until the margin of the first lease that the caller holds; infinity if it holds none."""
    if not options.get("holding"):
        return math.inf
    now = connections.hurried_broker().now_ms()
    lefts = [(end - now) / 1000 - options["deadline_margin"] for end in options["holding"] if end and end > now]
    return min(lefts, default=math.inf)
