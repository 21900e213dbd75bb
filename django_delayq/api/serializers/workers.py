"""Worker processes and the commands to them."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rest_framework import serializers

from ...core.times import iso_of
from ...status.snapshot import RunningJob
from .base import ADDED, Resource, with_example
from .fields import QueueNameField, RoundedField, TimeField

_WHEN: Final = "2026-11-21T11:23:43.123Z"


class RunningJobSerializer(Resource):
    """Job that one thread ran at the last heartbeat."""

    slot = serializers.IntegerField(help_text="number of the thread")
    queue = serializers.CharField()
    id = serializers.CharField()
    task = serializers.CharField()
    started = TimeField(source="started_ms", allow_null=True)
    ids = serializers.IntegerField(help_text="number of jobs in this call of the handler; `id` is the first of them")
    lease_ends = TimeField(
        **ADDED,
        allow_null=True,
        help_text="only in the response for one worker; null if the worker has lost the job",
    )
    example: ClassVar = {
        "slot": 0,
        "queue": "orders",
        "id": "order-5",
        "task": "shop.cancel_order",
        "started": _WHEN,
        "ids": 1,
    }

    def to_representation(self, job: RunningJob) -> Any:
        """Return the job, with the end of its lease if the context has the leases."""
        rendered = super().to_representation(job)
        ends = self.context.get("lease_ends")
        if ends is not None:
            rendered["lease_ends"] = iso_of(ends.get((job.queue, job.id)))
        return rendered


class WorkerSerializer(Resource):
    """Worker process as of its last heartbeat."""

    name = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField(allow_null=True)
    queues = serializers.ListField(child=serializers.CharField(), help_text="served queues")
    ignored = serializers.ListField(
        child=serializers.CharField(), help_text="queues that operators took from its program (`ignore`)"
    )
    threads = serializers.IntegerField()
    running = serializers.IntegerField(help_text="busy threads")
    dispatcher = serializers.BooleanField(help_text="it also runs the dispatcher")
    quarantine = serializers.BooleanField(help_text="it runs jobs in quarantine, one at a time")
    stopping = serializers.BooleanField()
    started = TimeField(source="started_ms", allow_null=True)
    rss_mib = serializers.IntegerField(allow_null=True)
    seen = TimeField(source="seen_ms", allow_null=True)
    seconds_ago = RoundedField(help_text="since its last heartbeat")
    lost = serializers.BooleanField(help_text="no heartbeat for half a minute")
    jobs = RunningJobSerializer(many=True, help_text="at most 64, the longest running first")
    example: ClassVar = {
        "name": "web1-4711",
        "host": "web1",
        "pid": 4711,
        "queues": ["orders"],
        "ignored": [],
        "threads": 8,
        "running": 1,
        "dispatcher": True,
        "quarantine": False,
        "stopping": False,
        "started": _WHEN,
        "rss_mib": 61,
        "seen": _WHEN,
        "seconds_ago": 1.2,
        "lost": False,
    }


class WorkersSerializer(Resource):
    """All worker processes, by name."""

    workers = WorkerSerializer(many=True)


class CommandSerializer(Resource):
    """Command sent to a worker."""

    worker = serializers.CharField()
    command = serializers.ChoiceField(("stop", "drain", "dump", "watch", "ignore"))

    @classmethod
    def of(cls, word: str) -> Any:
        """Return the schema of the response to this command."""
        return with_example(cls, {"worker": "web1-4711", "command": word})


class WatchedQueueSerializer(Resource):
    """Queue that a worker is to serve, or no longer."""

    queue = QueueNameField()
    requests: ClassVar = {"the queue of the mails": {"queue": "mail"}}
    example: ClassVar = {"queue": "mail"}


class DumpSerializer(Resource):
    """Stacks of all threads of a worker."""

    worker = serializers.CharField()
    taken = TimeField(allow_null=True)
    stacks = serializers.CharField(help_text="as Python prints them, at most 64 KiB")
    example: ClassVar = {
        "worker": "web1-4711",
        "taken": _WHEN,
        "stacks": 'Thread 139 "slot-1":\n  File "shop/tasks.py", line 7, in pay\n    sleep(60)\n',
    }
