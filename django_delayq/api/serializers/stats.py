"""Numbers of the whole deployment."""

from __future__ import annotations

from typing import ClassVar

from rest_framework import serializers

from .base import Resource
from .fields import ListField, ObjectField, RoundedField, TimeField
from .queues import CountsSerializer


class LengthsSerializer(Resource):
    """Length, morgue length and lag of a queue."""

    length = serializers.IntegerField(help_text="waiting jobs, due or not")
    morgue_length = serializers.IntegerField()
    lag = RoundedField(help_text="seconds by which the longest waiting ready job is overdue")
    example: ClassVar = {"length": 1200, "morgue_length": 3, "lag": 0.25}


class StatsSerializer(Resource):
    """Length, morgue length and lag of all queues. The total lag is the longest."""

    total = LengthsSerializer()
    by_queue = serializers.DictField(child=LengthsSerializer())
    unreachable_shards = serializers.IntegerField(
        required=False, help_text="of a cluster: shards without an answer, not counted here; missing if there are none"
    )
    example: ClassVar = {"by_queue": {"mail": LengthsSerializer.example}}


class StatusSerializer(Resource):
    """Full status. Any release may add members."""

    now = TimeField(help_text="Redis's clock")
    totals = ObjectField(help_text="of all queues; `busy` of `threads` run a job")
    queues = ListField(help_text="counts, counters, policy, lateness and duration of attempts of each")
    workers = ListField(help_text="last heartbeat of each")
    recurring = ListField(
        help_text="recurring tasks registered in the responding process, with their last and next tick and pause"
    )
    redis = ObjectField(help_text="version, memory, persistence, clients")
    producers_paused = TimeField(allow_null=True, help_text="since when the producers of all queues are paused")
    unreachable = ListField(
        help_text="of a cluster: the nodes that do not answer, with their `slots`, the number of `shards` of each "
        "queue there, and `registry`: true if queues and workers may be incomplete"
    )
    outbox = ObjectField(required=False, help_text="durable jobs in the database")
    example: ClassVar = {
        "now": "2026-11-21T11:23:43.123Z",
        "totals": CountsSerializer.example,
        "queues": [{"name": "mail", **CountsSerializer.example}],
        "workers": [],
        "recurring": [],
        "redis": {"version": "7.4.1", "mode": "standalone"},
        "producers_paused": None,
        "unreachable": [],
    }
