"""What people may not read: values whose names sound like a secret are hidden wherever jobs are shown.

A name is sensitive when it holds one of the sensitive words: a word of five letters or more anywhere in it
(``db_password``, ``accessToken2``), a shorter one only as a word of its own (``card_number`` and ``cardNumber``, but
not ``discarded``). Hidden are the values under such a key, the other half of a pair like ``["Authorization", …]`` or
``{"name": "token", "value": …}``, what stands behind ``password=`` in a text, and the password of a URL.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

__all__ = ["HIDDEN", "SENSITIVE", "Mask", "MaskError"]

#: what is shown instead
HIDDEN: Final = "••••••"
#: the words of the setting ``ADMIN["sensitive"]``, unless it names others
SENSITIVE: Final = (
    "password", "passwd", "passphrase", "pwd", "token", "secret", "authorization", "auth", "credential", "cookie",
    "session", "apikey", "api_key", "privatekey", "private_key", "signature", "card", "creditcard", "cvv", "cvc", "pin",
    "iban", "ssn",
)  # fmt: skip

_ANYWHERE: Final = 5
_DEEPEST: Final = 40
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_URL_PASSWORD: Final = re.compile(r"(?P<head>[a-zA-Z][a-zA-Z0-9+.-]{0,20}://[^\s:/@]{0,200}:)[^\s/@]{1,500}(?=@)")
_HEAD: Final = re.compile(
    r"(?<![A-Za-z])(?P<name>[A-Za-z][\w-]{0,60})[\"']?\s{0,3}[=:]\s{0,3}(?:(?:bearer|basic|token)\s+)?", re.IGNORECASE
)
_TAIL: Final = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'&,;)}\]]+")


class MaskError(ValueError):
    """What is hidden stands where nothing was hidden, so nobody knows what is meant."""


class Mask:
    """Hides what is behind sensitive names.

    Args:
        words: the sensitive words, in any spelling (``api_key`` = ``ApiKey`` = ``api-key``).
    """

    def __init__(self, words: Iterable[str] = SENSITIVE) -> None:
        squashed = {_squash(word) for word in words} - {""}
        self._anywhere = tuple(sorted(word for word in squashed if len(word) >= _ANYWHERE))
        self._alone = frozenset(squashed)

    def hides(self, name: object) -> bool:
        """Whether values of this name are hidden."""
        if not isinstance(name, str):
            return False
        words = _words(name)
        whole = "".join(words)
        return not self._alone.isdisjoint((*words, whole)) or any(word in whole for word in self._anywhere)

    def value(self, value: Any, name: object = None, _depth: int = 0) -> Any:
        """A copy of ``value`` (what JSON can hold) with everything sensitive in it hidden; ``name`` is its own name."""
        if self.hides(name):
            return value if value is None or isinstance(value, bool) or value in ("", [], {}) else HIDDEN
        if _depth > _DEEPEST:
            return HIDDEN
        if isinstance(value, Mapping):
            other = self._named_elsewhere(value)
            return {key: self.value(item, other if key == "value" and other else key, _depth + 1)
                    for key, item in value.items()}  # fmt: skip
        if isinstance(value, (list, tuple)):
            return self._items(value, _depth)
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text with hidden passwords of URLs and hidden values behind sensitive names (``token=…``)."""
        if text[:1] in ("{", "[") and len(text) < 100_000:
            try:
                return json.dumps(self.value(json.loads(text)), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        if "://" in text:
            text = _URL_PASSWORD.sub(rf"\g<head>{HIDDEN}", text)
        return self._without_assigned(text)

    def traceback(self, text: str) -> str:
        """A traceback: as :meth:`text`, but for the lines of source code, which hold names and no values."""
        return "\n".join(line if line.startswith("    ") else self.text(line) for line in text.split("\n"))

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()
                  ) -> tuple[list[Any], dict[str, Any]]:  # fmt: skip
        """The arguments of a call; ``names`` are those of the positional ones, as far as they are known."""
        known = [*names[: len(args)], *[None] * (len(args) - len(names))]
        return ([self.value(value, name) for value, name in zip(args, known, strict=True)],
                {name: self.value(value, name) for name, value in kwargs.items()})  # fmt: skip

    def restored(self, edited: Any, stored: Any, name: object = None) -> Any:
        """What a person made of ``value(stored)``, with what was hidden put back where it was.

        Raises:
            MaskError: something hidden was moved to another place.
        """
        return _restored(edited, stored, self.value(stored, name))

    def restored_arguments(self, edited: list[Any], stored: Sequence[Any], names: Sequence[str] = ()) -> list[Any]:
        """The same of the positional arguments of a call; ``names`` as for :meth:`arguments`.

        Raises:
            MaskError: something hidden was moved to another place.
        """
        return _restored_items(edited, stored, self.arguments(stored, {}, names)[0])

    def _items(self, value: Sequence[Any], depth: int) -> list[Any]:
        if len(value) == 2 and isinstance(value[0], str) and self.hides(value[0]) and not isinstance(value[1], bool):
            return [value[0], self.value(value[1], value[0], depth + 1)]
        return [self.value(item, None, depth + 1) for item in value]

    def _named_elsewhere(self, value: Mapping[Any, Any]) -> str:
        """Of ``{"name": "token", "value": …}`` the name."""
        found = value.get("name", value.get("key"))
        return found if isinstance(found, str) and "value" in value and self.hides(found) else ""

    def _without_assigned(self, text: str) -> str:
        parts: list[str] = []
        end = 0
        for head in _HEAD.finditer(text):
            if head.start() >= end and self.hides(head["name"]):
                tail = _TAIL.match(text, head.end())
                if tail is not None:
                    parts += (text[end : head.end()], HIDDEN)
                    end = tail.end()
        return "".join((*parts, text[end:]))


