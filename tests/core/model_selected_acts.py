"""Acts of operators on jobs that they have selected by their ids and the keys of their generations."""

from __future__ import annotations

from hypothesis import strategies as st

from django_delayq.core import actions

from . import model_operators as operators
from .model_draws import START_US, act, delays
from .model_machine import RecordingMachine

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
