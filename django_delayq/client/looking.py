"""History verbs: attempts by hour, and forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from .base import Base, members
from .methods import Pages, listing, verb
from .wire import Steps

#: a datetime, or Unix seconds
Moment = datetime | float | None


class HistoryVerbs(Base):
    """History that the pipeline keeps. Responses are dicts, as described in the OpenAPI document."""

    @listing
    def hours(
        self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None
    ) -> Pages[dict[str, Any]]:
        """Yield the metrics of each hour, queue and task, the latest first. Pages are fetched as needed."""
        return self._rows("hours", _query(queue, task, since, until))

    @verb
    def history(
        self, *, queue: str = "", task: str = "", since: Moment = None, until: Moment = None
    ) -> Steps[dict[str, Any]]:
        """Return metrics summed over queues: in total, over time, and by task.

        Without ``since`` and ``until`` they cover the last 24 hours.
        """
        summary: dict[str, Any] = yield from self._get("history", "summary", **_query(queue, task, since, until))
        return summary

    @listing
    def pipeline_runs(
        self, *, kind: str | None = None, state: str | None = None, run_id: str | None = None
    ) -> Pages[dict[str, Any]]:
        """Yield the pipeline runs, the latest first."""
        return self._rows("runs", members(kind=kind, state=state, run_id=run_id))

    @verb
    def forecast(self, queue: str = "") -> Steps[dict[str, Any]]:
        """Return the jobs that fall due in the next 24 hours, and when they will be done."""
        forecast: dict[str, Any] = yield from self._get("history", "forecast", **members(queue=queue or None))
        return forecast

    def _rows(self, name: str, query: Mapping[str, Any]) -> Pages[dict[str, Any]]:
        return self._pages(("history", name), name, query, dict)


def _query(queue: str, task: str, since: Moment, until: Moment) -> dict[str, Any]:
    return members(queue=queue or None, task=task or None, **{"from": since, "to": until})
