"""Pages of jobs, read by the inspector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .. import connections
from ..access.problems import Problem
from ..core.job_filter import JobFilter
from ..core.job_view import JobView
from ..core.queue import Queue
from ..core.reading import Accepts, Page
from ..settings.conf import conf
from ..status.job_content import TextSearch

#: bytes of arguments, payloads and errors after which a page of whole records ends
PAGE_BYTES: Final = 1024 * 1024
#: maximum bytes of arguments that a list shows; larger ones are left out
MOST_BYTES: Final = 10_000
#: seconds after which a page with conditions ends
PAGE_SECONDS: Final = 2.0


def jobs_page(queue: Queue, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page that a validated query selects: ``jobs``, ``cursor`` and ``examined``."""
    accepts = _accepts(query)
    if query["id"]:
        views = [view for view in _jobs_of_id(queue, query) if query["where"].holds(view)]
        jobs = [view for view in views if accepts is None or accepts(view)]
        return _rendered(Page(jobs, examined=len(views)))
    low, high = _range(query)
    page = connections.hurried_broker().inspector.page(
        queue.name,
        query["place"],
        query["by"],
        cursor=query["cursor"],
        limit=query["limit"],
        reverse=query["order"] == "desc",
        low=low,
        high=high,
        most_bytes=MOST_BYTES,
        where=query["where"],
        accepts=accepts,
        seconds=PAGE_SECONDS,
        partial=True,
    )
    return _rendered(page)


def _rendered(page: Page) -> dict[str, Any]:
    return {
        "jobs": page.jobs,
        "cursor": page.cursor or None,
        "examined": page.examined,
        "unreachable_shards": page.unreachable,
    }


def text_of(where: JobFilter) -> Accepts | None:
    """Return the predicate for the text of a filter, which does not see masked values; None without a text."""
    return TextSearch(where.text) if where.text else None


def _accepts(query: Mapping[str, Any]) -> Accepts | None:
    text = text_of(query["where"])
    if query.get("state") != "gated":
        return text
    return lambda view: view.gated_due_ms is not None and (text is None or text(view))


def _jobs_of_id(queue: Queue, query: Mapping[str, Any]) -> Sequence[JobView]:
    inspector = connections.hurried_broker().inspector
    if query["place"] == "morgue":
        return inspector.graves(queue.name, query["id"], most_bytes=MOST_BYTES)
    view = inspector.get(queue.name, query["id"], most_bytes=MOST_BYTES)
    return [view] if view is not None and _is_in_state(view, query["state"] or "") else []


def _is_in_state(view: JobView, state: str) -> bool:
    waits = view.state in ("delayed", "ready")
    return view.state != "morgue" and {
        "": True,
        "waiting": waits,
        "failed": waits and view.job.failures > 0,
        "gated": True,
    }.get(state, view.state == state)


def _range(query: Mapping[str, Any]) -> tuple[float | str | None, float | str | None]:
    """Return the bounds of the page, cut at the current time for delayed and ready jobs."""
    low, high = query["min"], query["max"]
    if query.get("state") not in ("delayed", "ready"):
        return low, high
    now_ms = math.floor(connections.hurried_broker().now_ms())
    if query["state"] == "ready":
        return low, now_ms if high is None else min(float(high), now_ms)
    return now_ms + 1 if low is None else max(float(low), now_ms + 1), high


def most_bytes() -> int:
    """Return the maximum bytes of arguments shown for a job requested by id; no job should have more."""
    return max(PAGE_BYTES, conf().max_args_bytes)


def graves_page(queue: Queue, ident: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of the records of an id: ``jobs`` and ``cursor``.

    Raises:
        Problem: there is no record.
    """
    page = connections.hurried_broker().inspector.graves_page(
        queue.name,
        ident,
        cursor=query["cursor"],
        limit=query["limit"],
        most_bytes=most_bytes(),
        page_bytes=PAGE_BYTES,
    )
    if not (page.jobs or page.cursor or query["cursor"]):
        raise Problem(
            404,
            "job_not_found",
            f"the morgue of queue {queue.name!r} has no job {ident!r}; it was kicked, discarded or never there",
        )
    return _rendered(page)
