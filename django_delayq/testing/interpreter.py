"""Lua interpreter for the queue's scripts: Lua 5.1 with the functions of Redis, and its libraries ``struct`` and
``cmsgpack``.

The interpreter of fakeredis compiles a script anew for each call, and lacks both.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgpack
from fakeredis._helpers import SimpleError, SimpleString
from lupa import lua51

#: runs a command of a script: its name and its arguments
Call = Callable[[bytes, list[bytes]], Any]

_LIBRARIES: Final = """
function(call, sha1hex, pack, unpack, pack_messages, unpack_one, unpack_limit)
  redis = { call = call, sha1hex = sha1hex }
  function redis.pcall(...)
    local ok, reply = pcall(call, ...)
    return ok and reply or { err = tostring(reply) }
  end
  function redis.status_reply(text) return { ok = text } end
  function redis.error_reply(text) return { err = text } end
  struct = { pack = pack, unpack = unpack }
  cmsgpack = { pack = pack_messages, unpack_one = unpack_one, unpack_limit = unpack_limit }
  function cmsgpack.unpack(data) return select(2, unpack_limit(data, math.huge)) end
end
"""
_SET_ARGUMENTS: Final = "function(keys, argv) KEYS, ARGV = keys, argv end"


class Interpreter:
    """Interpreter shared by all in-memory servers of the process, so that a script is compiled once."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._lua.eval(_LIBRARIES)(
            self._on_call, _sha1hex, pack, unpack, pack_messages, self._unpack_one, self._unpack_limit
        )
        self._set_arguments = self._lua.eval(_SET_ARGUMENTS)
        self._compiled: dict[bytes, Callable[[], Any]] = {}
        self._lock = threading.Lock()
        self._call: Call = _no_call

    def run(self, source: bytes, keys: list[bytes], argv: list[bytes], call: Call) -> Any:
        """Return the reply of a script in the form in which fakeredis stores replies.

        Raises:
            SimpleError: the script, or a command in it, failed.
        """
        with self._lock:
            self._call = call
            try:
                script = self._compiled.get(source)
                if script is None:
                    # Redis reads the flags in the first line, Lua does not.
                    script = self._compiled[source] = self._lua.compile(re.sub(rb"^#!", b"--", source))
                self._set_arguments(self._lua.table_from(keys), self._lua.table_from(argv))
                return _reply_of(script())
            except lua51.LuaError as error:
                raise SimpleError(f"ERR Error running script: {error}") from error
            finally:
                self._call = _no_call

    def _on_call(self, command: bytes, *arguments: bytes | float) -> Any:
        return self._value_of(self._call(command, [_bytes_of(argument) for argument in arguments]))

    def _unpack_one(self, data: bytes, offset: float = 0) -> tuple[Any, ...]:
        return self._unpack_limit(data, 1, offset)

    def _unpack_limit(self, data: bytes, limit: float, offset: float = 0) -> tuple[Any, ...]:
        """Return the offset behind the values, -1 = the end of the data, and the values: at most ``limit``."""
        end, values = unpack_messages(data, limit, int(offset))
        tables = self._lua.table_from(values, recursive=True)
        return (end, *(tables[place] for place in range(1, len(values) + 1)))

    def _value_of(self, reply: Any) -> Any:
        """Return the Lua value of a command's reply."""
        if isinstance(reply, list):
            return self._lua.table_from([self._value_of(one) for one in reply])
        if isinstance(reply, SimpleString):
            return self._lua.table_from({b"ok": reply.value})
        if isinstance(reply, SimpleError):
            raise reply
        return False if reply is None else reply


def _no_call(command: bytes, arguments: list[bytes]) -> Any:
    raise SimpleError("ERR redis.call() outside of a script")


def _bytes_of(argument: bytes | float) -> bytes:
    return argument if isinstance(argument, bytes) else f"{argument:.17g}".encode()


def _reply_of(value: Any) -> Any:
    """Return the reply of a script that returned this Lua value."""
    if lua51.lua_type(value) != "table":
        return (1 if value else None) if isinstance(value, bool) else int(value) if type(value) is float else value
    if value[b"ok"] is not None:
        return SimpleString(value[b"ok"])
    if value[b"err"] is not None:
        raise SimpleError(value[b"err"].decode())
    return list(_replies_of(value))


