"""Detection of secrets in free text: by the name before them, by their shape, or by a database's error message.

The time is linear in the length of any text: each pattern begins where it cannot begin twice (a lookbehind, a fixed
text) and never backtracks (possessive quantifiers).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

#: lines of tracebacks that are remembered with the result, and their longest
_KNOWN_LINES: Final = 2048
_KNOWN_CHARS: Final = 300

Spans: TypeAlias = Iterator[tuple[int, int]]

#: placeholder of a hidden value
HIDDEN: Final = "••••••"

_URL_PASSWORD: Final = re.compile(r"://[^\s:/@]*+:(?P<secret>(?:[^\s/@]++@)*[^\s/@]++)@")
#: the password of a URL may also hold slashes; digits that look like a port are taken for a port
_URL_USER: Final = re.compile(r"://(?!\[)[^\s:/@]*+:(?!\d{1,5}+[/?#,;])")
_URL_END: Final = re.compile(r"""[\s"'`<>]""")
_URL_CHARS: Final = 256
#: a token contains a digit, or is longer than most words
_BEARER: Final = re.compile(
    r"\bbearer\s++(?P<secret>(?=[A-Za-z_.~+/-]*+\d)[\w.~+/-]{16,}+=*+|[\w.~+/-]{24,}+=*+)", re.IGNORECASE
)
_JWT: Final = re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{8,}+(?:\.[\w-]*+){2,4}+)")
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?P<secret>(?:[^-]++|-(?!----END))++)")
#: pairs of a lower-case text that occurs in every match of a pattern, and the pattern
_SHAPES: Final = (
    ("://", _URL_PASSWORD),
    ("earer", _BEARER),
    ("eyj", _JWT),
    ("private key-----", _PRIVATE_KEY),
)

#: ``password=``, ``"password": ``, ``user[password]=``, ``password: str = ``, ``:password => ``
_ASSIGNED: Final = re.compile(
    r"""
    (?<![\w-]) (?P<name>[\w-]++)
    (?:\\{0,4}+["'])?+ (?:\[\d{0,9}+\])?+ (?:\]|%5D)?+ \s{0,3}+
    (?: :\s{0,3}+(?:str|bytes|int|SecretStr)(?:\s?\|\s?None)?+\s{0,3}+= | !?={1,3}+>? | :(?!//|:)=? )
    [^\S\n]*+ (?:\n[^\S\n]++)?+
    """,
    re.VERBOSE,
)
_SCHEME: Final = re.compile(r"(?:basic|bearer|digest|negotiate|token|apikey|jwt|oauth|hmac)[^\S\n]++", re.IGNORECASE)
#: ``--password hunter2`` and ``'--password', 'hunter2'``
_OPTION: Final = re.compile(
    r"""(?<![\w-])--?(?P<name>[A-Za-z][\w-]*+)(?:[^\S\n]++|["'][^\S\n]{0,3}+,[^\S\n]{0,3}+)(?!["']?-)"""
)
#: ``('Authorization', 'Bearer …')``
_PAIR: Final = re.compile(r"""\(\s{0,3}+b?["'](?P<name>[\w-]++)["'],\s{0,3}+(?=b?["'])""")
_PAIR_END: Final = re.compile(r"\s{0,3}+\)")

_VALUE: Final = re.compile(
    r"""
      [bBfFrRuU]{0,2}+ (?: "{3}(?:[^"]++|"(?!""))*+(?:"{3})?+ | '{3}(?:[^']++|'(?!''))*+(?:'{3})?+ )
    | [bBfFrRuU]{0,2}+ (?: "(?:[^"\\\n]++|\\.)*+"?+ | '(?:[^'\\\n]++|\\.)*+'?+ )
    | \\++ (?: "[^"\n]*+"?+ | '[^'\n]*+'?+ )
    | (?: [^\s"'&,;()\[\]{}]++ | ["'](?=[^\s"'&,;()\[\]{}]) )++
    """,
    re.VERBOSE,
)
_IN_BRACKETS: Final = re.compile(
    r"""[^"'()\[\]{}]++ | "(?:[^"\\]++|\\.)*+"?+ | '(?:[^'\\]++|\\.)*+'?+ | [()\[\]{}]""", re.VERBOSE | re.DOTALL
)
_LITERAL: Final = re.compile(r"""[bBfFrRuU]{0,2}+["']|\d""")
_TELLS_NOTHING: Final = frozenset(
    {"None", "null", "nil", "True", "False", "true", "false", '""', "''", "[]", "{}", "()"}
)
_PROSE: Final = "and are as at by can for from has in is may must needs not of on or requires to was with"
#: words after an option in a sentence, which are not its value: "--token is required"
_PROSE_WORDS: Final = frozenset(_PROSE.split())

#: occurs in every text that holds a secret
_HINT: Final = re.compile(r"[-=:(]|(?i:earer)|eyJ|' for key '")
_COLUMNS_END: Final = ")=("
_COLUMNS_CHARS: Final = 300
_COLUMN: Final = re.compile(r"[\w-]++")
_ROW: Final = "Failing row contains ("
_ENTRY: Final = "Duplicate entry '"
_ENTRY_END: Final = "' for key '"


