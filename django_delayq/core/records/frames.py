"""Values in MessagePack, as the scripts read and write them with Redis's library ``cmsgpack``.

That library knows one type of bytes, so texts come back as bytes. A map leaves out what has its default.
"""

from __future__ import annotations

from typing import Any

import msgpack


def pack(value: Any) -> bytes:
    """Return a value in MessagePack."""
    return bytes(msgpack.packb(value, use_bin_type=False))


def unpack(packed: bytes) -> Any:
    """Return a value from MessagePack; texts are bytes."""
    return msgpack.unpackb(packed, raw=True, strict_map_key=False)


def unpack_fields(packed: bytes) -> dict[str, Any]:
    """Return a map by the names of its fields; b"" is an empty one."""
    return {name.decode(): value for name, value in unpack(packed).items()} if packed else {}
