"""Operator actions on named jobs that failed; each job is changed only if it is still the generation that was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..redis.scripts import clear_errors
from ..sending.chunks import CHUNK

if TYPE_CHECKING:
    from ..queue import Queue

#: an id, and the key of a generation
Named = tuple[str, bytes]

_RETRIED: Final = {"m": "retried", "r": "running", "n": "gone"}
#: jobs that one script call removes: a few ms, for which all other calls have to wait
_AT_A_TIME: Final = 100
_VERBS: Final = {"delete": "discarded", "kill": "buried"}


def retry_failed(queue: Queue, number: int, wanted: Sequence[Named], *, delay_ms: int | None = None) -> list[str]:
    """Change the due time of waiting jobs that failed. Their failures are kept.

    Args:
        queue, number: the shard in which they are.
        wanted: (id, key) of each; one Redis call moves at most 250.
        delay_ms: delay from now; None = due now, where an overdue job keeps its place.

    Returns:
        For each: retried, running (reserved now), or gone: it has not failed, or is another generation.
    """
    outcomes: list[str] = []
    ms, mode = (0, b"now") if delay_ms is None else (delay_ms, b"1")
    for start in range(0, len(wanted), CHUNK):
        frame = b"".join(map(_entry, wanted[start : start + CHUNK]))
        letters = queue.call("retry_many", number, frame, ms, mode).decode()
        outcomes += [_RETRIED[letter] for letter in letters]
    return outcomes


def end_failed(queue: Queue, number: int, wanted: Sequence[Named], verb: str) -> list[str]:
    """Delete waiting jobs that failed (``delete``), or move them to the morgue (``kill``).

    A job that fails between the read of its key and the action is left alone, so no other generation is affected.

    Returns:
        For each: discarded or buried, running (reserved now), or gone.
    """
    outcomes: list[str] = []
    for start in range(0, len(wanted), CHUNK):
        outcomes += _end(queue, number, wanted[start : start + CHUNK], verb)
    return outcomes


def _end(queue: Queue, number: int, wanted: Sequence[Named], verb: str) -> list[str]:
    moment = _last_failure(queue, number, [ident for ident, _ in wanted])
    meant = set(wanted)
    found = queue.broker.inspector.views(queue, number, "failed", [ident.encode() for ident, _ in wanted])
    states = {view.id: view.state for view in found if (view.id, view.job.key) in meant and view.job.failures}
    waiting = [ident.encode() for ident, state in states.items() if state != "reserved"]
    letters = ""
    while rest := waiting[len(letters) :]:
        frame = b"".join(b"%c%b" % (len(ident), ident) for ident in rest[:_AT_A_TIME])
        letters += queue.call("remove_many", number, frame, verb, f"{moment:.0f}").decode()
    ended = {ident.decode() for ident, letter in zip(waiting, letters, strict=True) if letter == "d"}
    return [_VERBS[verb] if ident in ended else _why_not(states.get(ident)) for ident, _ in wanted]


def _why_not(state: str | None) -> str:
    # A job that was waiting a moment ago was reserved by a worker, or ended by another caller; in the second case the
    # next call returns gone.
    return "gone" if state is None else "running"


def _last_failure(queue: Queue, number: int, idents: Sequence[str]) -> float:
    key = queue.shard(number).names["failed"]
    with clear_errors():
        scores = queue.broker.client.zmscore(key, list(idents))
    return max((score for score in scores if score is not None), default=0.0)


def _entry(named: Named) -> bytes:
    ident, key = named
    encoded = ident.encode()
    return b"%c%b%c%b" % (len(encoded), encoded, len(key), key)
