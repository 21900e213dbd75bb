"""Operations of callers and operators on a shard: cancel, reschedule, kick, discard, and the same for many jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from ..core.job import STOPPING
from .payloads import TAKE_MOST, add
from .shard import Shard, in_order
from .state import PER_MS, Content, Due, Gate, Grave, Live

#: keys of the intended generation and of its payload; empty = any live job
Keys: TypeAlias = frozenset[bytes]


def locate(shard: Shard, ident: str, keys: Keys) -> str:
    """Return the location of a job of an id: live (it waits or runs), gated (behind another attempt), or ""."""
    live = shard.lives.get(ident)
    if live is None:
        return ""
    if not keys or live.content.key in keys or any(item.payload.key in keys for item in live.running.values()):
        return "live"
    if live.gate is not None and live.gate.content.key in keys:
        return "gated"
    if any(item.payload.key in keys for item in live.waiting.values()):
        return "gated" if live.lease else "live"
    return ""


def cancel(shard: Shard, ident: str, task: str, keys: Keys = frozenset()) -> str:
    """Cancel a job; return cancelled, stopping, taken (a live job of another task) or "" (no such live job)."""
    live, place = shard.lives.get(ident), locate(shard, ident, keys)
    if live is None or not place:
        return ""
    if task and task != live.content.task:
        return "taken"
    with shard.marking([ident]):
        if live.lease and (place == "gated" or not keys):
            live.gate, live.waiting, live.left = None, {}, False
        if live.lease and place == "live":
            live.flags |= STOPPING
            return "stopping"
        if not live.lease:
            shard.drop(ident)
    shard.count("cancelled")
    return "cancelled"


def reschedule(shard: Shard, ident: str, task: str, ms: int, *, to_now: bool = False, keys: Keys = frozenset()) -> str:
    """Reschedule a job; return moved, taken, or "" (no such waiting job). ``to_now``: overdue jobs keep their place."""
    live, place = shard.lives.get(ident), locate(shard, ident, keys)
    if live is None or not place:
        return ""
    if task and task != live.content.task:
        return "taken"
    if keys and live.lease and place == "live":
        return ""
    waits = live.gate if live.lease else live
    if waits is None:
        return ""
    if not (to_now and waits.due.place <= shard.now_ms * PER_MS):
        waits.due = shard.due(ms)
    if not live.lease:
        shard.wait(ident, live)
    return "moved"


def kick(shard: Shard, ident: str, key: bytes, ms: int, *, replacing: bool) -> str:
    """Move a morgue record back; return kicked, live (blocked by a live job), or "" (no such record)."""
    name = shard.find_grave(ident, key)
    if name is None:
        return ""
    grave, live = shard.graves[name], shard.lives.get(ident)
    content = grave.content
    if live and not _may_join(live.content, content, replacing):
        return "live"
    with shard.marking([ident]):
        _bring_back(shard, ident, grave, live, shard.due(ms))
        del shard.graves[name]
    shard.count("kicked")
    return "kicked"


def _may_join(live: Content, content: Content, replacing: bool) -> bool:
    return (live.task, live.merged) == (content.task, content.merged) and (content.merged or replacing)


def _bring_back(shard: Shard, ident: str, grave: Grave, live: Live | None, due: Due) -> None:
    content = grave.content
    if live is None:
        live = Live(content, due)
    elif live.lease:
        if live.gate and content.merged:
            due = min(due, live.gate.due, key=lambda one: one.place)
            content = live.gate.content
        live.gate = Gate(due, content)
    else:
        live.due = min(due, live.due, key=lambda one: one.place) if content.merged else due
        live.content = live.content if content.merged else content
        live.forget_failures()
    for item in grave.items:
        add(live.waiting, item)
    if not live.lease:
        shard.wait(ident, live)


def discard(shard: Shard, ident: str, key: bytes) -> bool:
    """Delete a job from the morgue; return False if it is not there."""
    name = shard.find_grave(ident, key)
    if name is None:
        return False
    with shard.marking([ident]):
        del shard.graves[name]
    shard.count("discarded")
    return True


# -- many at once ----------------------------------------------------------------------------------------------------


def remove(shard: Shard, ident: str, verb: str, moment_us: float = 0) -> bool:
    """Remove a waiting job: ``cancelled`` any; ``deleted`` and ``killed`` (into the morgue) if it failed until then."""
    live = shard.lives.get(ident)
    if live is None or live.lease:
        return False
    if verb != "cancelled" and not (live.failures and live.failed_at / 1000 <= moment_us):
        return False
    with shard.marking([ident]):
        if verb == "killed":
            _kill(shard, ident, live)
        shard.drop(ident)
    shard.count(verb)
    return True


def _kill(shard: Shard, ident: str, live: Live) -> None:
    """Bury a job; its payloads are split into records of at most the number that one attempt would have taken."""
    items, content = in_order(live.waiting.values()), live.content
    for start in range(0, max(len(items), 1), TAKE_MOST):
        piece = items[start : start + TAKE_MOST]
        if start:
            content = replace(content, key=piece[0].payload.key)
        shard.dig(
            ident,
            Grave(
                content,
                live.due.ms,
                shard.place(shard.now_ms),
                live.failures,
                live.reserves,
                live.crashes,
                "killed",
                "killed",
                "",
                live.error,
                piece,
            ),
        )


def run_all_now(shard: Shard, class_: int) -> int:
    """Make the waiting jobs of a class due now, in their order, after overdue ones; return the number of moved jobs."""
    later = [(place, ident) for place, ident in shard.waiting(class_) if place > shard.now_ms * PER_MS]
    for _, ident in later:
        live = shard.lives[ident]
        live.due = shard.due(shard.now_ms)
        shard.wait(ident, live)
    shard.count("run_now", len(later))
    return len(later)
