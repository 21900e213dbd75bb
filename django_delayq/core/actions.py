"""Actions on lists of jobs. An action is one script with its arguments and the meanings of the letters in its reply.

A verb for a single id sends a list of one, to the shards in which the id may live. Operations on many jobs
(:mod:`.bulk`) send lists of one shard.

A morgue record lies in the shard in which its job died. While a queue has more than one epoch, its job may be put back
only where :mod:`.resharding` allows: in an old shard if the id is live there, otherwise in the present epoch. If that
is another shard, the content is put there first and the record is deleted afterwards. The request id of both calls
follows from the record, so that concurrent or repeated calls put nothing back twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from .errors import InvalidJob
from .job import Generation, digest_of
from .job_view import Reply, record_name, split_name
from .reading import burials, read
from .records.frames import CHUNK, encode_id, pack, pack_generation
from .records.keys import number_of
from .registry import ShardSet
from .resharding import visit
from .times import MAX_DUE_MS

#: an id, and the key of a generation; b"" = the live one, in the morgue the one that was buried last
Name = tuple[bytes, bytes]

#: jobs that one script call removes or moves through the morgue: a few ms, for which all other calls have to wait
AT_A_TIME: Final = 100
#: outcome of a job that is not there, or to which the action does not apply
GONE: Final = "gone"
#: outcomes of a job that gets another due time, or keeps one that is over
_MOVED: Final = {"m": "moved", "k": "moved"}
#: outcome of a job that is not in this closed shard: another shard has to be asked
_ELSEWHERE: Final = "elsewhere"


class Action:
    """Script that changes the jobs of a list.

    Args:
        script: its name.
        outcomes: the outcome of a job for letters of the reply; that of any other is *gone*.
        arguments: those of the script behind the list.
        at_once: most jobs of a call.
    """

    __slots__ = ("_arguments", "_at_once", "_outcomes", "_script")

    def __init__(self, script: str, outcomes: Mapping[str, str], *arguments: object, at_once: int = CHUNK) -> None:
        self._script = script
        self._outcomes = {**outcomes, "v": _ELSEWHERE}
        self._arguments = arguments
        self._at_once = at_once

    def call(
        self, queue: ShardSet, number: int, entries: Iterable[tuple[bytes, ...]], request: bytes | None = None
    ) -> list[str]:
        """Apply the action to entries (``lua/lib/each.lua``); return the outcomes of those that the call reached."""
        frame = b"".join(map(pack, entries))
        letters: bytes = queue.call(self._script, number, frame, *self.arguments, request=request)
        return [self._outcomes.get(letter, GONE) for letter in letters.decode()]

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of the script behind the list."""
        return self._arguments

    def in_shard(self, queue: ShardSet, number: int, names: Sequence[Name]) -> list[str]:
        """Apply the action to jobs in the shard where they were read; return the outcome of each.

        A job that is named by its generation is left alone if it ran, was replaced or cancelled meanwhile, and so is a
        new job under its id.
        """
        outcomes: list[str] = []
        while rest := names[len(outcomes) : len(outcomes) + self._at_once]:
            found = self.call(queue, number, [(*name, b"") for name in rest])
            outcomes += [
                self.elsewhere(queue, *name) if outcome == _ELSEWHERE else outcome
                for name, outcome in zip(rest, found, strict=False)
            ]
        return outcomes

    def elsewhere(self, queue: ShardSet, ident: bytes, key: bytes) -> str:
        """Return the outcome of a job that is not live in the closed shard in which it was read."""
        return GONE

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Apply the action to one job wherever it is; return the outcome.

        Args:
            generation: which job of the id; None = any.
            request: the id of the call, if it repeats an earlier one (:mod:`.job`).

        Raises:
            InvalidJob: an invalid id.
        """
        entry = (encode_id(ident), *pack_generation(generation))

        def ask(number: int) -> str | None:
            (outcome,) = self.call(queue, number, [entry], request)
            return None if outcome == _ELSEWHERE else outcome

        return visit(queue, ident, ask) or GONE


#: finds jobs: live, gated or gone
LOCATE: Final = Action("locate", {"l": "live", "g": "gated"})


def live_ids(queue: ShardSet, idents: Iterable[bytes], *, before: float = math.inf) -> set[bytes]:
    """Return the ids that are live; ``before`` = only in epochs before this one."""
    places: dict[int, set[bytes]] = {}
    for epoch, shards in queue.epochs:
        for ident in idents if epoch < before else ():
            places.setdefault(number_of(epoch, crc32(ident) % shards), set()).add(ident)
    live: set[bytes] = set()
    for number, mine in places.items():
        names = [(ident, b"") for ident in sorted(mine)]
        found = zip(names, LOCATE.in_shard(queue, number, names), strict=True)
        live.update(name[0] for name, place in found if place == "live")
    return live


# -- by id or handle -------------------------------------------------------------------------------------------------


def change_of(verb: str, outcomes: Mapping[str, str], *, at_once: int = AT_A_TIME, **options: Any) -> Action:
    """Return the action of a verb of ``change.lua`` with its options; those that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return Action("change", outcomes, pack({"verb": verb, **given}), at_once=at_once)


