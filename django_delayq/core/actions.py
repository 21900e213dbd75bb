"""Actions on lists of jobs. An action is one script with its arguments and the meanings of the letters in its reply.

A verb for a single id sends a list of one, to the shards in which the id may live. Operations on many jobs
(:mod:`.bulk`) send lists of one shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Final

from .errors import InvalidJob
from .job import Generation
from .records.frames import CHUNK, encode_id, pack_deadline, pack_generation, pack_named
from .registry import ShardSet
from .resharding import visit
from .times import MAX_DUE_MS

#: an id, and the key of a generation; b"" = the live one, in the morgue the one that was buried last
Name = tuple[bytes, bytes]

#: jobs that one script call removes or moves through the morgue: a few ms, for which all other calls have to wait
AT_A_TIME: Final = 100
#: outcome of a job that is not in this closed shard: another shard has to be asked
ELSEWHERE: Final = "elsewhere"
#: outcome that is not counted
UNCOUNTED: Final = ""

_CANCELLED: Final = {
    "c": "cancelled",
    "g": "cancelled",
    "s": "stopping",
    "t": "taken",
    "x": "late",
    "n": "",
    "v": ELSEWHERE,
}
_CANCELLED_SELECTED: Final = {
    "c": "cancelled",
    "g": "ungated",
    "s": "stopping",
    "r": "running",
    "n": "gone",
    "v": "gone",
}
_CANCELLED_WAITING: Final = {"c": "cancelled", "n": UNCOUNTED, "v": UNCOUNTED}
_MOVED: Final = {"m": "moved", "k": "moved", "t": "taken", "r": "", "n": "", "v": ELSEWHERE}
_MOVED_SELECTED: Final = {"m": "moved", "r": "running", "n": "gone", "v": "gone"}
_MOVED_WAITING: Final = {"m": "moved", "k": UNCOUNTED, "r": UNCOUNTED, "n": UNCOUNTED, "v": UNCOUNTED}
_RETRIED: Final = {"m": "retried", "k": "retried", "r": "running", "n": "gone", "v": "gone"}


class Action:
    """Script that changes the jobs of a list.

    Args:
        script: its name.
        outcomes: the outcome of a job for each letter of the reply.
        arguments: those of the script behind the list.
        at_once: most jobs of a call.
    """

    __slots__ = ("arguments", "at_once", "outcomes", "script")

    def __init__(self, script: str, outcomes: Mapping[str, str], *arguments: object, at_once: int = CHUNK) -> None:
        self.script = script
        self.outcomes = outcomes
        self.arguments = arguments
        self.at_once = at_once

    def call(self, queue: ShardSet, number: int, entries: bytes, request: bytes | None = None) -> list[str]:
        """Apply the action to packed entries in a shard; return the outcomes of those that the call reached."""
        letters: bytes = queue.call(self.script, number, entries, *self.arguments, request=request)
        return [self.outcomes[letter] for letter in letters.decode()]

    def in_shard(self, queue: ShardSet, number: int, names: Sequence[Name]) -> list[str]:
        """Apply the action to jobs in a shard; return the outcome of each."""
        outcomes: list[str] = []
        while rest := names[len(outcomes) : len(outcomes) + self.at_once]:
            outcomes += self.call(queue, number, b"".join(starmap(pack_named, rest)))
        return outcomes

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Apply the action to one job wherever it is; return the outcome, "" if the queue was deleted.

        Args:
            generation: which job of the id; None = any.
            request: the id of the call, if it repeats an earlier one (:mod:`.job`).

        Raises:
            InvalidJob: an invalid id.
        """
        entry = pack_named(encode_id(ident), *pack_generation(generation))

        def ask(number: int) -> str | None:
            (outcome,) = self.call(queue, number, entry, request)
            return None if outcome == ELSEWHERE else outcome

        return visit(queue, ident, ask) or ""


# -- look-ups --------------------------------------------------------------------------------------------------------

#: finds jobs: live, gated or ""
LOCATE: Final = Action("locate", {"l": "live", "g": "gated", "n": "", "v": ELSEWHERE})


def live_ids(queue: ShardSet, number: int, idents: Sequence[bytes]) -> set[bytes]:
    """Return the ids that are live in a shard."""
    places = LOCATE.in_shard(queue, number, [(ident, b"") for ident in idents])
    return {ident for ident, place in zip(idents, places, strict=True) if place == "live"}


