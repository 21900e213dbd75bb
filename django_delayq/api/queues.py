"""Queue endpoints: list, show, create, limit, pause, reshard and delete queues; pause all producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..access.problems import Problem, queue_not_found
from ..access.views import may_use
from ..connections import DjangoBroker
from ..core import layouts
from ..core.counts import Counts
from ..core.figures import read_depths
from ..core.queue import Queue
from ..core.records.keys import MAX_SHARDS
from ..core.times import iso_of
from ..outbox.row_verbs import forget_queue
from ..settings.conf import conf
from . import requests, responses
from .base import ApiView, operation

#: maximum number of shards of one queue that are shown individually
MOST_SHARDS_SHOWN: Final = 64


class Queues(ApiView):
    """Queues and their policies."""

    tag = "queues"

    def queues_of_body(self, request: Request) -> Sequence[str]:
        """Return the name of a queue to create."""
        return (self.read(request)["name"],) if self.action == "create_queue" else ()

    @operation("GET v1/queues", "view", returns=responses.QUEUES, query=requests.QueuesQuery)
    def list_queues(self, request: Request) -> Response:
        """List the queues with their counts.

        Two round trips to Redis for any number of queues; with `names_only` one. Queues that the project's `allow` rule
        hides from the user are left out.
        """
        query = self.read_query(request)
        broker = connections.hurried_broker()
        queues = [queue for queue in broker.reachable_queues() if may_use(request, "view", queue.name)]
        if query["names_only"]:
            return Response({"names": [queue.name for queue in queues]})
        counts = broker.inspector.all_counts(queues=queues, partial=True)
        render = responses.QueueCounts.render
        return Response({"queues": [render(queue_view(*one)) for one in zip(queues, counts, strict=True)]})

    @operation("POST v1/queues", "admin", reads=requests.NewQueue, returns={201: responses.Queue, 200: responses.Queue})
    def create_queue(self, request: Request) -> Response:
        """Create a queue.

        201: it was created. If it exists with the requested properties, the response is 200, so the request may be
        repeated; with others it is 409 `conflict`, or `set_in_settings` if the settings have other values. Missing
        members are taken from the settings; else there is one shard and no limit.
        """
        properties = self.read(request)
        name = properties.pop("name")
        queue, made = make(connections.hurried_broker(), name, properties)
        return Response(responses.Queue.render(queue_view(queue)), status=201 if made else 200)

    @operation("GET v1/queues/{queue}", "view", returns=responses.QueueDetail)
    def get_queue(self, request: Request, queue: str) -> Response:
        """Show a queue, also shard by shard.

        Of a queue with more than 64 shards only the newest 64 are listed; the totals include all.
        """
        opened = live(queue)
        (counts,) = connections.hurried_broker().inspector.all_counts(queues=[opened], by_shard=True, partial=True)
        return Response(responses.QueueDetail.render(queue_view(opened, counts)))

    @operation("PATCH v1/queues/{queue}", "operate", reads=requests.Limits, returns=responses.Queue)
    def limit_queue(self, request: Request, queue: str) -> Response:
        """Change the limits of a queue.

        A missing member leaves its limit unchanged; null removes it. The limits of a queue that the settings name are
        changed there (409 `set_in_settings`).
        """
        limits, name = self.read(request), live(queue).name
        if limits and connections.is_configured(name):
            raise Problem(
                "set_in_settings",
                f"the limits of queue {name!r} are set in DELAYQ['QUEUES'] of the project's settings; change them "
                "there",
            )
        connections.hurried_broker().limit(name, **limits)
        return _shown(name)

    @operation("DELETE v1/queues/{queue}", "admin", returns={204: None}, query=requests.DeleteQuery)
    def delete_queue(self, request: Request, queue: str) -> Response:
        """Delete a queue if it is empty or ``force`` is true.

        Scheduling into it later re-creates it. With `force` its jobs and its morgue are lost, and workers lose the
        leases of its running jobs; without, 409 `queue_not_empty`.
        """
        force = self.read_query(request)["force"]
        name = live(queue).name
        if not connections.hurried_broker().delete_queue(name, force=force):
            raise queue_not_found(name)
        if force:  # outbox rows would re-create it
            forget_queue(conf().outbox.databases, name)
        return Response(status=204)

    @operation("GET v1/queues/{queue}/depth", "view", returns=responses.Depth, query=requests.DepthQuery)
    def get_depth(self, request: Request, queue: str) -> Response:
        """Return the depth of a queue over time.

        One point for each minute, the oldest first, from samples that a dispatcher keeps in Redis for a day. Minutes
        without a running dispatcher have no point.
        """
        minutes = self.read_query(request)["minutes"]
        broker, name = connections.hurried_broker(), live(queue).name
        points = read_depths(broker, [name], broker.now_ms(), minutes)[name]
        return Response({"points": [responses.DepthPoint.render(point) for point in points]})

    @operation("POST v1/queues/{queue}/pause", "operate", reads=requests.Pause, returns=responses.Queue)
    def pause_queue(self, request: Request, queue: str) -> Response:
        """Pause a queue for new jobs, for workers, or for both.

        `in`: new jobs are refused (503 queue_paused); `out`: no jobs are reserved; `both`. Running jobs continue and
        are settled as usual. With `seconds` the pause ends by itself.
        """
        data, name = self.read(request), live(queue).name
        connections.hurried_broker().pause(name, data["direction"], seconds=data.get("seconds"))
        return _shown(name)

    @operation("POST v1/queues/{queue}/resume", "operate", reads=requests.Direction, returns=responses.Queue)
    def resume_queue(self, request: Request, queue: str) -> Response:
        """End the pause of a queue."""
        direction, name = self.read(request)["direction"], live(queue).name
        connections.hurried_broker().resume(name, direction)
        return _shown(name)

    @operation("POST v1/queues/{queue}/reshard", "admin", reads=requests.Reshard, returns=responses.Queue)
    def reshard_queue(self, request: Request, queue: str) -> Response:
        """Change the number of shards of a queue.

        Producers and workers continue. After the response new jobs go to the new shards; the jobs of the old ones are
        run there, and `draining` is true until these are empty. An interrupted request may be repeated.
        """
        shards, name = self.read(request)["shards"], live(queue).name
        connections.hurried_broker().reshard(name, shards)
        return _shown(name)

    @operation("GET v1/producers", "view", returns=responses.Producers)
    def get_producers(self, request: Request) -> Response:
        """Show whether the producers of all queues are paused, and since when."""
        return _producers()

    @operation("POST v1/producers/pause", "admin", returns=responses.Producers)
    def pause_producers(self, request: Request) -> Response:
        """Refuse new jobs in all queues.

        Also in queues that are created later. Stored jobs run and are settled as usual. Pauses of single queues are
        independent of this.
        """
        connections.hurried_broker().pause_producers()
        return _producers()

    @operation("POST v1/producers/resume", "admin", returns=responses.Producers)
    def resume_producers(self, request: Request) -> Response:
        """Accept new jobs in all queues again."""
        connections.hurried_broker().resume_producers()
        return _producers()


def _producers() -> Response:
    since = connections.hurried_broker().producers_paused_since()
    return Response({"paused": since is not None, "since": iso_of(since)})


def live(name: str) -> Queue:
    """Return the queue as currently registered, including changes by other processes.

    Raises:
        Problem: there is no such queue.
    """
    registered = connections.hurried_broker().known_queue(name)
    if registered is None:
        raise queue_not_found(name[:64])
    return registered


def _shown(name: str) -> Response:
    return Response(responses.Queue.render(queue_view(live(name))))


def queue_view(queue: Queue, counts: Counts | None = None) -> SimpleNamespace:
    """Return a queue as registered, with its counts if they were read; what :mod:`.responses` renders."""
    policy = layouts.queue_policy(queue.layout)
    shards = counts.shards if counts else []
    return SimpleNamespace(
        name=queue.name,
        kind=queue.kind,
        shards=queue.shards,
        epoch=int(queue.layout["epoch"]),
        draining=len(queue.epochs) > 1,  # former shards are being worked off
        paused=policy["paused"],
        paused_until=policy["paused_until"],
        configured=connections.is_configured(queue.name),
        limits=layouts.limits_in_force(queue.layout),
        counts=counts,
        by_shard=[
            SimpleNamespace(number=number % MAX_SHARDS, epoch=number // MAX_SHARDS, counts=one)
            for number, one in shards[-MOST_SHARDS_SHOWN:]  # the newest ones
        ],
        shards_left_out=max(0, len(shards) - MOST_SHARDS_SHOWN),
    )


def make(broker: DjangoBroker, name: str, given: Mapping[str, Any]) -> tuple[Queue, bool]:
    """Return the requested queue, and True if it was created now.

    Raises:
        Problem: it exists with other properties, or the settings contradict the request.
    """
    entry = conf().queue(name)
    if connections.is_configured(name):
        for word, value in given.items():
            setting = getattr(entry, word)
            if value != setting and not (word == "shards" and setting is None):
                raise Problem(
                    "set_in_settings",
                    f"DELAYQ['QUEUES'][{name!r}] of the project's settings has {word}={setting!r}; leave it out, or "
                    "change it there",
                )
    limits = {word: getattr(entry, word) for word in layouts.LIMITS}
    usual = {"kind": entry.kind, "shards": connections.configured_shards(name) or 1, **limits}
    queue, is_new = broker.registry.create_with(name, **{**usual, **given})
    if is_new:
        return queue, True
    there = {"kind": queue.kind, "shards": queue.shards, **layouts.limits_in_force(queue.layout)}
    for word, value in given.items():
        if there[word] != value:
            advice = {"kind": "take another name", "shards": f"POST v1/queues/{name}/reshard changes it"}
            raise Problem(
                "conflict",
                f"queue {name!r} exists with {word}={there[word]!r}; "
                f"{advice.get(word, f'PATCH v1/queues/{name} changes it')}",
            )
    return queue, False
