"""Kick and discard of morgue records while a queue has more than one epoch.

A record lies in the shard in which its job died. Its job may be put back only where :mod:`.resharding` allows: in an
old shard if the id is live there, otherwise in the present epoch. If that is another shard, the content is put there
first and the record is removed afterwards. The request id of both calls follows from the record, so that concurrent or
repeated calls put nothing back twice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ..outcome import MOVED_REPLY
from ..records.frames import take_u8, take_u16, take_u32, unpack_names
from ..records.keys import MAX_SHARDS, number_of

if TYPE_CHECKING:
    from ..queue import Queue

_HEAD: Final = struct.Struct("<ddHHH")
_TASK_END: Final = 3
KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class _Grave:
    """Fields of a morgue record that are needed to put its job back."""

    shard: int
    key: bytes
    buried_us: float
    #: its task, or b"" when the body cannot be read; then the body is complete, otherwise it lacks the task's number
    task: bytes
    body: bytes
    payloads: bytes

    @property
    def request(self) -> bytes:
        """Request id shared by all callers that put the job of this record back."""
        seed = b"%d %b %r" % (self.shard, self.key, self.buried_us)
        return hashlib.blake2b(seed, digest_size=16).digest()


def kick(queue: Queue, ident: str, key: bytes, delay_ms: int, *, replace: bool, request: bytes | None = None) -> str:
    """See :meth:`Queue.kick`."""
    again = b"1" if replace else b"0"
    if len(queue.epochs) == 1:
        number = queue.shard_of(ident)
        reply: bytes = queue.call("kick", number, ident.encode(), key, delay_ms, again, request=request)
        if reply != MOVED_REPLY and (reply or not queue.reload()):
            return reply.decode()
    grave = _find(queue, ident, key)
    while grave is None:
        if not queue.reload():
            return ""
        grave = _find(queue, ident, key)
    return _bring_back(queue, ident, grave, delay_ms, again)


def _bring_back(queue: Queue, ident: str, grave: _Grave, delay_ms: int, again: bytes) -> str:
    def ask(number: int) -> bytes | None:
        if number == grave.shard:
            reply: bytes = queue.call("kick", number, ident.encode(), grave.key, delay_ms, again)
        else:
            reply = queue.call(
                "adopt",
                number,
                ident.encode(),
                delay_ms,
                again,
                grave.task,
                grave.body,
                grave.payloads,
                request=grave.request,
            )
            if reply == b"kicked":
                queue.call("discard", grave.shard, ident.encode(), grave.key, b"1", request=grave.request)
        return None if reply == MOVED_REPLY else reply

    return (queue.visit(ident, ask) or b"").decode()


def discard(queue: Queue, ident: str, key: bytes, *, request: bytes | None = None) -> bool:
    """See :meth:`Queue.discard`."""
    while True:
        if not key and len(queue.epochs) > 1:
            names = _names(queue, ident)
            key = names[0][1][-KEY_BYTES:] if names else b""
        for number in queue.homes(ident):
            if queue.call("discard", number, ident.encode(), key, request=request) == b"1":
                return True
        if not queue.reload():
            return False


def _find(queue: Queue, ident: str, key: bytes) -> _Grave | None:
    """Return the morgue record of this generation, or the latest of the id, from any epoch."""
    name = ident.encode() + b"\0" + key
    names = [(number, name) for number in queue.homes(ident)] if key else _names(queue, ident)
    for number, name in names:
        grave = _unpack(number, queue.call("graves", number, len(name).to_bytes(2, "little") + name, request=b""))
        if grave is not None:
            return grave
    return None


def _names(queue: Queue, ident: str) -> list[tuple[int, bytes]]:
    """Return shard and name of each record of an id, the latest first."""
    found = []
    for number in queue.homes(ident):
        answer = queue.call("burials", number, ident.encode(), request=b"")
        found += [(float(at), number, name) for name, at in zip(answer[::2], answer[1::2], strict=True)]
    return [(number, name) for _, number, name in sorted(found, reverse=True)]


def _unpack(number: int, frame: bytes) -> _Grave | None:
    """Return the record in a reply; None if it is gone."""
    tasks, at = unpack_names(frame, 0)
    if at == len(frame):
        return None
    name, at = take_u16(frame, at)
    record, at = take_u32(frame, at + 4)  # no bytes were left out
    _, buried_us, *_ = _HEAD.unpack_from(record)
    inner = _HEAD.size
    for _ in range(3):  # outcome, reason, error class
        _, inner = take_u8(record, inner)
    _, inner = take_u16(record, inner)
    body, inner = take_u32(record, inner)
    task = tasks.get(int.from_bytes(body[1:3], "little"), "").encode() if len(body) > _TASK_END else b""
    if task:
        body = body[:1] + body[_TASK_END:]
    elif len(body) >= _TASK_END:  # in another shard the number might name another task
        body = body[:1] + b"\xff\xff" + body[_TASK_END:]
    return _Grave(number, name[-KEY_BYTES:], buried_us, task, body, record[inner:])


def live_in_older(queue: Queue, number: int, idents: Sequence[bytes]) -> set[bytes]:
    """Return the ids that are live in a shard of an epoch before that of shard ``number``.

    The other ids cannot become live there any more, so they need to be handled in their own shard only.
    """
    found: set[bytes] = set()
    for epoch, shards in queue.epochs:
        if epoch < number // MAX_SHARDS:
            places: dict[int, list[bytes]] = {}
            for ident in idents:
                places.setdefault(number_of(epoch, crc32(ident) % shards), []).append(ident)
            for other, mine in places.items():
                frame = b"".join(b"%c%b" % (len(ident), ident) for ident in mine)
                answers = queue.call("living", other, frame, request=b"")
                found.update(ident for ident, answer in zip(mine, answers, strict=True) if answer == ord("1"))
    return found
