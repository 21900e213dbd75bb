"""Look back: what became of jobs, hour by hour, and what comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from .base import Base, said

#: a moment, or Unix seconds
Moment = datetime | float | None


class Looking(Base):
    """The history that the pipeline keeps. Answers are dicts, as the OpenAPI document has them."""

    def hours(
        self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None
    ) -> Iterator[dict[str, Any]]:
        """What became of the runs of each hour, queue and task, the latest first, page by page as asked for."""
        return self._rows("hours", _asked(queue, task, since, until))

    def history(self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None) -> dict[str, Any]:
        """The same added up: in all, over time, and by task; without ``since`` and ``until`` the last 24 hours."""
        found: dict[str, Any] = self._get("history", "summary", **_asked(queue, task, since, until))
        return found

    def pipeline_runs(
        self, *, kind: str | None = None, state: str | None = None, run_id: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The runs of the pipeline, the latest first."""
        return self._rows("runs", said(kind=kind, state=state, run_id=run_id))

    def forecast(self, queue: str = "") -> dict[str, Any]:
        """What falls due in the next 24 hours, and when it will be done."""
        found: dict[str, Any] = self._get("history", "forecast", **said(queue=queue or None))
        return found

    def _rows(self, name: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            page = self._get("history", name, **query, cursor=cursor)
            yield from page[name]
            cursor = page["cursor"]
            if not cursor:
                return


def _asked(queue: str, task: str, since: Moment, until: Moment) -> dict[str, Any]:
    return said(queue=queue or None, task=task or None, **{"from": since, "to": until})
