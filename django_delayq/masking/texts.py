"""Detection of secrets by their names; in free text by the name before them, by their shape, or in a database's error.

The time is linear in the length of any text: each pattern begins where it cannot begin twice (a lookbehind, a fixed
text) and never backtracks (possessive quantifiers).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

_DEFAULT: Final = """
    pass password passwd passphrase passcode passkey dbpass userpass pwd pw pin pincode
    token jwt otp totp bearer secret credential authorization auth cookie session signature sig
    api_key apikey access_key private_key privatekey signing_key encryption_key
    card creditcard cvv cvc iban ssn
"""
#: default of the setting ``ADMIN["sensitive"]``
SENSITIVE: Final = tuple(_DEFAULT.split())

#: minimum length of a word that is found anywhere in a name; a shorter one is found only as a separate word
_ANYWHERE: Final = 5
#: characters read at both ends of a name: names are short, but texts that look like names may be long
_END_CHARS: Final = 200
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_BY_ACCIDENT: Final = "secretary secretaries secretariat tokenize tokenized tokenizer tokenizers tokenization obsession"
#: words that contain a sensitive word by accident
_HARMLESS: Final = frozenset(_BY_ACCIDENT.split())

_LAST: Final = """
    count counts counter total length len size limit max min usage used remaining
    ttl age expiry expires expired expiration lifetime at in until date seconds ms
    type kind status version policy file path required enabled valid validator validators
"""
#: last words of names that describe a secret: token_count, password_changed_at, session_type
_DESCRIBES_LAST: Final = frozenset(_LAST.split())
#: first words of such names: max_tokens, has_password
_DESCRIBES_FIRST: Final = frozenset({"max", "min", "num", "total", "count", "has", "is"})

Spans: TypeAlias = Iterator[tuple[int, int]]

#: placeholder of a hidden value
HIDDEN: Final = "••••••"

_URL_PASSWORD: Final = re.compile(r"://[^\s:/@]*+:(?P<secret>(?:[^\s/@]++@)*[^\s/@]++)@")
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
_TELLS_NOTHING: Final = frozenset({"none", "null", "nil", "true", "false", '""', "''", "[]", "{}", "()"})
_PROSE: Final = "and are as at by can for from has in is may must needs not of on or requires to was with"
#: words after an option in a sentence, which are not its value: "--token is required"
_PROSE_WORDS: Final = frozenset(_PROSE.split())

#: occurs in every text that holds a secret
_HINT: Final = re.compile(r"[-=:(]|(?i:earer)|eyJ|' for key '")
_COLUMN: Final = re.compile(r"[\w-]++")
#: values that databases quote in their errors, up to the last bracket of the line, because they may hold brackets, with
#: the names of their columns if the error has them: PostgreSQL's ``Key (token)=(…)``, in any server language, and
#: ``Failing row contains (…)``; MySQL's ``Duplicate entry '…' for key 'users.token'``
_QUOTED: Final = (
    re.compile(r"\((?P<columns>[^()=\n]*+(?:\([^()\n]*+\))?+[^()=\n]*+)\)=\((?P<secret>[^\n]*(?=\))|[^\n]*+)"),
    re.compile(r"Failing row contains \((?P<columns>)(?P<secret>[^\n]*(?=\))|[^\n]*+)"),
    re.compile(r"Duplicate entry '(?P<secret>[^\n]{0,300}?)' for key '(?P<columns>[^'\n]{0,300}+)"),
)


class Names:
    """Set of the names of secrets: all names that contain one of the sensitive words.

    A word of five letters or more counts anywhere in a name (``db_password``, ``accessToken2``), a shorter one only as
    a separate word (``card_number`` and ``cardNumber``, but not ``discarded``). A name that only describes a secret
    (``token_count``, ``password_changed_at``) is not in the set, unless it is a sensitive word itself.

    Args:
        words: the sensitive words, in any spelling (``api_key`` = ``ApiKey`` = ``api-key``).
    """

    def __init__(self, words: Iterable[str]) -> None:
        squashed = {"".join(_words_of(word)) for word in words} - {""}
        self._exact = frozenset(squashed)
        self._long = tuple(sorted(word for word in squashed if len(word) >= _ANYWHERE))
        self._is_secret = lru_cache(maxsize=4096)(self._read)

    def __contains__(self, name: object) -> bool:
        """Return True if values with this name are secret."""
        if not isinstance(name, str):
            return False
        return any(map(self._is_secret, {name[:_END_CHARS], name[-_END_CHARS:]}))

    def _read(self, name: str) -> bool:
        words = [word for word in _words_of(name) if word not in _HARMLESS]
        whole = "".join(words)
        if whole in self._exact:
            return True
        if self._exact.isdisjoint(words) and not any(word in whole for word in self._long):
            return False
        return words[-1] not in _DESCRIBES_LAST and words[0] not in _DESCRIBES_FIRST


def _words_of(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def hide(text: str, names: Container[str]) -> str:
    """Return a text without its secrets; ``names`` are the names of secrets."""
    if not _HINT.search(text):
        return text
    return _cut_out(text, [*_shapes(text), *_quoted(text, names), *_named(text, names)])


def _named(text: str, names: Container[str]) -> Spans:
    """Find values after the names of secrets: assigned ones, and those of command-line options."""
    for pattern, harmless in ((_ASSIGNED, _TELLS_NOTHING), (_OPTION, _PROSE_WORDS)):
        values, end = _Values(text), 0
        for head in pattern.finditer(text):
            if head.start() < end or head["name"] not in names:
                continue
            scheme = _SCHEME.match(text, head.end())
            start = head.end() if scheme is None else scheme.end()
            end = values.end_of(start)
            if text[start:end].lower() not in harmless:
                yield start, end


def _quoted(text: str, names: Container[str]) -> Spans:
    """Find values that a database quotes: those of sensitive columns, and rows without the names of columns."""
    for pattern in _QUOTED:
        for found in pattern.finditer(text):
            columns = _COLUMN.findall(found["columns"])
            if not columns or any(name in names for name in columns):
                yield found.span("secret")


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
        end = self._text.find("\n", start)
        return len(self._text) if end < 0 else end


def _shapes(text: str) -> Spans:
    """Find secrets by their shape, independent of any name."""
    small = text.lower()
    for needed, pattern in _SHAPES:
        if needed in small:
            for match in pattern.finditer(text):
                yield match.span("secret")


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
