"""Scheduling into a shard, with every policy of a schedule call (lua/schedule.lua)."""

from __future__ import annotations

from dataclasses import replace

from ..core.job import NewJob
from ..core.records.layout import PAUSED_IN
from . import payloads
from .shard import Shard
from .state import PER_MS, Content, Due, Gate, Item, Live, ms_of


def schedule(shard: Shard, new: NewJob, *, tick_ms: int | None = None, not_after_ms: float | None = None) -> str:
    """Schedule one job; return the outcome as :meth:`Queue.schedule_many` names it."""
    if tick_ms is not None and shard.ticks.get(new.id, -1) >= tick_ms:
        return "fired"
    key = new.key if new.payload is None else new.payload.key
    with shard.marking([new.id]):
        outcome = _unwelcome(shard, new, key, not_after_ms) or _schedule(shard, new)
    if outcome in ("merged", "ignored", "gated"):
        new.joined = _key_of_met(shard.lives[new.id], new)
    if new.durable and outcome in ("created", "merged", "replaced", "gated"):
        with shard.marking([new.id], put=[key]):
            pass  # an equal payload may have won; then this one is already finished
    if outcome in ("full", "paused"):
        shard.count("refused")
    elif outcome == "created":
        shard.count("created")
    elif outcome not in ("known", "late"):
        shard.count("changed")
    if tick_ms is not None and outcome not in ("full", "paused"):
        shard.ticks[new.id] = tick_ms
    return outcome


def _key_of_met(live: Live, new: NewJob) -> bytes:
    gated = live.gate if new.on_conflict != "ignore" else None
    return (gated or live).content.key


def _unwelcome(shard: Shard, new: NewJob, key: bytes, not_after_ms: float | None) -> str:
    if not_after_ms is not None and shard.now_ms > not_after_ms:
        return "late"
    return "known" if new.durable and shard.knows(new.id, key) else ""


def _schedule(shard: Shard, new: NewJob) -> str:
    rules = shard.rules
    live = shard.lives.get(new.id)
    if rules.flags & PAUSED_IN:
        return "paused"
    if live is None:
        if rules.max_length and len(shard.lives) >= rules.max_length:
            return "full"
    elif (live.content.task, live.content.merged) != (new.task, new.payload is not None):
        return "taken"
    elif new.on_conflict in ("ignore", "error"):
        return "ignored" if new.on_conflict == "ignore" else "exists"
    due = shard.due(shard.now_ms + (new.delay_ms or 0) if new.due_ms is None else new.due_ms)
    waiting: payloads.Items | str = {}
    if new.payload is not None:
        item = _arrived(shard, new)
        if live is None:  # the first payload of an id is never refused
            waiting = {new.payload.data: item}
        else:
            waiting = payloads.admit(live.waiting if new.on_conflict == "merge" else {}, item, new)
    if isinstance(waiting, str):
        return waiting
    content = Content.of(new)
    if live is None:
        live = Live(content, due, waiting=waiting)
        shard.wait(new.id, live)
        return "created"
    live.waiting = waiting
    return _gate(live, new, content, due) if live.lease else _change_waiting(shard, live, new, content, due)


def _arrived(shard: Shard, new: NewJob) -> Item:
    payload = new.payload
    assert payload is not None  # noqa: S101 (the caller asked)
    if not payload.score:
        payload = replace(payload, score=f"{shard.now_us / 1_000_000:.6f}")
    return Item(payload, (float(payload.score), shard.arrival()))


def _gate(live: Live, new: NewJob, content: Content, due: Due) -> str:
    if live.gate:
        due = _choose(new.due_policy, live.gate.due, due, None)
        if new.on_conflict == "merge":
            content = replace(live.gate.content, priority=content.priority)
    live.gate = Gate(due, content)
    return "gated"


def _change_waiting(shard: Shard, live: Live, new: NewJob, content: Content, due: Due) -> str:
    live.due = _choose(new.due_policy, live.due, due, live)
    if new.on_conflict == "merge":
        live.content = replace(live.content, priority=content.priority)
    else:
        live.content = content
        if new.reset_retries:
            live.forget_failures()
    shard.wait(new.id, live)
    return "merged" if new.on_conflict == "merge" else "replaced"


def _choose(policy: str, current: Due, due: Due, live: Live | None) -> Due:
    earlier, later = sorted((current, due), key=lambda one: one.place)
    if policy == "keep" and live and live.failures:
        # A correction need not wait for the back-off of the failed job that it corrects, but must not cause rapid
        # retries.
        soonest = (ms_of(live.failed_at) + min(live.failures, 60) * 1000) * PER_MS
        place = max(earlier.place, min(current.place, soonest))
        return current if place == current.place else Due(place, due.asked_ms)
    return {"keep": current, "inherit": current, "replace": due, "earliest": earlier, "latest": later}[policy]
