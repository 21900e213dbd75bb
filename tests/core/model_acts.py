"""Acts of callers and operators: on one job, on selected jobs, on all jobs of a place, on the rules of a queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from django_delayq.core import IdTaken, NewJob, actions

from . import bulk_stage as bulk, model_operators as operators
from .model import ModelShard
from .model_draws import START_US, act, anytime, delays, ids, new_jobs
from .model_machine import RecordingMachine
from .model_rules import Pauses
from .model_waiting import REFUSALS

tasks = st.sampled_from(["", "", "", "work", "sync"])


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


# -- acts of operators on jobs that they have selected by their ids and the keys of their generations ------------------


#: places in the list of what may be selected
choices = st.lists(st.integers(0, 9), min_size=1, max_size=3)


class SelectedActs(RecordingMachine):
    """Acts of operators on selected jobs."""

    def selectable(self) -> list[operators.Name]:
        """Return names of jobs: live ones by key or by id alone, gated ones, and others that are gone."""
        names = []
        for ident, live in self.lives().items():
            names += [(ident, live.content.key), (ident, live.gate[1].key if live.gate else b""), (ident, b"g" * 16)]
        return names

    def apply(self, choices: list[int], verb: operators.Verb, action: actions.Action) -> None:
        names = self.selectable()
        names = [names[choice % len(names)] for choice in choices]
        for number in {self.real.shard_of(ident) for ident, _ in names}:
            here = [name for name in names if self.real.shard_of(name[0]) == number]
            shard = self.model[number]
            shard.see(self.us)
            expected = operators.apply(shard, here, verb)
            assert action.in_shard(self.real, number, [(ident.encode(), key) for ident, key in here]) == expected

    @act(lambda self: self.lives(), choices=choices)
    def cancel_selected(self, choices: list[int]) -> None:
        self.apply(choices, operators.cancel, actions.cancel_selected())

    @act(lambda self: self.lives(), choices=choices, due=st.none() | st.sampled_from([0, 30_000]), delay=delays)
    def move_selected(self, choices: list[int], due: int | None, delay: int) -> None:
        if due is None:
            self.apply(choices, operators.Move(delay), actions.reschedule_selected(delay_ms=delay))
        else:
            due_ms = START_US // 1000 + due
            self.apply(choices, operators.Move(due_ms, relative=False), actions.reschedule_selected(due_ms=due_ms))

    @act(lambda self: self.failed(), choices=choices, delay=st.sampled_from([None, 0, 1000]))
    def retry_selected(self, choices: list[int], delay: int | None) -> None:
        verb = operators.Move(delay or 0, never_later=delay is None, only_failed=True, done="retried")
        self.apply(choices, verb, actions.retry_failed(delay))

    @act(lambda self: self.failed(), choices=choices, killed=st.booleans())
    def end_selected(self, choices: list[int], killed: bool) -> None:
        if killed:
            self.apply(choices, operators.kill_failed, actions.kill_failed())
        else:
            self.apply(choices, operators.delete_failed, actions.delete_failed())


# -- acts of operators on the rules of a queue: pauses and its limit ---------------------------------------------------


directions = st.sampled_from(["out", "in", "both"])


class RuleActs(RecordingMachine):
    """Acts of operators on the rules of a queue."""

    @act(lambda self: not self.is_paused(), direction=directions, seconds=st.sampled_from([None, 1, 5, 20]))
    def pause(self, direction: str, seconds: int | None) -> None:
        end_ms = math.inf if seconds is None else self.us // 1000 + seconds * 1000
        self.broker.pause("q", direction, seconds=seconds)
        self.set_pauses(self.model[0].pauses.begun(direction, end_ms))

    @act(lambda self: self.is_paused(), direction=directions)
    def resume(self, direction: str) -> None:
        self.broker.resume("q", direction)
        self.set_pauses(self.model[0].pauses.ended(direction))

    @act(lambda self: not self.is_paused())
    def pause_producers(self) -> None:
        self.broker.pause_producers()
        self.set_pauses(self.model[0].pauses.of_producers(paused=True))

    @act(lambda self: self.model[0].pauses.producers)
    def resume_producers(self) -> None:
        self.broker.resume_producers()
        self.set_pauses(self.model[0].pauses.of_producers(paused=False))

    def is_paused(self) -> bool:
        return self.model[0].pauses != Pauses()

    @act(lambda self: self.max_length == math.inf, most=st.sampled_from([1, 2, 2, 0]))
    def limit(self, most: int) -> None:
        """Limit the queue to so many ids, perhaps fewer than live in it."""
        self.max_length = most or len(self.lives()) + 1
        self.looked_for_room = True
        self.broker.limit("q", max_length=int(self.max_length))
        self.set_pauses(self.model[0].pauses)

    @act(lambda self: self.max_length < math.inf)
    def end_the_limit(self) -> None:
        self.max_length = math.inf
        self.broker.limit("q", max_length=0)
        self.set_pauses(self.model[0].pauses)

    @act(anytime, news=st.lists(new_jobs(), min_size=1, max_size=4), conflict=st.booleans())
    def schedule_all_or_none(self, news: list[NewJob], conflict: bool) -> None:
        """Send some jobs to one shard, which stores all of them or none."""
        number = self.real.shard_of(news[0].id)
        news = [new for new in news if self.real.shard_of(new.id) == number]
        for new in news:
            new.key, new.payloads, new.max_payloads = b"", news[0].payloads, news[0].max_payloads
            if not conflict:
                new.on_conflict = "merge" if new.payload else "replace"
            self.keyed(new)
        before, shard = len(self.calls), self.with_room(self.shard(news[0].id))
        expected = shard.schedule_together(news)
        assert self.real.schedule_many(news, all_or_none=True) == expected
        if REFUSALS.intersection(expected):  # nothing was changed: not remembered, and perhaps another answer later
            del self.calls[before:]
