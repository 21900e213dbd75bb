"""Settlements of reserved jobs: ack, ack_early, fail, release, bury, expire, record."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ..core.job import POSTPONED, STARTED, STOPPING, UNCLEAR, UNRENEWED, Job, Settlement
from .payloads import add
from .shard import Shard, in_order
from .state import Due, Grave, Live, Postponed

_MOST = 65_535


def settle(shard: Shard, s: Settlement) -> bool:
    """Apply a settlement; return False without any change if the lease was lost (or has not expired yet)."""
    if s.verb == "record":
        return _record(shard, s)
    live = shard.lives.get(s.job.id)
    if live is None or live.lease is None or live.lease.token != s.job.token or not _may_reap(shard, s, live):
        shard.count("late")
        return False
    with shard.marking([s.job.id]):
        _settle(shard, s, live)
    return True


def _record(shard: Shard, s: Settlement) -> bool:
    """Record the end of an attempt whose job was acked early; it is counted while its start is known."""
    is_open = (s.job.token, s.job.id) in shard.begun
    shard.begun.discard((s.job.token, s.job.id))
    if is_open:
        shard.count("acked" if s.outcome == "succeeded" else s.outcome)
    elif s.guard == "expired":
        shard.count("late")
        return False
    return True


def _may_reap(shard: Shard, s: Settlement, live: Live) -> bool:
    if s.guard != "expired" or live.lease is None:
        return True
    return live.lease.deadline_ms <= shard.now_ms and shard.now_ms >= shard.hold_ms


def _settle(shard: Shard, s: Settlement, live: Live) -> None:
    ident = s.job.id
    if s.verb == "ack":
        shard.count("acked")
        _finish_run(shard, ident, live)
    elif s.verb == "ack_early":
        shard.begun.add((s.job.token, ident))
        _finish_run(shard, ident, live)
    elif live.flags & STOPPING:
        shard.count("cancelled")
        _end(shard, ident, live)
    elif s.verb == "expire":
        shard.count("expired")
        _end(shard, ident, live)
    elif s.verb == "bury":
        _bury(shard, s, live)
    elif live.gate and not live.content.merged:
        shard.count("superseded")
        _end(shard, ident, live)
    elif s.verb == "fail":
        _fail(shard, s, live)
    else:
        _release(shard, s, live)


def _end(shard: Shard, ident: str, live: Live) -> None:
    """Remove a finished generation; the content gated behind it becomes a new job."""
    shard.drop(ident)
    if live.gate:
        shard.wait(ident, Live(live.gate.content, live.gate.due, waiting=live.waiting))


def _finish_run(shard: Shard, ident: str, live: Live) -> None:
    """Remove the payloads of a finished attempt; payloads that did not fit into it get an attempt of their own."""
    live.running = {}
    if live.left and live.waiting:
        _put_rest(shard, ident, live)
    else:
        _end(shard, ident, live)


def _put_rest(shard: Shard, ident: str, live: Live) -> None:
    """Make the payloads left over by a merged job's attempt a new generation, due now."""
    digest = hashlib.sha1(live.content.key, usedforsecurity=False).digest()
    content = replace(live.content, key=bytes((digest[0] & 0x7F,)) + digest[1:16])  # not marked as durable
    if live.gate:
        content = replace(content, priority=live.gate.content.priority)
    shard.wait(ident, Live(content, shard.due(shard.now_ms), waiting=live.waiting))


def _fail(shard: Shard, s: Settlement, live: Live) -> None:
    shard.count(s.outcome)
    live.failures = min(live.failures + 1, _MOST)
    live.crashes = min(live.crashes + (s.outcome == "crashed"), _MOST)
    live.own_crashes = min(live.own_crashes + s.own_crash, _MOST)
    live.flags &= ~(UNCLEAR | POSTPONED)
    live.error = s.error
    _wait_again(shard, s, live, shard.due(shard.now_ms + max(s.delay_ms or 0, 0)))
    live.failed_at = shard.place(shard.now_ms)


def _release(shard: Shard, s: Settlement, live: Live) -> None:
    shard.count("released")
    live.flags = live.flags | UNCLEAR if s.unclear else live.flags & ~UNCLEAR
    live.flags = live.flags | POSTPONED if s.postpone else live.flags & ~(POSTPONED if s.began else 0)
    if s.priority is not None:
        live.content = replace(live.content, priority=s.priority)
    _wait_again(shard, s, live, live.due if s.delay_ms is None else shard.due(shard.now_ms + s.delay_ms))


def _bury(shard: Shard, s: Settlement, live: Live) -> None:
    shard.count("buried")
    live.failures = min(live.failures + (s.outcome != "undecodable"), _MOST)
    live.crashes = min(live.crashes + (s.outcome == "poison"), _MOST)
    items, content = in_order(live.running.values()), live.content
    oldest = s.oldest and bool(items)
    if oldest:
        items = items[:1]
        content = replace(content, key=items[0].payload.key)
        del live.running[items[0].payload.data]
    shard.dig(
        s.job.id,
        Grave(
            content,
            live.due.ms,
            shard.place(shard.now_ms),
            live.failures,
            live.reserves,
            live.crashes,
            s.outcome,
            s.reason,
            s.error_class,
            s.error,
            items,
        ),
    )
    if oldest and (live.running or (live.left and live.waiting)):
        _unite(s, live)
        _put_rest(shard, s.job.id, live)
    elif oldest:
        _end(shard, s.job.id, live)
    else:
        _finish_run(shard, s.job.id, live)


def _wait_again(shard: Shard, s: Settlement, live: Live, due: Due) -> None:
    """Let the same content wait again, merged with the content gated behind it, at the earlier due time of both."""
    _unite(s, live)
    if live.gate:
        live.content = replace(live.content, priority=live.gate.content.priority)
        if not s.inherit and live.gate.due.place < due.place:
            due = live.gate.due
    live.postponed = _postponed(shard, s, live, due) if live.flags & POSTPONED else None
    live.due, live.lease, live.gate, live.left = due, None, None, False
    live.flags &= ~(STARTED | UNRENEWED)
    live.quarantined = s.quarantine
    shard.wait(s.job.id, live)


def _postponed(shard: Shard, s: Settlement, live: Live, due: Due) -> Postponed:
    """Return the record of an attempt that could not start; it counts from the first of consecutive ones."""
    before = live.postponed
    if before is not None and (before.reason == s.reason or not s.postpone):
        return Postponed(before.reason, before.since_ms, live.due, due)
    return Postponed(s.reason, shard.now_ms, live.due, due)


def _unite(s: Settlement, live: Live) -> None:
    """Merge payloads that come back with equal ones that arrived meanwhile."""
    came, live.waiting, live.running = live.waiting, live.running, {}
    for item in came.values():
        add(live.waiting, item, s.score_policy)


def touch(shard: Shard, job: Job, *, started: bool, ttr_ms: int | None) -> str:
    """Extend a lease; return held, stopping (held, but cancelled) or lost."""
    live = shard.lives.get(job.id)
    if live is None or live.lease is None or live.lease.token != job.token:
        return "lost"
    live.lease.deadline_ms = shard.now_ms + (shard.lease_ms if ttr_ms is None else ttr_ms)
    live.flags |= STARTED if started else 0
    return "stopping" if live.flags & STOPPING else "held"
