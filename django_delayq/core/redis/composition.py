"""Composition of the Lua scripts from their files.

A script begins with a header and a line ``-- include a b c``: the pieces ``lua/lib/<name>.lua`` are inserted there, in
that order. A piece with a line ``-- exports a b`` becomes a block, whose other names end with it: Lua allows a script
200 local names at a time. Redis 7 and later reads the flags in the first line; for 6.2 that line is removed.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_INCLUDE: Final = re.compile(r"^ *-- include (.+)$", re.MULTILINE)
_EXPORTS: Final = re.compile(r"^-- exports (.+)$", re.MULTILINE)


@cache
def script_names() -> tuple[str, ...]:
    """Return the names of all scripts."""
    names = (path.name for path in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua")))


def _folder() -> Traversable:
    return files("django_delayq.core") / "lua"


@cache
def compose(name: str, *, flags: bool = True, test_clock: bool = False) -> str:
    """Return the source of a script with its pieces inserted.

    Args:
        flags: keep the first line, which Redis before 7 cannot read.
        test_clock: take the time from the shard's meta instead of Redis, so that a test can move it.
    """
    lua = _folder()
    source = (lua / f"{name}.lua").read_text(encoding="utf-8")

    def paste(match: re.Match[str]) -> str:
        pieces = match[1].split()
        if test_clock:
            pieces = ["test_clock" if piece == "clock" else piece for piece in pieces]
        return "\n".join(_in_block((lua / "lib" / f"{piece}.lua").read_text(encoding="utf-8")) for piece in pieces)

    source = _INCLUDE.sub(paste, source)
    if not flags and source.startswith("#!"):
        first, _, source = source.partition("\n")
        if "allow-oom" in first:
            # Before 7 a script may exceed the memory limit once it has written; this is a write that changes nothing.
            source = "redis.call('PERSIST', KEYS[1])\n" + source
    return source


def _in_block(piece: str) -> str:
    """Return a piece whose names, but for those that it exports, end with it."""
    exports = " ".join(_EXPORTS.findall(piece)).split()
    return f"local {', '.join(exports)}\ndo\n{piece}\nend" if exports else piece
