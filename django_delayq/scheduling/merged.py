"""Records of merged tasks: an id, a payload and its score."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from ..core import codec
from ..core.errors import InvalidJob
from ..core.inputs import check_id, short, suggest
from ..core.job import NewJob, Payload, new_key
from ..core.task import Task
from .options import JOB_OPTIONS, MERGED_OPTIONS, OPTIONS, due
from .records import NewJobs

#: keys that most entries have; entries with other keys take the slower path
_PLAIN: Final = frozenset(("id", "payload", "score", "delay", "at", "queue", "durable", "using_db"))
_LONG_DELAY: Final = 86_400 * 365
_SCORE_CHARS: Final = 255
_BLOCK: Final = 256
_EXACT: Final = 1 << 53


class MergedJobs(NewJobs):
    """Builder of the records of one merged task's jobs. 100,000 of them take less than a second."""

    entry_keys = frozenset((*(name for name in JOB_OPTIONS if name != "expires"), *MERGED_OPTIONS))
    entry_form = "id, payload, score and options"

    def __init__(self, task: Task, options: Mapping[str, Any]) -> None:
        super().__init__(task, options)
        self._keys = _random_keys()
        self._max_payloads = task.options.max_payloads or 1

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> NewJob:
        """Return one record.

        Raises:
            TypeError: arguments were given; a merged task has a payload.
            InvalidJob: the job cannot be stored.
        """
        if args or kwargs:
            raise self._no_arguments(kwargs)
        task, get = self.task, options.get
        policy = task.options
        given_id = get("id")
        if given_id is None:
            raise InvalidJob(
                f"task {task.name}: a job of a merged task needs an id=, under which its payloads are united"
            )
        try:
            data = codec.encode(get("payload"), limit=self._limit)
        except InvalidJob as error:
            raise InvalidJob(f"task {task.name}: {error}") from None
        score = get("score")
        delay, at = get("delay"), get("at")
        due_ms: int | None = None
        if at is None and (delay is None or (type(delay) is int and 0 <= delay < _LONG_DELAY)):
            delay_ms: int | None = (delay or 0) * 1000
        else:
            due_ms, delay_ms = due(delay, at)
        conflict = get("on_conflict") or policy.on_conflict or "merge"
        keys = self._keys
        new = NewJob(
            check_id(given_id),
            task.name,
            b"",
            due_ms,
            delay_ms,
            policy.priority,
            self._rare.bytes,
            next(keys),
            conflict,
            policy.due_policy or ("keep" if conflict == "merge" else "replace"),
            True,
            Payload(data, "" if score is None else score_text(score), next(keys)),
            policy.score_policy,
            policy.payloads,
            self._max_payloads,
        )
        if not options.keys() <= _PLAIN:
            self._rare.apply(new, options)
        return new

    def _read_entry(
        self, entry: Mapping[str, Any], common: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Mapping[str, Any]]:
        self._check_entry(entry)
        return (), {}, {**common, **entry} if common else entry

    def _refuse_keys(self, entry: Mapping[str, Any]) -> None:
        if "args" in entry or "kwargs" in entry:
            raise self._no_arguments({})
        super()._refuse_keys(entry)

    def _no_arguments(self, kwargs: Mapping[str, Any]) -> TypeError:
        hints = (f" As an option, {short(name)}:{suggest(name, OPTIONS)}" for name in kwargs if suggest(name, OPTIONS))
        return TypeError(
            f"task {self.task.name} is merged: its function takes no arguments of the call but payloads; pass "
            f"schedule(…, id=…, payload=…).{next(hints, '')}"
        )


def score_text(score: object) -> str:
    """Return the text of a number that orders the payloads of an id.

    Args:
        score: int, float, Decimal, or the text of a number. It is kept as given and compared as a double, so
            neighbouring ints beyond 2^53 may count as equal.

    Raises:
        InvalidJob: ``score`` is not a number, or not finite.
    """
    if type(score) is int and -_EXACT < score < _EXACT:
        return str(score)
    if isinstance(score, int) and not isinstance(score, bool):
        text = int.__repr__(score) if score.bit_length() < 1000 else ""
    elif isinstance(score, float):
        text = float.__repr__(score)
    elif isinstance(score, Decimal):
        text = Decimal.__str__(score)
    elif isinstance(score, str):
        text = str.__str__(score)
    else:
        raise InvalidJob(f"score must be a number (int, float, Decimal or the text of one), not {short(score)}")
    if not _is_number(text):
        raise InvalidJob(f"score must be a finite number of at most {_SCORE_CHARS} characters, got {short(score)}")
    return text


def _is_number(text: str) -> bool:
    # float() also accepts underscores, surrounding blanks, and the digits of every alphabet.
    if len(text) > _SCORE_CHARS or not text.isascii() or "_" in text or text != text.strip():
        return False
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _random_keys() -> Iterator[bytes]:
    """Return keys like ``job.new_key``, many of them per system call."""
    yield new_key()  # most calls of schedule() need only two
    yield new_key()
    while True:
        block = os.urandom(16 * _BLOCK)
        for at in range(0, len(block), 16):
            yield bytes((block[at] & 0x7F,)) + block[at + 1 : at + 16]
