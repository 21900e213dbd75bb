"""Check of the invariants of the data model, with repair where possible.

A live id is in exactly one of due and lease, in the class that its body names; gated content exists only behind an
attempt; a parked job has a place in the order of its task; a body exists exactly for a live id; a token exactly for a
lease; the failure indexes match the state; payloads belong to a live merged job and are in order; a morgue record is in
both its indexes; the request window has its stated length; a completion mark belongs to a durable key; no id is live in
two epochs; samples of depths are whole; the quotas of a queue's shards do not exceed its limit. Each id is examined
inside one script, so a busy system causes no false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from .. import depths
from ..marks import is_mark
from ..records.keys import DUE_KEYS, Shard, number_of
from ..redis.scripts import clear_errors
from ..sending import quotas
from .morgue import live_in_older
from .selection import Progress

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

_CHUNK: Final = 100
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
    #: estimate of the number of entries, and the callback that gets it
    total: int = 0
    progress: Progress | None = None

    def count(self, entries: int) -> None:
        """Count checked entries."""
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
    opened = [broker.require_queue(name) for name in queues] or broker.queues()
    report = Report(progress=progress, total=sum(map(_size, opened)) if progress else 0)
    for queue in opened:
        for number in queue.numbers:
            _check_shard(broker, queue, queue.shard(number), report, repair)
        _check_epochs(queue, report)
        report.violations += depths.violations(broker, queue.name)
        _check_quotas(queue, report, repair)
    return report


def _size(queue: Queue) -> int:
    """Return about how many entries of a queue are checked."""
    with clear_errors():
        shards = map(queue.shard, queue.numbers)
        names = (shard.names[kind] for shard in shards for kind in ("body", "payload", "grave"))
        return sum(int(queue.broker.client.hlen(name)) for name in names)


def assert_invariants(broker: Broker) -> None:
    """Raise AssertionError with all violations; for tests."""
    report = check(broker)
    if report.violations:
        raise AssertionError("\n".join(report.violations))


def _check_shard(broker: Broker, queue: Queue, shard: Shard, report: Report, repair: bool) -> None:
    where = f"{queue.name}[{shard.number}]"
    stored = _stored(broker, shard)
    # Payloads first: a job whose payloads are in no order must get them back before it is taken for an empty one.
    for chunk in _chunks(_payloads(broker.client, stored)):
        _examine(broker, shard, where, report, repair, len(chunk), payloads=b"".join(map(_framed, chunk)))
    for chunk in _chunks(_idents(broker.client, stored)):
        frame = b"".join(bytes((len(ident),)) + ident for ident in chunk)
        _examine(broker, shard, where, report, repair, len(chunk), idents=frame)
    for chunk in _chunks(_members(broker.client, stored, "parked_order")):
        _examine(broker, shard, where, report, repair, len(chunk), parked=b"".join(map(_framed, chunk)))
    for chunk in _chunks(_graves(broker.client, stored)):
        _examine(broker, shard, where, report, repair, len(chunk), graves=b"".join(map(_framed, chunk)))
    _check_lengths(broker, shard, where, report, repair)
    _check_marks(broker.client, shard, where, report, repair)


def _check_epochs(queue: Queue, report: Report) -> None:
    """Check that no id lives in two epochs. Only an operator can decide which one is right, so it is not repaired."""
    for epoch, shards in queue.epochs[1:]:
        for place in range(shards):
            number = number_of(epoch, place)
            for chunk in _chunks(_live(queue, number)):
                # No false alarm in a busy system: older shards are closed, so an id that is live there has been live
                # all the time.
                for ident in live_in_older(queue, number, chunk):
                    report.violations.append(
                        f"{queue.name}[{number}] {ident.decode(errors='backslashreplace')!r}: live in two epochs"
                    )


def _check_quotas(queue: Queue, report: Report, repair: bool) -> None:
    found = quotas.violations(queue)
    report.violations += found
    if found and repair:
        report.repaired += quotas.divide(queue)


def _live(queue: Queue, number: int) -> Iterator[bytes]:
    with clear_errors():
        for ident, _ in queue.broker.client.hscan_iter(queue.shard(number).names["body"], count=1000):
            yield ident


def _framed(member: bytes) -> bytes:
    return len(member).to_bytes(2, "little") + member


def _examine(
    broker: Broker,
    shard: Shard,
    where: str,
    report: Report,
    repair: bool,
    n: int,
    *,
    idents: bytes = b"",
    graves: bytes = b"",
    payloads: bytes = b"",
    parked: bytes = b"",
) -> None:
    findings = broker.scripts.call(
        "examine", shard.keys, b"", shard.constants, b"1" if repair else b"0", idents, graves, payloads, parked
    )
    report.count(n)
    for violation, subject in zip(findings[::2], findings[1::2], strict=True):
        report.violations.append(f"{where} {subject.decode(errors='backslashreplace')!r}: {violation.decode()}")
        report.repaired += repair


def _check_lengths(broker: Broker, shard: Shard, where: str, report: Report, repair: bool) -> None:
    """Check that structures of equal length are equally long."""
    payloads, order, replies, window, parked, parked_order, _ = broker.scripts.call(
        "lengths", shard.keys, b"", shard.constants
    )
    if payloads != order:
        report.violations.append(f"{where}: {payloads} payloads, but {order} of them in order")
    if parked != parked_order:
        report.violations.append(f"{where}: {parked} parked jobs, but {parked_order} of them in order")
    if replies != window:
        report.violations.append(f"{where}: {replies} remembered replies, but {window} in the window")
        if repair:
            _mend_window(broker.client, shard.names["reply"], shard.names["window"])
            report.repaired += 1


def _check_marks(client: Any, shard: Shard, where: str, report: Report, repair: bool) -> None:
    """Check that every completion mark belongs to a durable key."""
    with clear_errors():
        for key, mark in client.hscan_iter(shard.names["marks"], count=1000):
            if not is_mark(key, mark):
                report.violations.append(f"{where} {key!r}: mark without durable key")
                if repair:
                    client.hdel(shard.names["marks"], key)
                    report.repaired += 1


def _mend_window(client: Any, reply: bytes, window: bytes) -> None:
    with clear_errors():
        # The window is read after the replies, and the replies are read one by one after the window, so that entries
        # that arrive meanwhile are not taken for orphans.
        fields = set(client.hkeys(reply))
        entries = client.lrange(window, 0, -1)
        for orphan in fields.difference(entry[:-8] for entry in entries):
            client.hdel(reply, orphan)
        for entry in entries:
            if not client.hexists(reply, entry[:-8]):
                client.lrem(window, 1, entry)


def _stored(broker: Broker, shard: Shard) -> dict[str, bytes]:
    """Return the names and keys of those structures of a shard that are not empty; most are."""
    *_, places = broker.scripts.call("lengths", shard.keys, b"", shard.constants)
    stored = {shard.keys[place - 1] for place in places}
    return {name: key for name, key in shard.names.items() if key in stored}


def _idents(client: Any, stored: dict[str, bytes]) -> Iterator[bytes]:
    for name in (*_ID_SETS, *_ID_HASHES):
        yield from _members(client, stored, name)
    for member in _members(client, stored, "order"):
        yield member[:-_PAYLOAD_MEMBER_TAIL]
    for member in _members(client, stored, "payload"):
        yield member[:-_PAYLOAD_FIELD_TAIL]


def _payloads(client: Any, stored: dict[str, bytes]) -> Iterator[bytes]:
    return _members(client, stored, "payload")


def _graves(client: Any, stored: dict[str, bytes]) -> Iterator[bytes]:
    for name in ("morgue", "morgue_id", "grave"):
        yield from _members(client, stored, name)


def _members(client: Any, stored: dict[str, bytes], name: str) -> Iterator[bytes]:
    """Yield the members of a sorted set or the fields of a hash."""
    if name not in stored:
        return
    scan = client.hscan_iter if name in _HASHES else client.zscan_iter
    with clear_errors():
        for member, _ in scan(stored[name], count=1000):
            yield member


def _chunks(members: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield chunks without recent duplicates, because one id occurs in several indexes."""
    recent: dict[bytes, None] = {}

    def fresh() -> Iterator[bytes]:
        for member in members:
            if member and member not in recent:
                recent[member] = None
                if len(recent) > 1_000_000:
                    recent.clear()
                yield member

    unique = fresh()
    while chunk := list(islice(unique, _CHUNK)):
        yield chunk
