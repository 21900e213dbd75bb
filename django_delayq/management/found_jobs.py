"""Search of ``delayq_queue``: its options, and its results as a table or JSON."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..core.errors import InvalidJob
from ..core.inputs import short
from ..core.job import Job
from ..core.job_filter import JobFilter
from ..core.job_view import JobView
from ..core.queue import Queue
from ..core.reading import INDEXES, SEARCHED, Inspector
from ..core.times import iso_of
from ..masking import Mask
from ..status.formatting import printable, table
from .base import DelayQCommand, add_show_secrets, call_of, mask_for, positive
from .conditions import add_conditions, filter_of

JOB_COLUMNS: Final = ("state", "id", "task", "due", "failures", "content")
_PAGE: Final = 250


def add_search(parser: ArgumentParser) -> None:
    """Add the options of a search."""
    parser.add_argument(
        "text", nargs="?", help="text in the id, the task name, the arguments, payloads, context or error"
    )
    parser.add_argument(
        "--place",
        action="append",
        choices=tuple(INDEXES),
        dest="places",
        help="only jobs in this place; may be repeated",
    )
    parser.add_argument(
        "--limit", type=positive(int, "a number of jobs"), default=50, help="at most this many jobs (default: 50)"
    )
    parser.add_argument("--cursor", default="", help="continue an earlier search, which printed this")
    add_conditions(parser, text=False)
    add_show_secrets(parser)


class Search:
    """Search through places of a queue, one after the other; ``cursor`` continues it, and is empty at the end."""

    def __init__(self, queue: Queue, where: JobFilter, places: tuple[str, ...], cursor: str) -> None:
        self._queue = queue
        self._where = where
        self._places = tuple(dict.fromkeys(places))
        self.cursor = cursor

    def find(self, limit: int) -> Iterator[JobView]:
        """Yield up to ``limit`` jobs, each once.

        Raises:
            InvalidJob: the cursor is not valid.
        """
        seen: set[tuple[str, bytes]] = set()
        for place, position in self._rest():
            while len(seen) < limit:
                page = Inspector(self._queue.registry).page(
                    self._queue.name, place, cursor=position, limit=min(_PAGE, limit - len(seen)), where=self._where
                )
                for view in page.jobs:
                    name = view.id, view.job.key if place == "morgue" else b""
                    if name not in seen:
                        seen.add(name)
                        yield view
                position = page.cursor
                if not position:
                    break
            else:
                self.cursor = f"{place}:{position}"
                return
        self.cursor = ""

    def _rest(self) -> list[tuple[str, str]]:
        """Return the places that are left, each with the cursor in it."""
        if not self.cursor:
            return [(place, "") for place in self._places]
        begin, _, position = self.cursor.partition(":")
        if begin not in self._places:
            raise InvalidJob(
                f"{short(self.cursor)} is not a cursor of this search; give the same --place options again"
            )
        later = self._places[self._places.index(begin) + 1 :]
        return [(begin, position), *((place, "") for place in later)]


def print_found(command: DelayQCommand, queue: Queue, options: Mapping[str, Any]) -> None:
    """Print the jobs that meet the conditions."""
    hide, limit = mask_for(options), options["limit"]
    search = Search(queue, filter_of(options), tuple(options["places"] or SEARCHED), options["cursor"])
    rows = [job_as_dict(view, hide) for view in search.find(limit)]
    if options["json"]:
        command.print_json(rows)
    elif not rows:
        command.stdout.write("no job found")
    else:
        command.print_lines(table(JOB_COLUMNS, [[*map(cell_of, one.values())] for one in rows], left=len(JOB_COLUMNS)))
    if search.cursor:
        note = (
            f"These are the first {len(rows)} jobs; there may be more. Raise --limit to see them, or continue with "
            f"--cursor {search.cursor}"
        )
        (command.stderr if options["json"] else command.stdout).write(note)


def job_as_dict(view: JobView, hide: Mask) -> dict[str, Any]:
    """Return a job as plain data for the results of a search, masked."""
    content = f"{view.payload_count} payloads" if view.job.merged else _content(view.job, hide)
    values = (view.state, view.id, view.job.task, iso_of(view.due_ms), view.job.failures, content)
    return dict(zip(JOB_COLUMNS, values, strict=True))


def _content(job: Job, hide: Mask) -> str:
    """Return the arguments on one line, in their stored form."""
    call = call_of(job, hide)
    if "bytes" in call:
        return str(call["bytes"])
    return json.dumps({"a": call["args"], "k": call["kwargs"]} if call["kwargs"] else call["args"], ensure_ascii=False)


def cell_of(value: object) -> object:
    """Return a value of :func:`job_as_dict` for a table."""
    return printable(value) if isinstance(value, str) else value
