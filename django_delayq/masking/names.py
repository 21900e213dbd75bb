"""Recognition of the names of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

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
_END_CHARS: Final = 100
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
        if len(name) > 2 * _END_CHARS:
            return self._is_secret(name[:_END_CHARS]) or self._is_secret(name[-_END_CHARS:])
        return self._is_secret(name)

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
