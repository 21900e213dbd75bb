"""Jobs of every kind in every place, for pages to be looked at, and what a page may never have in it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from django_delayq.core import Inspector
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import Job, NewJob, Payload, new_key
from django_delayq.core.job_view import JobView
from django_delayq.core.outcomes import bury, fail
from django_delayq.core.queue import Queue

TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/crm.py", line 12, in sync\n    raise it\nLookupError: no'


class Yard:
    """``put`` schedules, ``take`` reserves; ``failed`` and ``buried`` settle what was taken."""

    def __init__(self, broker: Broker, name: str = "orders", *, shards: int = 1, worker: str = "w@host:1") -> None:
        self.queue: Queue = broker.queue(name, shards=shards)
        self.worker = worker

    def put(self, ident: str, *args: Any, task: str = "shop.cancel_order", **options: Any) -> str:
        context = options.pop("context", None)
        stored = json.dumps({"context": context}).encode() if context is not None else b""
        return self.queue.schedule(
            NewJob(ident, task, options.pop("raw", encode_args(args, {})), options=stored, **options)
        )

    def add(self, ident: str, payload: Any, score: str = "1", *, task: str = "shop.sync", **options: Any) -> str:
        data = options.pop("raw", None) or encode(payload)
        return self.queue.schedule(
            NewJob(
                ident, task, on_conflict="merge", due_policy="keep", payload=Payload(data, score, new_key()), **options
            )
        )

    def take(self, *, started: bool = True) -> list[Job]:
        return [
            job
            for number in self.queue.numbers
            for job in self.queue.reserve(number, 100, worker=self.worker, started=started).jobs
        ]

    def take_one(self) -> Job:
        (job,) = self.take()
        return job

    def failed(self, job: Job, *, delay_ms: int = 60_000, **error: str) -> None:
        given = {"class": "LookupError", "message": "no", "traceback": TRACEBACK, **error}
        assert self.queue.settle(
            [fail(job, 1, 2, delay_ms=delay_ms, error_class=given["class"][:200], error=json.dumps(given).encode())]
        ) == [True]

    def crashed(self, job: Job, *, delay_ms: int = 0) -> None:
        error = json.dumps({"class": "Crashed", "message": "died of signal 9; 2 other jobs ran in the same process"})
        assert self.queue.settle(
            [
                fail(
                    job,
                    1,
                    2,
                    delay_ms=delay_ms,
                    outcome="crashed",
                    error_class="Crashed",
                    error=error.encode(),
                    quarantine=True,
                )
            ]
        ) == [True]

    def buried(self, job: Job, *, reason: str = "exhausted", **error: str) -> JobView:
        given = {"class": "LookupError", "message": "no", "traceback": TRACEBACK, **error}
        assert self.queue.settle(
            [bury(job, 1, 2, reason=reason, error_class=given["class"][:200], error=json.dumps(given).encode())]
        ) == [True]
        (grave,) = [
            view for view in Inspector(self.queue.registry).graves(job.queue, job.id) if view.job.key == job.key
        ]
        return grave


def every_place(broker: Broker) -> Yard:
    """One job in each place of the queue "orders", named after it."""
    yard = Yard(broker)
    for name in ("gated", "reserved", "failed", "buried"):
        yard.put(name, 5)
    jobs = {job.id: job for job in yard.take()}
    yard.put("gated", 6, delay_ms=600_000)
    yard.failed(jobs["failed"])
    yard.buried(jobs["buried"])
    yard.put("ready", 1)
    yard.put("delayed", 2, delay_ms=3_600_000)
    return yard


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.evil: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        if tag in ("style", "iframe", "object", "embed", "base") or (tag == "script" and not named.get("src")):
            self.evil.append(f"<{tag}>")
        for name, value in attrs:
            leads = name in ("href", "src", "action", "formaction") and (value or "").lower().lstrip()
            if name.startswith("on") or name == "style" or (leads and leads.startswith(("javascript:", "data:"))):
                self.evil.append(f"<{tag} {name}={value!r}>")


def without_seconds(row: Sequence[str]) -> list[str]:
    """Cells without the seconds that pass during a test: "3 min 1 s ago" becomes "3 min ago", "1 s ago" now."""
    return [re.sub(r"\b[1-9] s ago", "now", re.sub(r"(?<=\d min) \d+ s\b", "", cell)) for cell in row]


def tags_of(html: bytes) -> list[str]:
    """The tags of a page; fails if one of them could run something, or would break a strict CSP."""
    parser = _Tags()
    parser.feed(html.decode())
    assert not parser.evil, f"inline script or style: {parser.evil}"
    return parser.tags


def cells(html: bytes, table: str = "result_list") -> list[list[str]]:
    """The texts of a table's body."""
    parser = _Cells(table)
    parser.feed(html.decode())
    return [[" ".join(cell.split()) for cell in row] for row in parser.rows]


class _Cells(HTMLParser):
    def __init__(self, table: str) -> None:
        super().__init__()
        self._table = table
        self._inside = self._body = self._cell = False
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._inside = dict(attrs).get("id") == self._table
        elif tag == "tbody":
            self._body = self._inside
        elif self._body and tag == "tr":
            self.rows.append([])
        elif self._body and tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag in ("tbody", "table"):
            self._body = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data