def _replies_of(table: Any) -> Iterator[Any]:
    place = 1
    while (value := table[place]) is not None:
        yield _reply_of(value)
        place += 1


def _sha1hex(data: bytes) -> bytes:
    return hashlib.sha1(data).hexdigest().encode()  # noqa: S324 (Redis's own function)


# -- struct ------------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"([<>])|(B|I2|I4|d)|c(\d+)")
_CODES: Final = {"B": "B", "I2": "H", "I4": "I", "d": "d"}
#: a number, or None and the length of a string (0 = the number in front of it)
_Field = tuple[struct.Struct | None, int]


@cache
def _fields(layout: bytes) -> tuple[_Field, ...]:
    fields: list[_Field] = []
    order = "<"
    for sign, number, length in _TOKEN.findall(layout.decode()):
        if sign:
            order = sign
        else:
            fields.append((struct.Struct(order + _CODES[number]), 0) if number else (None, int(length)))
    return tuple(fields)


def pack(layout: bytes, *values: Any) -> bytes:
    """Return values in a layout of the Lua library ``struct``, as far as the queue's scripts use it."""
    packed = []
    for (number, length), value in zip(_fields(layout), values, strict=True):
        if number is None:
            packed.append(value[:length] if length else value)
        else:
            # As Lua, which takes the text of a number for the number.
            packed.append(number.pack(float(value) if number.format.endswith("d") else int(float(value))))
    return b"".join(packed)


def unpack(layout: bytes, data: bytes, position: float = 1) -> tuple[Any, ...]:
    """Return the values at a position (counted from 1), and the position behind them."""
    at = int(position) - 1
    values: list[Any] = []
    for number, length in _fields(layout):
        size = number.size if number is not None else length or int(values.pop())
        if at + size > len(data):
            raise SimpleError("ERR data string too short")
        values.append(data[at : at + size] if number is None else number.unpack_from(data, at)[0])
        at += size
    return (*values, at + 1)


# -- cmsgpack ----------------------------------------------------------------------------------------------------------

_DEEPEST: Final = 16


def pack_messages(*values: Any) -> bytes:
    """Return values one after another as Redis's library ``cmsgpack`` packs them, byte by byte."""
    return b"".join(_pack_message(value, 0) for value in values)


def _pack_message(value: Any, depth: int) -> bytes:
    if isinstance(value, bytes):
        # A string: Redis's library knows no other type of bytes.
        return bytes(msgpack.packb(value.decode(errors="surrogateescape"), unicode_errors="surrogateescape"))
    if isinstance(value, float):
        return bytes(msgpack.packb(value, use_single_float=_fits_single(value)))
    if lua51.lua_type(value) != "table" or depth == _DEEPEST:
        return bytes(msgpack.packb(value if isinstance(value, bool | int) else None))
    packer, entries = msgpack.Packer(), dict(value.items())
    if set(entries) == set(range(1, len(entries) + 1)):
        parts = [packer.pack_array_header(len(entries)), *(entries[place] for place in range(1, len(entries) + 1))]
    else:
        parts = [packer.pack_map_header(len(entries)), *(part for entry in entries.items() for part in entry)]
    return b"".join([parts[0], *(_pack_message(part, depth + 1) for part in parts[1:])])


def _fits_single(value: float) -> bool:
    try:
        return bool(struct.unpack(">f", struct.pack(">f", value))[0] == value)
    except OverflowError:
        return False


def unpack_messages(data: bytes, limit: float, offset: int) -> tuple[int, list[Any]]:
    """Return the offset behind the values from an offset on, -1 = the end of the data, and at most ``limit`` values."""
    if offset > len(data):
        raise SimpleError(f"ERR Start offset {offset} greater than input length {len(data)}.")
    values: list[Any] = []
    unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(memoryview(data)[offset:])
    try:
        while len(values) < limit and offset + unpacker.tell() < len(data):
            values.append(unpacker.unpack())
    except msgpack.OutOfData as error:
        raise SimpleError("ERR Missing bytes in input.") from error
    end = offset + unpacker.tell()
    return -1 if end == len(data) else end, values