def _restored(edited: Any, stored: Any, shown: Any) -> Any:
    if isinstance(edited, dict) and isinstance(stored, Mapping) and isinstance(shown, Mapping):
        return {key: _restored(item, stored.get(key), shown.get(key)) for key, item in edited.items()}
    if isinstance(edited, list) and isinstance(stored, (list, tuple)) and isinstance(shown, (list, tuple)):
        return _restored_items(edited, stored, shown)
    if type(edited) is type(shown) and edited == shown:  # true is not 1 here
        return stored
    if _holds_hidden(edited):
        raise MaskError(f"{HIDDEN} stands for a hidden value, and there is none at this place")
    return edited


def _restored_items(edited: list[Any], stored: Sequence[Any], shown: Sequence[Any]) -> list[Any]:
    """Items may be dropped, added and moved: each takes along what is hidden in it, or it is not told whose it is."""
    names, wanted = [_name(item) for item in shown], [_name(item) for item in edited]
    same = len(edited) == len(shown)
    found = {place: place for place, name in enumerate(wanted) if same and names[place] == name}
    free: dict[str, list[int]] = {}
    for home, name in enumerate(names):
        if home not in found:
            free.setdefault(name, []).append(home)
    moved = Counter(name for place, name in enumerate(wanted) if place not in found)
    for place, name in enumerate(wanted):
        homes = free.get(name)
        if place in found or not homes:
            continue
        if moved[name] == len(homes):
            moved[name] -= 1
            found[place] = homes.pop(0)
        elif len({_name(stored[home]) for home in homes}) == 1:
            found[place] = homes[0]
    taken = set(found.values())
    result = []
    for place, item in enumerate(edited):
        if place in found:
            result.append(stored[found[place]])
        elif place < len(shown) <= len(edited) and place not in taken:
            result.append(_restored(item, stored[place], shown[place]))  # changed where it is
        elif _holds_hidden(item):
            raise MaskError(f"{HIDDEN} stands for a hidden value, and it is not clear for which")
        else:
            result.append(item)
    return result


def _name(item: Any) -> str:
    """Items are the same if this is; true is not 1 here."""
    return json.dumps(item, sort_keys=True)


def _holds_hidden(value: Any) -> bool:
    if isinstance(value, str):
        return HIDDEN in value
    if isinstance(value, Mapping):
        return any(_holds_hidden(item) for item in value.values())
    return isinstance(value, list) and any(_holds_hidden(item) for item in value)


def _squash(word: str) -> str:
    return "".join(_words(word))


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in _WORD.findall(name[:200]))
