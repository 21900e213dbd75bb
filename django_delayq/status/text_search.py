"""Text search in the visible content of jobs. Masked content is not searched, or it could be guessed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.codec import readable
from ..settings.conf import mask
from .job_content import call_rows, loaded

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.operations.views import JobView


class SearchTimeout(Exception):
    """Signal that the search ran out of time."""


class TextSearch:
    """Case-insensitive search predicate for jobs, with a deadline.

    Args:
        text: the text to find; stored JSON is written without spaces (``"order":5``).
        deadline: moment of ``time.monotonic()`` after which a call raises :class:`SearchTimeout`; default: never.
    """

    def __init__(self, text: str, deadline: float = math.inf) -> None:
        self._text = text.casefold()
        self._deadline = deadline
        self.examined = 0

    def __call__(self, view: JobView) -> bool:
        self.check_deadline()
        self.examined += 1
        return any(self._is_in(text) for text in _plain(view)) or any(self._is_in(text) for text in self._masked(view))

    def check_deadline(self) -> None:
        """Check the deadline.

        Raises:
            SearchTimeout: it has passed.
        """
        if time.monotonic() > self._deadline:
            raise SearchTimeout

    def _is_in(self, text: str) -> bool:
        return self._text in text.casefold()

    def _masked(self, view: JobView) -> Iterator[str]:
        """Yield the stored values that contain the text, masked; values without it skip the costly mask."""
        hide = mask()
        for job in filter(None, (view.job, view.gated)):
            if self._is_in(readable(job.args)):
                yield _call(job)
            if self._is_in(readable(job.options_json)):
                yield _json(job.options_json)
        for payload in view.payloads:
            if self._is_in(readable(payload.data)):
                yield _json(payload.data)
        if self._is_in(view.reason):
            yield hide.text(view.reason)
        error = dict(view.error)
        traceback = str(error.pop("traceback", ""))
        if self._is_in(traceback):
            yield hide.traceback(traceback)
        if self._is_in(_dump(error)):
            yield _dump(hide.value(error))


def _plain(view: JobView) -> Iterator[str]:
    """Yield the values that are never masked."""
    yield from (view.id, view.job.task, view.job.worker, view.error_class)


def _call(job: Job) -> str:
    if job.merged:
        return ""
    try:
        return _dump(dict(call_rows(job.task, job.args)))
    except ValueError:
        return _json(job.args)


def _json(data: bytes) -> str:
    try:
        return _dump(mask().value(loaded(data)))
    except ValueError:
        return mask().text(readable(data))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
