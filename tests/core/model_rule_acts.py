"""Acts of operators on the rules of a queue: pauses and its limit."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from django_delayq.core import NewJob

from .model_draws import act, anytime, new_jobs
from .model_machine import RecordingMachine
from .model_rules import Pauses
from .model_waiting import REFUSALS

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
