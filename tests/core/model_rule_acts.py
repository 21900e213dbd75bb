"""Acts of operators on the rules of a queue: pauses."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from .model_draws import act
from .model_machine import RecordingMachine
from .model_rules import Pauses

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