# -- by id or handle -------------------------------------------------------------------------------------------------


def cancel(task: str = "", not_after_ms: float | None = None) -> Action:
    """Return the action of :meth:`Queue.cancel`: cancelled, stopping, taken, late or ""."""
    return Action("cancel", _CANCELLED, task.encode(), pack_deadline(not_after_ms), b"")


def reschedule(task: str = "", *, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action of :meth:`Queue.reschedule`: moved, taken or "".

    Raises:
        InvalidJob: neither or both are given.
    """
    return Action("reschedule", _MOVED, task.encode(), *_due(due_ms, delay_ms), b"")


def run_now(task: str = "") -> Action:
    """Return the action of :meth:`Queue.run_now`: moved, taken or ""."""
    return Action("reschedule", _MOVED, task.encode(), 0, b"now", b"")


# -- selected jobs, which are changed only if they are still the same generation ------------------------------------


def cancel_selected() -> Action:
    """Return the action that cancels selected jobs, with what is gated behind running ones.

    Outcomes: cancelled, stopping (it is running), ungated (it waited for the end of an attempt, which continues),
    running (it waits for the end of an attempt which has left payloads of its own behind: cancel that one), or gone.
    """
    return Action("cancel", _CANCELLED_SELECTED, b"", b"", b"selected", at_once=AT_A_TIME)


def reschedule_selected(*, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of selected jobs that wait or are gated.

    Outcomes: moved, running (reserved now), or gone.

    Raises:
        InvalidJob: neither or both are given, or the value is out of range.
    """
    ms, relative = _due(due_ms, delay_ms)
    if not 0 <= ms <= MAX_DUE_MS:
        raise InvalidJob(f"a delay or a due time is a number of ms from 0 to {MAX_DUE_MS}, not {ms}")
    return Action("reschedule", _MOVED_SELECTED, b"", ms, relative, b"")


def retry_failed(delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of waiting jobs that failed. Their failures are kept.

    Outcomes: retried, running (reserved now), or gone: it has not failed, or is another generation.

    Args:
        delay_ms: delay from now; None = due now, where an overdue job keeps its place.
    """
    ms, mode = (0, b"now") if delay_ms is None else (delay_ms, b"1")
    return Action("reschedule", _RETRIED, b"", ms, mode, b"failed")


def kill_failed() -> Action:
    """Return the action that moves waiting jobs that failed to the morgue: buried, running or gone."""
    return _end_failed("killed", {"d": "buried", "r": "running", "n": "gone"})


def delete_failed() -> Action:
    """Return the action that deletes waiting jobs that failed: discarded, running or gone."""
    return _end_failed("deleted", {"d": "discarded", "r": "running", "n": "gone"})


# -- all jobs of a queue ---------------------------------------------------------------------------------------------


def cancel_waiting() -> Action:
    """Return the action that cancels jobs that wait and leaves the others alone: cancelled."""
    return Action("cancel", _CANCELLED_WAITING, b"", b"", b"waiting", at_once=AT_A_TIME)


def run_waiting_now() -> Action:
    """Return the action that makes jobs that wait due now and leaves the others alone: moved."""
    return Action("reschedule", _MOVED_WAITING, b"", 0, b"now", b"waiting")


def end_failed_before(verb: str, moment: float) -> Action:
    """Return the action that ends waiting jobs that failed up to a moment (µs); its outcome is the verb.

    Args:
        verb: killed (moved to the morgue), or deleted.
    """
    return _end_failed(verb, {"d": verb, "r": UNCOUNTED, "n": UNCOUNTED}, moment)


def _end_failed(verb: str, outcomes: Mapping[str, str], moment: float = float("inf")) -> Action:
    return Action("end_failed", outcomes, verb, f"{moment:.0f}", at_once=AT_A_TIME)


def _due(due_ms: int | None, delay_ms: int | None) -> tuple[int, bytes]:
    if due_ms is None and delay_ms is not None:
        return delay_ms, b"1"
    if delay_ms is None and due_ms is not None:
        return due_ms, b"0"
    raise InvalidJob("give either a delay or a due time")
