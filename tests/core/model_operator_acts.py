"""Acts of callers and operators: on the job of an id, and on all jobs of a place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from django_delayq.core import IdTaken

from . import bulk_stage as bulk
from . import model_operators as operators
from .model import ModelShard
from .model_draws import START_US, act, delays, ids
from .model_machine import RecordingMachine

tasks = st.sampled_from(["", "", "", "work", "sync"])
#: function that is called with the task that the job must have
Asked = Callable[[], str]


class OperatorActs(RecordingMachine):
    """Acts of callers and operators."""

    # -- one id ------------------------------------------------------------------------------------------------------

    @act(lambda self: self.lives(), ident=ids, task=tasks, gated=st.booleans())
    def cancel(self, ident: str, task: str, gated: bool) -> None:
        if gated:
            ident = next((name for name, live in self.lives().items() if live.gate), ident)
        expected = operators.ask(self.shard(ident), ident, operators.cancel, task)
        assert outcome_of(lambda: self.real.cancel(ident, task=task)) == expected

    @act(lambda self: self.lives(), ident=ids, task=tasks, due=st.none() | st.sampled_from([0, 30_000]), delay=delays)
    def reschedule(self, ident: str, task: str, due: int | None, delay: int) -> None:
        due_ms, delay_ms = (None, delay) if due is None else (START_US // 1000 + due, None)
        move = operators.Move(delay if due_ms is None else due_ms, relative=due_ms is None)
        expected = operators.ask(self.shard(ident), ident, move, task)
        asked = outcome_of(lambda: self.real.reschedule(ident, task=task, due_ms=due_ms, delay_ms=delay_ms))
        assert asked == expected

    @act(lambda self: self.lives(), ident=ids, task=tasks)
    def run_now(self, ident: str, task: str) -> None:
        expected = operators.ask(self.shard(ident), ident, operators.Move(0, never_later=True), task)
        assert outcome_of(lambda: self.real.run_now(ident, task=task)) == expected

    @act(
        lambda self: self.graves(),
        grave=st.integers(0, 3),
        named=st.booleans(),
        delay=delays,
        replacing=st.booleans(),
        onto_live=st.booleans(),
    )
    def kick(self, grave: int, named: bool, delay: int, replacing: bool, onto_live: bool) -> None:
        ident, key = self.grave(grave, named, onto_live)
        (expected,) = operators.apply(self.shard(ident), [(ident, key)], operators.Kick(delay, replacing))
        assert (self.real.kick(ident, key=key, delay_ms=delay, replace=replacing) or "gone") == expected

    @act(lambda self: self.graves(), grave=st.integers(0, 3), named=st.booleans(), missing=st.booleans())
    def discard(self, grave: int, named: bool, missing: bool) -> None:
        ident, key = self.grave(grave, named)
        key = b"no such grave..." if missing else key
        expected = operators.apply(self.shard(ident), [(ident, key)], operators.discard)
        assert ["discarded" if self.real.discard(ident, key=key) else "gone"] == expected

    # -- all jobs of a place -----------------------------------------------------------------------------------------

    def on_all(
        self, select: Callable[[ModelShard], list[operators.Name]], verb: operators.Verb, real: Mapping[str, int]
    ) -> None:
        outcomes = []
        for shard in self.see():
            if names := select(shard):
                shard.see(self.us)
                outcomes += operators.apply(shard, names, verb)
        assert real == operators.counted(outcomes)

    @act(lambda self: len(self.lives()) > 1)
    def cancel_all(self) -> None:
        self.on_all(operators.all_waiting, operators.cancel_if_it_waits, bulk.cancel_all(self.real))

    @act(lambda self: self.lives())
    def run_all_now(self) -> None:
        """Make all jobs due at the end of the next ms, behind those that fall due in it by themselves."""
        ms = max(self.us, *(shard.clock_us for shard in self.model)) // 1000 + 1
        self.us = ms * 1000 + 990
        self.set_clock()
        moved, now_ms = 0, min(shard.now_ms for shard in self.see())
        for shard in self.model:
            if any(due[0] > now_ms for _, due, _ in shard.waiting()):  # only these are read
                shard.see(self.us)
                moved += operators.run_all_now(shard)
        assert bulk.run_all_now(self.real) == ({"moved": moved} if moved else {})

    @act(lambda self: self.failed(), killed=st.booleans())
    def end_all_failed(self, killed: bool) -> None:
        done, verb, real = (
            ("killed", operators.kill_failed, bulk.kill_failed)
            if killed
            else ("deleted", operators.delete_failed, bulk.delete_failed)
        )

        def end_if_it_waits(shard: ModelShard, ident: str, key: bytes) -> str:
            return "" if verb(shard, ident, key) == "running" else done

        self.on_all(operators.all_failed, end_if_it_waits, real(self.real))

    @act(
        lambda self: self.graves(),
        delay=delays,
        replacing=st.booleans(),
        per_second=st.sampled_from([None, None, 1, 0.5]),
    )
    def kick_all(self, delay: int, replacing: bool, per_second: float | None) -> None:
        verb = operators.Kick(delay, replacing)
        if per_second:
            now_ms = max(shard.now_ms for shard in self.see())
            verb = operators.Kick(now_ms + delay, replacing, step=1000 / per_second)
        real = bulk.kick_all(self.real, delay_ms=delay, per_second=per_second, replace=replacing)
        self.on_all(lambda shard: operators.all_buried(shard, math.inf), verb, real)

    @act(lambda self: self.graves(), age=st.sampled_from([None, 0, 1000, 20_000]))
    def discard_all(self, age: int | None) -> None:
        before_ms = math.inf if age is None else self.us // 1000 - age
        real = bulk.discard_all(self.real, before_ms=None if age is None else before_ms)
        self.on_all(lambda shard: operators.all_buried(shard, before_ms), operators.discard, real)


def outcome_of(asked: Callable[[], str | bool]) -> str:
    """Return the outcome of a verb on one id as the model names it."""
    try:
        outcome = asked()
    except IdTaken:
        return "taken"
    return outcome if isinstance(outcome, str) else "moved" if outcome else ""
