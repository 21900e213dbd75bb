"""Lua interpreter for the queue's scripts: Lua 5.1 with the functions of Redis, and its library ``struct``.

The interpreter of fakeredis compiles a script anew for each call, and has no ``struct``.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from fakeredis._helpers import SimpleError, SimpleString
from lupa import lua51

#: runs a command of a script: its name and its arguments
Call = Callable[[bytes, list[bytes]], Any]

_LIBRARIES: Final = """
function(call, sha1hex, pack, unpack)
  redis = { call = call, sha1hex = sha1hex }
  function redis.pcall(...)
    local ok, reply = pcall(call, ...)
    return ok and reply or { err = tostring(reply) }
  end
  function redis.status_reply(text) return { ok = text } end
  function redis.error_reply(text) return { err = text } end
  struct = { pack = pack, unpack = unpack }
end
"""
_SET_ARGUMENTS: Final = "function(keys, argv) KEYS, ARGV = keys, argv end"


class Interpreter:
    """Interpreter shared by all in-memory servers of the process, so that a script is compiled once."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._lua.eval(_LIBRARIES)(self._on_call, _sha1hex, pack, unpack)
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