def cancel(task: str = "", not_after_ms: float | None = None) -> Action:
    """Return the action of :meth:`Queue.cancel`: cancelled, stopping, taken, late or gone."""
    outcomes = {"c": "cancelled", "g": "cancelled", "s": "stopping", "t": "taken", "x": "late"}
    return change_of("cancel", outcomes, task=task or None, not_after=not_after_ms)


def reschedule(task: str = "", *, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action of :meth:`Queue.reschedule`: moved, taken or gone.

    Raises:
        InvalidJob: neither or both are given.
    """
    return change_of("move", _MOVED | {"t": "taken"}, task=task or None, **_due(due_ms, delay_ms))


def run_now(task: str = "") -> Action:
    """Return the action of :meth:`Queue.run_now`: moved, taken or gone."""
    return change_of("move", _MOVED | {"t": "taken"}, task=task or None, to_now=True)


# -- selected jobs, which are changed only if they are still the same generation ------------------------------------


def cancel_selected() -> Action:
    """Return the action that cancels selected jobs, with what is gated behind running ones.

    Outcomes: cancelled, stopping (it is running), ungated (it waited for the end of an attempt, which continues),
    running (it waits for the end of an attempt which has left payloads of its own behind: cancel that one), or gone.
    """
    outcomes = {"c": "cancelled", "g": "ungated", "s": "stopping", "r": "running"}
    return change_of("cancel", outcomes, selected=True)


def reschedule_selected(*, due_ms: int | None = None, delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of selected jobs that wait or are gated.

    Outcomes: moved, running (reserved now), or gone.

    Raises:
        InvalidJob: neither or both are given, or the value is out of range.
    """
    due = _due(due_ms, delay_ms)
    if not 0 <= due["ms"] <= MAX_DUE_MS:
        raise InvalidJob(f"a delay or a due time is a number of ms from 0 to {MAX_DUE_MS}, not {due['ms']}")
    return change_of("move", _MOVED | {"r": "running"}, at_once=CHUNK, **due)


def retry_failed(delay_ms: int | None = None) -> Action:
    """Return the action that moves the due times of waiting jobs that failed. Their failures are kept.

    Outcomes: retried, running (reserved now), or gone: it has not failed, or is another generation.

    Args:
        delay_ms: delay from now; None = due now, where an overdue job keeps its place.
    """
    outcomes = {"m": "retried", "k": "retried", "r": "running"}
    due = {"to_now": True} if delay_ms is None else _due(None, delay_ms)
    return change_of("move", outcomes, at_once=CHUNK, only="failed", **due)


def kill_failed() -> Action:
    """Return the action that moves waiting jobs that failed to the morgue: buried, running or gone."""
    return change_of("kill", {"c": "buried", "r": "running"}, selected=True, only="failed")


def delete_failed() -> Action:
    """Return the action that deletes waiting jobs that failed: discarded, running or gone."""
    return change_of("delete", {"c": "discarded", "r": "running"}, selected=True, only="failed")


def _due(due_ms: int | None, delay_ms: int | None) -> dict[str, Any]:
    if due_ms is None and delay_ms is not None:
        return {"ms": delay_ms, "is_delay": True}
    if delay_ms is None and due_ms is not None:
        return {"ms": due_ms}
    raise InvalidJob("give either a delay or a due time")


# -- jobs of the morgue ----------------------------------------------------------------------------------------------


class _Grave(NamedTuple):
    """Morgue record that a caller means; ``task`` is the name of its task, "" if the body cannot be read."""

    shard: int
    name: bytes
    record: bytes
    task: str

    @property
    def request(self) -> bytes:
        """Request id shared by all callers that put the job of this record back."""
        return digest_of(b"%d" % self.shard, self.name, self.record)


class Kick(Action):
    """Action that moves jobs from the morgue back into the queue: kicked, live (a live job prevents it) or gone.

    Args:
        delay_ms: delay of the jobs from the moment of each call, a negative one is 0; or
        per_second: how many jobs fall due in a second,
        first_ms: from this moment on, Unix ms.
        replace: replace live plain jobs of the same ids.

    Attributes:
        due_ms: the delay, or the due time of the next job.

    Raises:
        InvalidJob: a rate that is not above 0.
    """

    __slots__ = ("_step", "due_ms")

    def __init__(
        self, delay_ms: int = 0, *, per_second: float | None = None, first_ms: float = 0.0, replace: bool = False
    ) -> None:
        if per_second is not None and not 0 < per_second < math.inf:
            raise InvalidJob(f"a pace is a number of jobs per second above 0, not {per_second}")
        self._step = 0.0 if per_second is None else 1000 / per_second
        self.due_ms = first_ms if per_second else float(max(0, delay_ms))
        super().__init__("kick", {"k": "kicked", "l": "live"}, b"1" if replace else b"0", at_once=AT_A_TIME)

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of the script: the next call continues at the pace of the one before."""
        return self.due_ms, b"0" if self._step else b"1", self._step, *self._arguments

    def call(
        self, queue: ShardSet, number: int, entries: Iterable[tuple[bytes, ...]], request: bytes | None = None
    ) -> list[str]:
        """Kick the jobs of entries, see :meth:`Action.call`."""
        outcomes = super().call(queue, number, entries, request)
        self.due_ms += outcomes.count("kicked") * self._step
        return outcomes

    def in_shard(self, queue: ShardSet, number: int, names: Sequence[Name]) -> list[str]:
        """Kick jobs of a shard, see :meth:`Action.in_shard`; a job that belongs to another shard is put there."""
        if len(queue.epochs) == 1:
            return super().in_shard(queue, number, names)
        return [self.elsewhere(queue, *name) for name in names]  # an id may be live in an older shard

    def elsewhere(self, queue: ShardSet, ident: bytes, key: bytes) -> str:
        """Put the job of a record back into the shard where it belongs."""
        while (grave := _find(queue, ident.decode(), key)) is None:
            if not queue.reload():
                return GONE
        return self._bring_back(queue, ident, grave)

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Kick one job wherever it is, see :meth:`Action.anywhere`.

        ``request`` has no effect while the queue has old epochs.
        """
        name = encode_id(ident), pack_generation(generation)[0]
        if len(queue.epochs) == 1:
            (outcome,) = self.call(queue, queue.shards_of(ident)[0], [(*name, b"")], request)
            if outcome in ("kicked", "live"):
                return outcome
        return self.elsewhere(queue, *name)

    def _bring_back(self, queue: ShardSet, ident: bytes, grave: _Grave) -> str:
        name = split_name(grave.name)

        def ask(number: int) -> str | None:
            if number == grave.shard:
                (outcome,) = self.call(queue, number, [(*name, b"")])
            else:
                (outcome,) = self.call(queue, number, [(*name, grave.record, grave.task.encode())], grave.request)
                if outcome == "kicked":
                    _CAME_BACK.call(queue, grave.shard, [(*name, b"")], grave.request)
            return None if outcome == _ELSEWHERE else outcome

        return visit(queue, ident.decode(), ask) or GONE


class Discard(Action):
    """Action that deletes jobs from the morgue: discarded or gone."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("discard", {"d": "discarded"})

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Delete one morgue record wherever it is; see :meth:`Action.anywhere`."""
        encoded, key = encode_id(ident), pack_generation(generation)[0]
        while True:
            if key or len(queue.epochs) == 1:
                names = [(number, key) for number in queue.shards_of(ident)]
            else:
                names = [(number, split_name(name)[1]) for number, name in _records(queue, ident, b"")]
            for number, its_key in names:
                if self.call(queue, number, [(encoded, its_key, b"")], request) == ["discarded"]:
                    return "discarded"
            if not queue.reload():
                return GONE


#: deletes the record of a job that came back in another shard
_CAME_BACK: Final = Action("discard", {}, b"1")


def _find(queue: ShardSet, ident: str, key: bytes) -> _Grave | None:
    """Return the morgue record of this generation, or the latest of the id, from any epoch."""
    for number, name in _records(queue, ident, key):
        frame = read(queue.deployment, queue.name, number, buried=True, members=[name])
        reply = Reply(queue.name, number, frame, buried=True)
        if reply.members:
            return _Grave(number, name, reply.bodies[0], "".join(reply.tasks.values()))
    return None


def _records(queue: ShardSet, ident: str, key: bytes) -> list[tuple[int, bytes]]:
    """Return shard and name of the record of a generation in each shard, or of those of an id, the latest first."""
    if key:
        return [(number, record_name(ident.encode(), key)) for number in queue.shards_of(ident)]
    return [(entry.shard, entry.member) for entry in burials(queue, ident)]