class Texts:
    """Masking of secrets in texts.

    Args:
        names: the names of secrets.
    """

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        # Tracebacks consist of the same lines again and again.
        self._known_source = lru_cache(_KNOWN_LINES)(self._hide_in_source)
        self._known_frames = lru_cache(_KNOWN_LINES)(self.hide)

    def hide(self, text: str) -> str:
        """Return the text without its secrets."""
        if not _HINT.search(text):
            return text
        spans = [*_shapes(text), *_rows(text), *self._columns(text), *self._entries(text)]
        return _cut_out(text, [*spans, *self._assigned(text), *self._options(text), *self._pairs(text)])

    def hide_in_source(self, line: str) -> str:
        """Return a line of Python source without secrets: a literal after ``token=`` is hidden, a variable is not."""
        return self._known_source(line) if len(line) <= _KNOWN_CHARS else self._hide_in_source(line)

    def hide_in_frame(self, line: str) -> str:
        """Return the line of a traceback that names file, line and function, without secrets."""
        return self._known_frames(line) if len(line) <= _KNOWN_CHARS else self.hide(line)

    def _hide_in_source(self, line: str) -> str:
        return _cut_out(line, [*_shapes(line), *self._assigned(line, only_literals=True)])

    def _assigned(self, text: str, *, only_literals: bool = False) -> Spans:
        """Find values after the names of secrets."""
        values = _Values(text)
        end = 0
        for head in _ASSIGNED.finditer(text):
            if head.start() < end or head["name"] not in self._names:
                continue
            scheme = _SCHEME.match(text, head.end())
            start = head.end() if scheme is None else scheme.end()
            if only_literals and not _LITERAL.match(text, start):
                continue
            end = values.end_of(start)
            if text[start:end] not in _TELLS_NOTHING:
                yield start, end

    def _options(self, text: str) -> Spans:
        """Find values of command-line options."""
        values = _Values(text)
        end = 0
        for head in _OPTION.finditer(text):
            if head.start() >= end and head["name"] in self._names:
                end = values.end_of(head.end())
                if text[head.end() : end].lower() not in _PROSE_WORDS:
                    yield head.end(), end

    def _pairs(self, text: str) -> Spans:
        """Find the values in pairs of a name and a value."""
        for head in _PAIR.finditer(text):
            value = _VALUE.match(text, head.end()) if head["name"] in self._names else None
            if value is not None and _PAIR_END.match(text, value.end()):
                yield value.span()

    def _columns(self, text: str) -> Spans:
        """Find values in PostgreSQL's ``Key (token)=(…) already exists``, in any server language."""
        done = 0
        while (place := text.find(_COLUMNS_END, done)) >= 0:
            columns = text[max(done, place - _COLUMNS_CHARS) : place]
            _, key, named = columns.rpartition("Key (")
            names = _COLUMN.findall(named if key else columns.rpartition("(")[2])
            done = start = place + len(_COLUMNS_END)
            if any(name in self._names for name in names):
                done = _last_bracket(text, start)
                yield start, done

    def _entries(self, text: str) -> Spans:
        """Find values in MySQL's ``Duplicate entry '…' for key 'users.token'``."""
        done = 0
        while (place := text.find(_ENTRY_END, done)) >= 0:
            start = text.rfind(_ENTRY, done, place)
            done = place + len(_ENTRY_END)
            key = text[done : done + _COLUMNS_CHARS].partition("'")[0]
            if start >= 0 and any(name in self._names for name in _COLUMN.findall(key)):
                yield start + len(_ENTRY), place


class _Values:
    """Finder of the ends of values in one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._unbalanced = False

    def end_of(self, start: int) -> int:
        """Return the end of the value that begins at ``start``; ``start`` if there is none.

        A value is a literal, a word, or a bracketed text with the word before it: ``SecretStr('…')``.
        """
        match = _VALUE.match(self._text, start)
        end = start if match is None else match.end()
        return self._end_of_brackets(end) if self._text[end : end + 1] in ("(", "[", "{") else end

    def _end_of_brackets(self, start: int) -> int:
        """Return the position after the closing bracket; the end of the line if there is none."""
        depth = 0
        for part in () if self._unbalanced else _IN_BRACKETS.finditer(self._text, start):
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(part[0], 0)
            if not depth:
                return part.end()
        self._unbalanced = True  # not searched again: each search may scan the whole rest of the text
        return _end_of_line(self._text, start)


def _shapes(text: str) -> Spans:
    """Find secrets by their shape, independent of any name."""
    small = text.lower()
    for needed, pattern in _SHAPES:
        if needed in small:
            for match in pattern.finditer(text):
                yield match.span("secret")
    yield from _urls(text)


def _urls(text: str) -> Spans:
    """Find passwords with a slash in URLs: they end at the last @ of a URL's beginning."""
    for user in _URL_USER.finditer(text):
        start = user.end()
        next_url = text.find("://", start)
        end = min(start + _URL_CHARS, len(text) if next_url < 0 else next_url)
        stop = _URL_END.search(text, start, end)
        last = text.rfind("@", start, end if stop is None else stop.start())
        if last > start:
            yield start, last


def _rows(text: str) -> Spans:
    """Find the values in PostgreSQL's ``Failing row contains (…)``, which come without column names."""
    done = 0
    while (place := text.find(_ROW, done)) >= 0:
        start = place + len(_ROW)
        done = _last_bracket(text, start)
        yield start, done


def _last_bracket(text: str, start: int) -> int:
    """Return the position of the last closing bracket of the line, because a value may also hold brackets."""
    end = _end_of_line(text, start)
    last = text.rfind(")", start, end)
    return end if last < 0 else last


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _cut_out(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text with all spans hidden; overlapping and adjacent spans are merged."""
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start == end or end <= done:
            continue
        if start > done or not parts:
            parts += (text[done:start], HIDDEN)
        done = end
    return "".join((*parts, text[done:]))
