"""Codec for MessagePack: ``DELAYQ = {"CODEC": "django_delayq.messagepack.codec"}``.

Integers have at most 64 bits in MessagePack; larger ones are refused.
"""

from __future__ import annotations

from typing import Any

import msgpack


class MessagePack:
    """Codec that stores plain values as MessagePack."""

    name = "msgpack"
    number = 1

    def dumps(self, value: Any) -> bytes:
        """Return the value as MessagePack."""
        packed: bytes = msgpack.packb(value)
        return packed

    def loads(self, data: bytes) -> Any:
        """Return the value. Extension types, which JSON lacks, are refused."""
        return msgpack.unpackb(data, ext_hook=_refuse)


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not stored by this package")


codec = MessagePack()
