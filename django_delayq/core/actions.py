"""Actions on lists of jobs. An action is one script with its arguments and the meanings of the letters in its reply.

A verb for a single id sends a list of one, to the shards in which the id may live. Operations on many jobs
(:mod:`.bulk`) send lists of one shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, Final

from .errors import InvalidJob
from .job import Generation
from .records.frames import CHUNK, encode_id, pack, pack_generation, pack_named
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

# The outcome for each letter of ``change.lua``: of jobs that a caller names,
_NAMED: Final = {
    "c": "cancelled",
    "g": "cancelled",
    "s": "stopping",
    "m": "moved",
    "k": "moved",
    "t": "taken",
    "x": "late",
    "r": "",
    "n": "",
    "v": ELSEWHERE,
}
# of jobs that were selected, and are changed only if they are still the same,
_SELECTED: Final = _NAMED | {"g": "ungated", "r": "running", "n": "gone", "v": "gone"}
# and of all jobs of a place, where those that are left alone are not counted.
_ALL: Final = {"c": "cancelled", "m": "moved", "k": UNCOUNTED, "r": UNCOUNTED, "n": UNCOUNTED, "v": UNCOUNTED}


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


def _change(outcomes: Mapping[str, str], verb: str, *, at_once: int = AT_A_TIME, **options: Any) -> Action:
    """Return the action of a verb of ``change.lua``. Options that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return Action("change", outcomes, pack({"verb": verb, **given}), at_once=at_once)


def cancel(task: str = "", not_after_ms: float | None = None) -> Action:
    """Return the action of :meth:`Queue.cancel`: cancelled, stopping, taken, late or ""."""
    return _change(_NAMED, "cancel", task=task or None, not_after=not_after_ms)


def reschedule(task: str = "", *, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action of :meth:`Queue.reschedule`: moved, taken or "".

    Raises:
        InvalidJob: neither or both are given.
    """
    return _change(_NAMED, "move", task=task or None, **_due(due_ms, delay_ms))


def run_now(task: str = "") -> Action:
    """Return the action of :meth:`Queue.run_now`: moved, taken or ""."""
    return _change(_NAMED, "move", task=task or None, to_now=True)


# -- selected jobs, which are changed only if they are still the same generation ------------------------------------


def cancel_selected() -> Action:
    """Return the action that cancels selected jobs, with what is gated behind running ones.

    Outcomes: cancelled, stopping (it is running), ungated (it waited for the end of an attempt, which continues),
    running (it waits for the end of an attempt which has left payloads of its own behind: cancel that one), or gone.
    """
    return _change(_SELECTED, "cancel", selected=True)


def reschedule_selected(*, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of selected jobs that wait or are gated.

    Outcomes: moved, running (reserved now), or gone.

    Raises:
        InvalidJob: neither or both are given, or the value is out of range.
    """
    due = _due(due_ms, delay_ms)
    if not 0 <= due["ms"] <= MAX_DUE_MS:
        raise InvalidJob(f"a delay or a due time is a number of ms from 0 to {MAX_DUE_MS}, not {due['ms']}")
    return _change(_SELECTED, "move", at_once=CHUNK, **due)


def retry_failed(delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of waiting jobs that failed. Their failures are kept.

    Outcomes: retried, running (reserved now), or gone: it has not failed, or is another generation.

    Args:
        delay_ms: delay from now; None = due now, where an overdue job keeps its place.
    """
    outcomes = _SELECTED | {"m": "retried", "k": "retried"}
    due = {"to_now": True} if delay_ms is None else _due(None, delay_ms)
    return _change(outcomes, "move", at_once=CHUNK, only="failed", **due)


def kill_failed() -> Action:
    """Return the action that moves waiting jobs that failed to the morgue: buried, running or gone."""
    return _change(_SELECTED | {"c": "buried"}, "kill", selected=True, only="failed")


def delete_failed() -> Action:
    """Return the action that deletes waiting jobs that failed: discarded, running or gone."""
    return _change(_SELECTED | {"c": "discarded"}, "delete", selected=True, only="failed")


# -- all jobs of a queue ---------------------------------------------------------------------------------------------


def cancel_waiting() -> Action:
    """Return the action that cancels jobs that wait and leaves the others alone: cancelled."""
    return _change(_ALL, "cancel", selected=True, only="waiting")


def run_waiting_now() -> Action:
    """Return the action that makes jobs that wait due now and leaves the others alone: moved."""
    return _change(_ALL, "move", at_once=CHUNK, only="waiting", to_now=True)


def kill_failed_before(moment: float) -> Action:
    """Return the action that moves waiting jobs that failed up to a moment (µs) to the morgue: killed."""
    return _change(_ALL | {"c": "killed"}, "kill", selected=True, only="failed", failed_until=moment)


def delete_failed_before(moment: float) -> Action:
    """Return the action that deletes waiting jobs that failed up to a moment (µs): deleted."""
    return _change(_ALL | {"c": "deleted"}, "delete", selected=True, only="failed", failed_until=moment)


def _due(due_ms: int | None, delay_ms: int | None) -> dict[str, Any]:
    if due_ms is None and delay_ms is not None:
        return {"ms": delay_ms, "is_delay": True}
    if delay_ms is None and due_ms is not None:
        return {"ms": due_ms}
    raise InvalidJob("give either a delay or a due time")
