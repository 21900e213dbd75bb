"""Redis keys with their types and contents: the data model on one page.

A shard's keys share the hash tag ``{<queue>:<epoch>.<shard>}``, so one script touches one slot and a busy queue spreads
over a cluster. The keys of a shard are few, fixed and declared by every script. They never expire, but for the events
of a retired shard, which stay for a day.

=========== ======== ==========================================================================================
name        type     content
=========== ======== ==========================================================================================
due.0 … 7   zset     waiting ids of one priority class -> due, µs (ms · 1000 + place of arrival)
lease       zset     reserved ids -> end of the lease, ms
body        hash     live id -> body (:mod:`.frames`)
state       hash     id -> changes since it was scheduled (``lua/lib/state.lua``); a fresh job has none
gate        hash     running id -> due and body of the content scheduled during the attempt
order       zset     payloads of merged jobs by (id, score, arrival), all with score 0
payload     hash     (id, digest, slot) -> payload record
failed      zset     live ids with failures -> time of the last failure, µs
failures    zset     the same ids -> number of failures
morgue      zset     (id, key) of a buried generation -> time of the burial, µs
morgue_id   zset     the same, by id
grave       hash     (id, key) -> morgue record (``lua/lib/grave.lua``)
reply       hash     request id -> its reply
window      list     request ids by age
count       hash     counters
event       stream   finished attempts, capped (:mod:`..events`)
meta        hash     clock, sequence, last token, reaper hold, rules (``lua/rule.lua``), run id of Redis, ticks,
                     quota and number of its division (``lua/quota.lua``), random id of the shard,
                     position of the newest event (:mod:`..events`)
task        hash     names of the shard's tasks and the numbers that stand for them in bodies
marks       hash     durable key -> completion mark (``lua/lib/marks.lua``), until it is acknowledged
quarantine  zset     like due, for jobs of all classes whose next attempt is in quarantine (:mod:`~..job`)
lane        zset     like due, for jobs of all classes that are behind a limit (``lua/lib/lanes.lua``)
lane_order  zset     the same jobs by lane and due time, all with score 0
turns       zset     lane with jobs -> its task, its class, and when it may be offered, ms
blocked     hash     queue or task -> when a limiter said something of it, until when it is blocked; limit of a task ->
                     its tasks
begun       hash     (token, id) of a job that was acked before its attempt -> begin, state, body, payloads
                     (``lua/lib/settle.lua``), until the end of the attempt is stored
=========== ======== ==========================================================================================

Keys outside the shards:

* ``{<prefix>}:queues`` (hash: queue -> layout, see :mod:`..layouts`; ``""`` -> number of its changes; ``-producers`` ->
  since when the producers of all queues are paused, ms)
* ``{<prefix>}:recurring`` (hash: paused recurring task -> since when, ms)
* ``{<prefix>}:workers`` (hash: worker -> last announcement)
* ``{<prefix>}:tasks`` (hash: worker -> names of the tasks that it can run)
* ``{<prefix>}:figures`` (hash: counters of finished attempts, see :mod:`..figures`)
* ``{<prefix>}:noted`` (zset: the last requests that added to them, with their times, ms)
* ``{<prefix>}:limits`` (hash: limit -> its numbers that were set at run time, packed)
* ``<prefix>:wake:<queue>`` (list of shard numbers), without a cluster

Keys that expire, on which no job depends:

* ``{<prefix>}:load:<load>`` (string: record of a bulk load, see :mod:`..loads`)
* ``<stem>load:<load>:<opened ms>`` (hash: its ledger, beside each shard that it writes to and in the same slot)
* ``{<prefix>}:mirror`` (string: moment until which the tables of failed and buried jobs are complete)
* ``<prefix>:result:<id>`` (string: result record of a Django Task, see ``backends/results.py``)
* ``{<prefix>}:rate:<limit>`` (string: moment, µs), ``{<prefix>}:pause:<limit>`` (empty string)
* ``{<prefix>}:permits:<limit>`` (zset: permit -> its end, ms) and ``{<prefix>}:waiters:<limit>`` (zset: shard whose
  jobs wait for one -> since when, µs), see :mod:`..limits`
* ``{<prefix>}:depth:<queue>`` (stream: samples of a day, see :mod:`..figures`; ``""`` = all queues together), and
  ``{<prefix>}:sampler`` (string: the worker that takes them)
* ``{<prefix>}:commands:<worker>`` (hash: word -> id of a pending command, see :mod:`..workers`)
* ``{<prefix>}:choices:<program>`` (hash: queue -> what operators decided for the workers of a program)
* ``{<prefix>}:dump:<worker>`` (string: ``<ms>:<stacks of its threads>``)
* ``<stem>confirm`` (empty string), written beside each shard by confirmed calls, see :mod:`..redis.scripts`
* ``<prefix>:answer:<hash>`` (string: reply of the HTTP API to an Idempotency-Key)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from ..job import PRIORITIES

MAX_SHARDS: Final = 1024
SHARD_KEYS: Final = (
    *(f"due.{priority}" for priority in range(PRIORITIES)),
    "lease",
    "body",
    "state",
    "gate",
    "order",
    "payload",
    "failed",
    "failures",
    "morgue",
    "morgue_id",
    "grave",
    "reply",
    "window",
    "count",
    "event",
    "meta",
    "task",
    "marks",
    "quarantine",
    "begun",
    "lane",
    "lane_order",
    "turns",
    "blocked",
)
#: sets of waiting jobs, in the order of their classes in the scripts
DUE_KEYS: Final = (*SHARD_KEYS[:PRIORITIES], "quarantine", "lane")
FRESH_KEYS: Final = ("body", "count", "reply", "window", "meta", "task")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard in the form that the scripts take: its keys in order, and the constants of every call."""

    number: int
    keys: tuple[bytes, ...]
    constants: bytes
    names: dict[str, bytes] = field(repr=False)
    fresh_keys: tuple[tuple[bytes, ...], ...] = field(repr=False)  # of schedule_fresh.lua, by priority


def joint(shards: Sequence[Shard]) -> Shard:
    """Return the first of these shards with the keys of all, for scripts that read several."""
    return replace(shards[0], keys=tuple(chain.from_iterable(shard.keys for shard in shards)))


def wake_key(prefix: str, queue: str) -> str:
    """Return the key of a queue's wake list; on a cluster, the name of its wake channel."""
    return f"{prefix}:wake:{queue}"


def number_of(epoch: int, place: int) -> int:
    """Return the number of a shard, unique within its queue over all epochs."""
    return epoch * MAX_SHARDS + place
