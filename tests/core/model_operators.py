"""Model of the verbs of callers and operators: on one job, on selected ones, and on all of a place.

A *name* is an id and the key of a generation; an empty key names the live job of the id, or its youngest morgue record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .model import ModelShard
from .model_values import STOPPING, Live, add, one_more

Name = tuple[str, bytes]
#: verb on one job; returns the outcome
Verb = Callable[[ModelShard, str, bytes], str]


def apply(shard: ModelShard, names: Iterable[Name], verb: Verb) -> list[str]:
    """Apply a verb to jobs in this order; return the outcome of each."""
    with shard.marking():
        return [verb(shard, *name) for name in names]


def ask(shard: ModelShard, ident: str, verb: Verb, task: str = "") -> str:
    """Apply a verb to the job of an id, which must be of that task if one is named; return the outcome, "" = none."""
    live = shard.lives.get(ident)
    if live and task not in ("", live.content.task):
        return "taken"
    (outcome,) = apply(shard, [(ident, b"")], verb)
    return "" if outcome in ("gone", "running") else outcome


# -- selections ------------------------------------------------------------------------------------------------------


def all_waiting(shard: ModelShard) -> list[Name]:
    return [(ident, b"") for _, _, ident in shard.all_waiting()]


def all_failed(shard: ModelShard) -> list[Name]:
    """Return the jobs that have failed, but not later than now: the clock may have been set back."""
    return [(ident, b"") for ident, live in shard.lives.items() if live.failures and live.failed_at_ms <= shard.now_ms]


def all_buried(shard: ModelShard, before_ms: float) -> list[Name]:
    """Return the records of the morgue in the order of their burials, but none that was made later than now."""
    buried = sorted((grave.buried, name) for name, grave in shard.graves.items())
    return [name for due, name in buried if due[0] <= shard.now_ms and due[0] < before_ms]


def place_of(live: Live | None, key: bytes) -> str:
    """Return which job of an id is meant: the live one, the one that is gated behind it, or none."""
    if live is None:
        return ""
    if key in (b"", live.content.key):
        return "live"
    return "gated" if live.gate and live.gate[1].key == key else ""


# -- verbs on waiting jobs -------------------------------------------------------------------------------------------


def cancel(shard: ModelShard, ident: str, key: bytes) -> str:
    """Delete a waiting job; mark a running one, and drop what is gated behind it, or only drop that if it is meant."""
    live = shard.lives.get(ident)
    place = place_of(live, key)
    if live is None or not place:
        return "gone"
    if not live.lease:
        del shard.lives[ident]
        shard.count("cancelled")
        return "cancelled"
    live.gate = None
    live.waiting.clear()
    if place == "gated":
        return "ungated"
    live.flags |= STOPPING
    return "stopping"


def cancel_if_it_waits(shard: ModelShard, ident: str, key: bytes) -> str:
    return "" if shard.lives[ident].lease else cancel(shard, ident, key)


@dataclass(frozen=True)
class Move:
    """Verb that changes the due time of a job, or of what is gated behind a running one.

    Args:
        ms: Unix ms, or from now if ``relative``.
        never_later: an overdue job keeps its place.
        only_failed: jobs that have not failed, and what is gated, are left alone.
        done: outcome.
    """

    ms: int
    relative: bool = True
    never_later: bool = False
    only_failed: bool = False
    done: str = "moved"

    def __call__(self, shard: ModelShard, ident: str, key: bytes) -> str:
        live = shard.lives.get(ident)
        place = place_of(live, key)
        if live is None or not place or (self.only_failed and not (live.failures and place == "live")):
            return "gone"
        if live.lease and (not live.gate or (key and place == "live")):
            return "running"
        if not live.lease and not (self.never_later and live.due <= (shard.now_ms, 0)):
            live.due = shard.at(self.due_ms(shard))
        elif live.gate and not (self.never_later and live.gate[0] <= (shard.now_ms, 0)):
            live.gate = shard.at(self.due_ms(shard)), live.gate[1]
        return self.done

    def due_ms(self, shard: ModelShard) -> int:
        return shard.now_ms + self.ms if self.relative else self.ms


def run_all_now(shard: ModelShard) -> int:
    """Make waiting jobs due now, one µs after the other; overdue jobs keep their places."""
    moved, us = 0, shard.now_us
    for due, ident in sorted((due, ident.encode()) for _, due, ident in shard.waiting() if due[0] > shard.now_ms):
        if due > (us // 1000, us % 1000):
            us += 1
            shard.lives[ident.decode()].due = us // 1000, us % 1000
            moved += 1
    shard.count("run_now", moved)
    return moved


# -- verbs on failed jobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByAnOperator:
    """Cause of a record of a job that an operator has buried."""

    error: bytes
    outcome: str = "buried"
    reason: str = "buried by an operator"
    error_class: str = ""


def kill_failed(shard: ModelShard, ident: str, key: bytes) -> str:
    """Bury a failed job that waits, with all of its payloads."""
    return _end_failed(shard, ident, key, "killed", "buried")


def delete_failed(shard: ModelShard, ident: str, key: bytes) -> str:
    return _end_failed(shard, ident, key, "deleted", "discarded")


def _end_failed(shard: ModelShard, ident: str, key: bytes, counter: str, done: str) -> str:
    live = shard.lives.get(ident)
    if live is None or not live.failures or place_of(live, key) != "live":
        return "gone"
    if live.lease:
        return "running"
    if done == "buried":
        shard.put_in_morgue(ident, live, live.waiting, ByAnOperator(live.error))
    del shard.lives[ident]
    shard.count(counter)
    return done


# -- verbs on buried jobs --------------------------------------------------------------------------------------------


@dataclass
class Kick:
    """Verb that brings records back: all due at one moment, or one after the other.

    Args:
        ms: delay; or of the first one with a ``step``: when it is due, Unix ms.
        replacing: a live plain job of the id is replaced.
        step: ms between one due time and the next.
    """

    ms: float
    replacing: bool
    step: float = 0

    def __call__(self, shard: ModelShard, ident: str, key: bytes) -> str:
        name = grave_of(shard, ident, key)
        if name is None:
            return "gone"
        outcome = bring_back(shard, name, self.ms + (0 if self.step else shard.now_ms), self.replacing)
        self.ms += self.step * (outcome == "kicked")
        return outcome


def grave_of(shard: ModelShard, ident: str, key: bytes) -> Name | None:
    mine = {name: grave.buried for name, grave in shard.graves.items() if name[0] == ident and key in (b"", name[1])}
    return max(mine, key=mine.__getitem__, default=None)


def bring_back(shard: ModelShard, name: Name, due_ms: float, replacing: bool) -> str:
    """Make a buried job wait again, without its failures; or gate it behind the running one of its id."""
    grave, live = shard.graves[name], shard.lives.get(name[0])
    content = grave.content
    if live and (
        (live.content.task, live.content.merged) != (content.task, content.merged) or not (content.merged or replacing)
    ):
        return "live"
    due = shard.at(due_ms)
    if live is None:
        live = shard.lives[name[0]] = Live(content, due, counts=one_more(grave.counts, "kicks"))
    elif live.lease:
        if live.gate and content.merged:
            due, content = min(due, live.gate[0]), live.gate[1]
        live.gate = due, content
    else:
        live.due = min(due, live.due) if content.merged else due
        live.content = live.content if content.merged else content
        shard.forget_failures(live)
        live.counts = one_more(grave.counts, "kicks")
    for item in grave.items:
        add(live.waiting, item)
    del shard.graves[name]
    shard.count("kicked")
    return "kicked"


def revive(shard: ModelShard, ident: str) -> bool:
    """Bring the youngest record of an id back for a reserve, if nothing lives under the id; return True if it did."""
    name = grave_of(shard, ident, b"")
    if name is None or ident in shard.lives or shard.pauses.holds_back(shard.now_ms):
        return False
    return apply(shard, [name], Kick(0, replacing=False)) == ["kicked"]


def discard(shard: ModelShard, ident: str, key: bytes) -> str:
    name = grave_of(shard, ident, key)
    if name is None:
        return "gone"
    del shard.graves[name]
    shard.count("discarded")
    return "discarded"


def counted(outcomes: Iterable[str]) -> dict[str, int]:
    """Return the numbers of jobs by outcome, without those that were left alone."""
    return {outcome: n for outcome, n in Counter(outcomes).items() if outcome}
