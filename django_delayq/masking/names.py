"""Which names belong to secrets."""

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
#: the words of the setting ``ADMIN["sensitive"]``, unless it names others
SENSITIVE: Final = tuple(_DEFAULT.split())

#: a word of so many letters or more is found anywhere in a name, a shorter one only as a word of its own
_ANYWHERE: Final = 5
#: only so much of both ends of a name is read: names are short, texts that look like names may be long
_END_CHARS: Final = 100
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_BY_ACCIDENT: Final = "secretary secretaries secretariat tokenize tokenized tokenizer tokenizers tokenization obsession"
#: words that hold a sensitive one and have nothing to do with it
_HARMLESS: Final = frozenset(_BY_ACCIDENT.split())

_LAST: Final = """
    count counts counter total length len size limit max min usage used remaining
    ttl age expiry expires expired expiration lifetime at in until date seconds ms
    type kind status version policy file path required enabled valid validator validators
"""
#: a name that ends so describes a secret: token_count, password_changed_at, session_type
_DESCRIBES_LAST: Final = frozenset(_LAST.split())
#: a name that begins so does the same: max_tokens, has_password
_DESCRIBES_FIRST: Final = frozenset({"max", "min", "num", "total", "count", "has", "is"})


class Names:
    """Names of secrets: those that hold one of the sensitive words.

    A word of five letters or more counts anywhere in a name (``db_password``, ``accessToken2``), a shorter one only as
    a word of its own (``card_number`` and ``cardNumber``, but not ``discarded``). A name that only describes a secret
    (``token_count``, ``password_changed_at``) is none, unless it is a sensitive word itself.

    Args:
        words: the sensitive words, in any spelling (``api_key`` = ``ApiKey`` = ``api-key``).
    """

    def __init__(self, words: Iterable[str]) -> None:
        squashed = {"".join(_words_of(word)) for word in words} - {""}
        self._exact = frozenset(squashed)
        self._long = tuple(sorted(word for word in squashed if len(word) >= _ANYWHERE))
        self._is_secret = lru_cache(maxsize=4096)(self._read)

    def __contains__(self, name: object) -> bool:
        """Return True if values of this name are secret."""
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
