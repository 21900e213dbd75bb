"""Conversion of an Arrow batch to bulk entries, a column at a time, byte for byte as ``schedule()`` would store them.

Only the keys of the jobs differ: they are derived from the bulk load, so each attempt at it writes the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.builder import MAX_OPTIONS_BYTES
from ..core.codec import codec_at
from ..core.errors import InvalidJob
from ..core.inputs import check_task_name
from ..core.job import RAW, NewJob, Payload
from ..core.loads import BulkLoad, LoadEntry, entry_of
from ..core.options import OPTIONS
from ..core.times import MAX_DUE_MS, TEN_YEARS_MS
from . import cells
from . import column_parts as parts
from .cells import Bad
from .column_parts import BYTES, check_of, each, raw, row_values
from .write_options import NOW, WriteOptions

_U16: Final = Struct("<H")


@dataclass(frozen=True, slots=True)
class Packed:
    """Jobs of one batch, in its order."""

    entries: list[LoadEntry]
    #: rows of the batch that are not valid jobs, by their position
    bad: Bad


class Packer:
    """Builder of entries from the rows that go to one queue.

    Args:
        kind: kind of the queue: ``python`` or ``pull``.
    """

    def __init__(self, options: WriteOptions, run: BulkLoad, kind: str) -> None:
        self._options = options
        self._pull = kind == "pull"
        self._opened_ms = run.opened_ms
        self._common = options.job_options()
        self._codec = None if options.codec is None else codec_at(options.codec)
        self._kinds: dict[tuple[str, str, int, bool], bytes] = {}

    def pack(self, batch: pa.RecordBatch) -> Packed:
        """Return the entries of a batch whose columns are among :data:`~.write_schema.COLUMNS`."""
        bad: Bad = {}
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        ids = parts.ids(columns["id"], bad)
        dues = self._dues(columns, batch.num_rows, bad)
        texts = self._option_texts(columns, dues, bad)
        merged = "payload" in columns and not self._pull
        names, conflicts, priorities = self._routing_of(columns, merged, bad)
        if merged:
            return self._merged(columns, ids, dues.to_pylist(), texts, (names, conflicts, priorities), bad)
        args = self._args(columns, batch.num_rows, bad)
        routes = zip(each(names, ids), each(conflicts, ids), each(priorities, ids), each(texts, ids), strict=True)
        entries: list[LoadEntry] = [
            (ident, due_ms, body, self._kind(name, conflict, priority, bool(text)), ())
            for row, (ident, due_ms, body, (name, conflict, priority, text)) in enumerate(
                zip(ids, dues.to_pylist(), _bodies(texts, args), routes, strict=True)
            )
            if row not in bad
        ]
        return Packed(entries, bad)

    # -- columns that describe the jobs -------------------------------------------------------------------------------

    def _kind(self, task: str, conflict: str, priority: int, has_options: bool) -> bytes:
        """Return the part of an entry that plain jobs have in common."""
        kind = self._kinds.get((task, conflict, priority, has_options))
        if kind is None:
            due_policy = self._options.due_policy or "replace"
            options = b"{}" if has_options else b""
            like = NewJob("x", task, b"", 0, None, priority, options, b"", conflict, due_policy)
            kind = self._kinds[task, conflict, priority, has_options] = entry_of(like)[3]
        return kind

    def _routing_of(
        self, columns: dict[str, pa.Array], merged: bool, bad: Bad
    ) -> tuple[str | list[str], str | list[str], int | list[int]]:
        """Return task, conflict policy and priority: one value for all jobs, or one per job."""
        options = self._options
        task = RAW if self._pull else options.task or ""
        conflict = options.on_conflict or ("merge" if merged else "ignore")
        names = conflicts = None
        if "task" in columns and not self._pull:
            names = row_values(columns["task"], task, check_task_name, bad)
        elif not task:
            raise InvalidJob("which task? Give the option task, its registered name, or a column task")
        if "on_conflict" in columns:
            conflicts = row_values(columns["on_conflict"], conflict, check_of("on_conflict"), bad)
        for row, value in enumerate(conflicts or [conflict]):
            if value == "merge" and not merged:
                reason = "on_conflict=merge is for jobs with a payload; use ignore, replace or error"
                if conflicts is None:
                    raise InvalidJob(reason)
                bad.setdefault(row, reason)
                conflicts[row] = "ignore"
        priorities = None
        if "priority" in columns:
            priorities = row_values(columns["priority"], options.priority, check_of("priority"), bad)
        return names or task, conflicts or conflict, options.priority if priorities is None else priorities

    def _dues(self, columns: dict[str, pa.Array], n: int, bad: Bad) -> pa.Array:
        """Return the due times in Unix ms."""
        if "due" in columns:
            us = columns["due"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            whole = pc.divide(us, 1000)
            broken = pc.not_equal(us, pc.multiply(whole, 1000))
            dues = pc.add(whole, broken.cast(pa.int64()))  # rounded up, so that no job runs early
            past = pc.less(us, 0)
        elif "due_ms" in columns:
            dues = columns["due_ms"].cast(pa.int64())
            past = pc.less(dues, 0)
        else:
            return pa.repeat(pa.scalar(self._opened_ms, pa.int64()), n)
        if self._options.null_due == NOW:
            dues, past = pc.fill_null(dues, self._opened_ms), pc.fill_null(past, False)
        last = MAX_DUE_MS if self._options.allow_far else min(MAX_DUE_MS, self._opened_ms + TEN_YEARS_MS)
        if dues.null_count or pc.any(past).as_py() or pc.any(pc.greater(dues, last)).as_py():
            for row, (ms, early) in enumerate(zip(dues.to_pylist(), past.to_pylist(), strict=True)):
                if ms is None:
                    bad.setdefault(
                        row,
                        "due is null; give each row a time that can be read, or leave the column out: then all jobs "
                        "are due at once",
                    )
                elif early:
                    bad.setdefault(row, "due is before 1970; check its unit")
                elif ms > last:
                    far = ms <= MAX_DUE_MS
                    hint = "the option allowFar=true allows it" if far else "times up to the year 2255 can be stored"
                    bad.setdefault(row, f"due is more than ten years ahead ({ms} ms since 1970); {hint}")
        return pc.fill_null(dues, 0)

    # -- options stored with a job ------------------------------------------------------------------------------------

    def _option_texts(self, columns: dict[str, pa.Array], dues: pa.Array, bad: Bad) -> bytes | list[bytes]:
        """Return canonical JSON as ``core/builder.py`` writes it: one text for all jobs, or one per job."""
        read: dict[str, list[Any]] = {}
        for name, option in OPTIONS.items():
            if option.member and name in columns and name != "context":
                read[option.member] = row_values(columns[name], None, check_of(name), bad)
        if "context" in columns:
            read["context"] = parts.objects(columns["context"], "context", bad)
        if "expires" in columns:
            us = columns["expires"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            read["expires_ms"] = [None if one is None else -(-one // 1000) for one in us]
        if not read:
            return parts.canonical(self._common) if self._common else b""
        texts = []
        for row, (due_ms, *values) in enumerate(zip(dues.to_pylist(), *read.values(), strict=True)):
            own = {name: value for name, value in zip(read, values, strict=True) if value is not None}
            texts.append(self._option_text(row, {**self._common, **own}, due_ms, bad))
        return texts

    def _option_text(self, row: int, options: dict[str, Any], due_ms: int, bad: Bad) -> bytes:
        if "expires_ms" in options:
            options.pop("expires_in_ms", None)
            if options["expires_ms"] <= due_ms:
                bad.setdefault(row, "expires is not after the due time, so the job would never run; give a later time")
        if not options:
            return b""
        try:
            encoded = parts.canonical(options)
        except (TypeError, ValueError, RecursionError) as error:
            bad.setdefault(row, f"context may hold plain JSON values only: {error}")
            return b""
        if len(encoded) > MAX_OPTIONS_BYTES:
            bad.setdefault(
                row,
                f"context and the other options of the job take {len(encoded)} bytes, at most {MAX_OPTIONS_BYTES} fit",
            )
            return b""
        return encoded

    # -- arguments and bodies ----------------------------------------------------------------------------------------

    def _args(self, columns: dict[str, pa.Array], n: int, bad: Bad) -> list[bytes]:
        if self._pull:
            args = raw(columns["payload"], bad) if "payload" in columns else [b""] * n
        elif self._options.encoded:
            args = raw(columns["args"], bad) if "args" in columns else [b""] * n
        else:
            args = parts.arguments(columns.get("args"), columns.get("kwargs"), n, bad)
            args = parts.coded(args, self._codec, bad)
        self._check_sizes(args, "the arguments take", bad)
        return args

    def _check_sizes(self, found: list[bytes], what: str, bad: Bad) -> None:
        limit = self._options.max_args_bytes
        if found and len(max(found, key=len)) > limit:
            for row, data in enumerate(found):
                if len(data) > limit:
                    bad.setdefault(
                        row,
                        f"{what} {len(data)} bytes, at most {limit} are stored; store the data "
                        "elsewhere and pass its key",
                    )

    def _merged(
        self,
        columns: dict[str, pa.Array],
        ids: list[bytes],
        dues: list[int],
        texts: bytes | list[bytes],
        routing: tuple[Any, Any, Any],
        bad: Bad,
    ) -> Packed:
        """Build jobs with a payload one by one; their records have too many parts for a columnar path to pay off."""
        payloads = self._payloads(columns["payload"], bad)
        scores = cells.score_texts(columns["score"], bad) if "score" in columns else [""] * len(ids)
        names, conflicts, priorities = (each(column, ids) for column in routing)
        options = self._options
        entries: list[LoadEntry] = []
        for row, (ident, text) in enumerate(zip(ids, each(texts, ids), strict=True)):
            if row in bad:
                continue
            conflict = conflicts[row]
            new = NewJob(
                ident.decode(),
                names[row],
                b"",
                dues[row],
                None,
                priorities[row],
                text,
                b"",
                conflict,
                options.due_policy or ("keep" if conflict == "merge" else "replace"),
                payload=Payload(payloads[row], scores[row], b""),
                score_policy=options.score_policy,
                payloads=options.payloads,
                max_payloads=1 if options.payloads != "all" else options.max_payloads,
            )
            entries.append(entry_of(new))
        return Packed(entries, bad)

    def _payloads(self, array: pa.Array, bad: Bad) -> list[bytes]:
        if self._options.encoded:
            payloads = raw(array, bad)
        else:
            payloads = parts.coded(cells.json_texts(array, "payload", bad).cast(BYTES).to_pylist(), self._codec, bad)
        self._check_sizes(payloads, "payload takes", bad)
        return payloads


def _bodies(texts: bytes | list[bytes], args: list[bytes]) -> list[bytes]:
    """Return options and arguments; the chunk prepends the keys."""
    if not texts:
        return args
    return [
        _U16.pack(len(text)) + text + arg if text else arg for text, arg in zip(each(texts, args), args, strict=True)
    ]
