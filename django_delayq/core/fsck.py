"""Check of the invariants of the data model, with repair where possible.

A live id is in exactly one of due and lease, in the class that its body names; gated content exists only behind an
attempt; a job in a lane has a place in its order, and the lane a turn; a body exists exactly for a live id; a token
exactly for a lease; the failure indexes match the state; payloads belong to a live merged job and are in order; a
morgue record is in both its indexes; the request window has its stated length; a completion mark belongs to a durable
key; no id is live in two epochs; the quotas of a queue's shards do not exceed its limit. Each id is examined inside one
script, so a busy system causes no false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from . import quotas
from .actions import live_ids
from .broker import Broker
from .bulk import Progress
from .counts import count_shards
from .errors import QueueUnavailable
from .queue import Queue
from .records.frames import is_mark, pack
from .records.keys import DUE_KEYS, MAX_SHARDS
from .redis.scripts import clear_errors

_CHUNK: Final = 100
#: bytes behind the request id in an entry of the request window
_TIMES: Final = 12
_ID_SETS: Final = (*DUE_KEYS, "lease", "failed", "failures")
_ID_HASHES: Final = ("body", "state", "gate")
_HASHES: Final = (*_ID_HASHES, "payload", "grave")
_PAYLOAD_MEMBER_TAIL: Final = 34  # \0, sortable 8, arrival 8, digest 16, slot 1
_PAYLOAD_FIELD_TAIL: Final = 18  # \0, digest 16, slot 1


@dataclass(slots=True)
class Report:
    """Result of a check. ``violations`` are sentences; ``repaired`` is the number of violations repaired."""

    violations: list[str] = field(default_factory=list)
    repaired: int = 0
    checked: int = 0
    #: of a cluster: parts of queues that could not be checked, because their node does not answer
    unreachable: list[str] = field(default_factory=list)
    #: estimate of the number of entries, and the callback that gets it
    total: int = 0
    progress: Progress | None = None

    def count(self, entries: int) -> None:
        """Add to the number of checked entries, and report the progress."""
        self.checked += entries
        if self.progress:
            self.progress(self.checked, max(self.checked, self.total))


def check(
    broker: Broker, *, queues: Iterable[str] = (), repair: bool = False, progress: Progress | None = None
) -> Report:
    """Examine every id of the named queues (all if none is named).

    Args:
        repair: repair violations: a job without a place becomes due now, an index entry without a body is dropped.
        progress: called after each chunk with the number of entries checked and an estimate of the total.

    Raises:
        InvalidJob: a queue of this name does not exist.
    """
    opened = [broker.require_queue(name) for name in queues] or broker.reachable_queues()
    report = Report(progress=progress, total=sum(map(_size, opened)) if progress else 0)
    silent: set[str] = set()
    for queue in opened:
        left_out = sum(not _check_shard(queue, number, report, silent, repair=repair) for number in queue.numbers)
        if left_out:
            report.unreachable.append(f"{left_out} of {len(queue.numbers)} shards of {queue.name}")
        else:
            found = quotas.violations(queue)
            report.violations += found
            report.repaired += quotas.divide(queue) if found and repair else 0
    report.unreachable += sorted(silent)
    return report


def _check_shard(queue: Queue, number: int, report: Report, silent: set[str], *, repair: bool) -> bool:
    """Check a shard; return False if its node, which is then one of ``silent``, does not answer."""
    connection = queue.deployment.connection
    slots = connection.slots_of(queue.shard(number).keys[0])
    if slots in silent:
        return False
    try:
        _ShardCheck(queue, number, report, repair=repair).run()
    except QueueUnavailable:
        if not connection.cluster:
            raise
        silent.add(slots)
        return False
    return True


def _size(queue: Queue) -> int:
    """Return about how many entries of a queue are checked; 0 if it cannot be counted now."""
    try:
        counts = count_shards(queue, queue.numbers)
    except QueueUnavailable:
        return 0
    return counts.live + counts.morgue


def assert_invariants(broker: Broker) -> None:
    """Raise AssertionError with all violations; for tests."""
    report = check(broker)
    if report.violations or report.unreachable:
        raise AssertionError("\n".join([*report.violations, *report.unreachable]))


class _ShardCheck:
    """Check of one shard."""

    def __init__(self, queue: Queue, number: int, report: Report, *, repair: bool) -> None:
        self._queue = queue
        self._shard = queue.shard(number)
        self._report = report
        self._repair = repair
        self._client: Any = queue.deployment.client
        *_, places = self._call("lengths")
        stored = {self._shard.keys[place - 1] for place in places}
        #: names and keys of the structures that are not empty; most are
        self._stored = {name: key for name, key in self._shard.names.items() if key in stored}

    def run(self) -> None:
        """Check the shard."""
        # Payloads first: a job whose payloads are in no order must get them back before it is taken for an empty one.
        subjects = {
            "payload": self._members("payload"),
            "id": self._idents(),
            "lane": self._members("lane_order"),
            "turn": self._members("turns"),
            "grave": self._members("morgue", "morgue_id", "grave"),
        }
        for kind, members in subjects.items():
            for chunk in _chunks(members):
                self._examine(kind, chunk)
        self._check_lengths()
        self._check_marks()
        self._check_epochs()

    def _call(self, script: str, *args: object) -> Any:
        shard, scripts = self._shard, self._queue.deployment.scripts
        return scripts.call(script, shard.keys, b"", shard.constants, *args)

    def _members(self, *names: str) -> Iterator[bytes]:
        """Yield the members of sorted sets, and the fields of hashes."""
        for name in names:
            if name in self._stored:
                scan = self._client.hscan_iter if name in _HASHES else self._client.zscan_iter
                with clear_errors():
                    for member, _ in scan(self._stored[name], count=1000):
                        yield member

    def _idents(self) -> Iterator[bytes]:
        yield from self._members(*_ID_SETS, *_ID_HASHES)
        for member in self._members("order"):
            yield member[:-_PAYLOAD_MEMBER_TAIL]
        for member in self._members("payload"):
            yield member[:-_PAYLOAD_FIELD_TAIL]

    def _examine(self, kind: str, members: list[bytes]) -> None:
        findings = self._call("examine", b"1" if self._repair else b"0", kind, pack(members))
        self._report.count(len(members))
        for violation, subject in zip(findings[::2], findings[1::2], strict=True):
            self._add(violation.decode(), subject, repaired=self._repair)

    def _check_lengths(self) -> None:
        """Check that structures of equal length are equally long."""
        payloads, order, replies, window, laned, lane_order, _ = self._call("lengths")
        if payloads != order:
            self._add(f"{payloads} payloads, but {order} of them in order")
        if laned != lane_order:
            self._add(f"{laned} jobs in lanes, but {lane_order} of them in order")
        if replies != window:
            if self._repair:
                self._mend_window()
            self._add(f"{replies} remembered replies, but {window} in the window", repaired=self._repair)

    def _mend_window(self) -> None:
        client, reply, window = self._client, self._shard.names["reply"], self._shard.names["window"]
        with clear_errors():
            # The window is read after the replies, and the replies are read one by one after the window, so that
            # entries that arrive meanwhile are not taken for orphans.
            fields = set(client.hkeys(reply))
            entries = client.lrange(window, 0, -1)
            for orphan in fields.difference(entry[:-_TIMES] for entry in entries):
                client.hdel(reply, orphan)
            for entry in entries:
                if not client.hexists(reply, entry[:-_TIMES]):
                    client.lrem(window, 1, entry)

    def _check_marks(self) -> None:
        """Check that every completion mark belongs to a durable key."""
        marks = self._shard.names["marks"]
        with clear_errors():
            for key, mark in self._client.hscan_iter(marks, count=1000):
                if not is_mark(key, mark):
                    if self._repair:
                        self._client.hdel(marks, key)
                    self._add("mark without durable key", key, repaired=self._repair)

    def _check_epochs(self) -> None:
        """Check that no id lives in an older epoch, too. Only an operator can decide which one is right."""
        epoch = self._shard.number // MAX_SHARDS
        if epoch == self._queue.epochs[0][0]:
            return
        for chunk in _chunks(self._members("body")):
            # No false alarm in a busy system: older shards are closed, so an id that is live there has been live all
            # the time.
            for ident in live_ids(self._queue, chunk, before=epoch):
                self._add("live in two epochs", ident)

    def _add(self, violation: str, subject: bytes | None = None, *, repaired: bool = False) -> None:
        where = f"{self._queue.name}[{self._shard.number}]"
        if subject is not None:  # an id or another entry
            where += f" {subject.decode(errors='backslashreplace')!r}"
        self._report.violations.append(f"{where}: {violation}")
        self._report.repaired += repaired


def _chunks(members: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield chunks without recent duplicates, because one id occurs in several indexes."""
    recent: set[bytes] = set()

    def fresh() -> Iterator[bytes]:
        for member in members:
            if member and member not in recent:
                recent.add(member)
                if len(recent) > 1_000_000:
                    recent.clear()
                yield member

    unique = fresh()
    while chunk := list(islice(unique, _CHUNK)):
        yield chunk
