"""Text search in the visible content of jobs. Masked content is not searched, or it could be guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.codec import readable
from ..settings.conf import mask
from .job_content import call_rows, loaded

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.job_view import JobView


class TextSearch:
    """Case-insensitive search predicate for jobs.

    Args:
        text: the text to find; stored JSON is written without spaces (``"order":5``).
    """

    def __init__(self, text: str) -> None:
        self._text = text.casefold()

    def __call__(self, view: JobView) -> bool:
        return any(self._is_in(text) for text in _plain(view)) or any(self._is_in(text) for text in self._masked(view))

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
