"""Mask that hides secrets in values, texts and tracebacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from .texts import HIDDEN, SENSITIVE, Names, hide

#: maximum characters read of a value or a text (an item of a list counts as one); the rest is cut off. Forms for
#: editing accept less, so that no form holds a cut value
MOST_CHARACTERS: Final = 250_000
_DEEPEST: Final = 40
_EMPTY: Final[tuple[object, ...]] = ("", [], {})

#: positional and named arguments
Call: TypeAlias = tuple[list[Any], dict[str, Any]]


class MaskError(ValueError):
    """Raised if an edited value has the placeholder of a hidden value at a place where no value was hidden."""


class Mask:
    """Mask for the values of sensitive names.

    Args:
        words: the sensitive words; see :class:`~django_delayq.masking.texts.Names`.
    """

    def __init__(self, words: Iterable[str] = SENSITIVE) -> None:
        self.names = Names(words)

    def hides(self, name: object) -> bool:
        """Return True if values of this name are hidden."""
        return name in self.names

    def value(self, value: Any, name: object = None) -> Any:
        """Return a copy of ``value`` (of JSON types) without secrets; ``name`` is the name of the value."""
        return _Walk(self).value(value, name)

    def text(self, text: str) -> str:
        """Return a text without secrets. In a JSON text the values of sensitive names are hidden."""
        return _Walk(self).text(text)

    def traceback(self, text: str) -> str:
        """Return a traceback without secrets. A long text is cut at its beginning."""
        if len(text) > MOST_CHARACTERS:
            # Without the rest of the first line: a secret there may have lost its name, so that it would not be found.
            end = text[-MOST_CHARACTERS:].partition("\n")[2]
            text = f"{_Walk(self).note(len(text) - len(end), 'characters').strip()}\n{end}"
        return hide(text, self.names)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> Call:
        """Return the arguments of a call without secrets; ``names`` are the known names of positional arguments."""
        walk = _Walk(self)
        return walk.items(args, 0, names), walk.members(kwargs, 0)

    def restored(self, edited: Any, stored: Any, names: Sequence[str] | None = None) -> Any:
        """Return ``edited``, a user's edit of ``value(stored)``, with the hidden values restored.

        Args:
            edited: the edit.
            stored: the value before it.
            names: for positional arguments, as for :meth:`arguments`.

        Raises:
            MaskError: a hidden value was moved to another place, or the value is too long to be edited.
        """
        walk = _Walk(self)
        masked = walk.value(stored) if names is None else walk.items(stored, 0, names)
        if walk.was_cut:
            raise MaskError("the value is too long to be edited")
        return _restored(edited, stored, masked)


class Unmasked(Mask):
    """Mask that hides nothing, for users who have requested the secrets."""

    def value(self, value: Any, name: object = None) -> Any:
        """Return the value as it is."""
        return value

    def text(self, text: str) -> str:
        """Return the text as it is."""
        return text

    def traceback(self, text: str) -> str:
        """Return the traceback as it is."""
        return text

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> Call:
        """Return the arguments as they are."""
        return list(args), dict(kwargs)


class _Walk:
    """Traversal of one value, which ends after :data:`MOST_CHARACTERS`."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._left = MOST_CHARACTERS
        #: the value was too long to be shown whole
        self.was_cut = False

    def value(self, value: Any, name: object = None, depth: int = 0) -> Any:
        """Return the value without secrets."""
        if self._mask.hides(name):
            return value if value is None or isinstance(value, bool) or value in _EMPTY else HIDDEN
        if depth > _DEEPEST:
            return HIDDEN
        if isinstance(value, Mapping):
            return self.members(value, depth)
        if isinstance(value, (list, tuple)):
            # In a pair like ["password", "x"] the first item is the name of the second one.
            return self.items(value, depth, (None, value[0]) if len(value) == 2 else ())
        return self.text(value, depth) if isinstance(value, str) else value

    def members(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        """Return the members of an object without secrets."""
        other = value.get("name", value.get("key"))  # {"name": "token", "value": …}
        masked: dict[Any, Any] = {}
        for place, (key, item) in enumerate(value.items()):
            self._left -= len(key) + 1 if isinstance(key, str) else 1
            if self._left < 0:
                masked["…"] = self.note(len(value) - place, "members")
                break
            masked[key] = self.value(item, other if key == "value" and self._mask.hides(other) else key, depth + 1)
        return masked

    def items(self, values: Sequence[Any], depth: int, names: Sequence[object] = ()) -> list[Any]:
        """Return the items of a list without secrets; ``names`` are those of the first ones."""
        masked: list[Any] = []
        for place, item in enumerate(values):
            self._left -= 1
            if self._left < 0:
                masked.append(self.note(len(values) - place, "items"))
                break
            masked.append(self.value(item, names[place] if place < len(names) else None, depth + 1))
        return masked

    def text(self, text: str, depth: int = 0) -> str:
        """Return a text without secrets."""
        room = max(0, self._left)
        self._left -= len(text)
        if len(text) > room:
            return hide(text[:room], self._mask.names) + self.note(len(text) - room, "characters")
        if text[:1] in ("{", "["):
            try:
                masked = _Walk(self._mask).value(json.loads(text), None, depth + 1)
                # An unpaired surrogate is escaped again: no page, response or terminal can encode it.
                return json.dumps(masked, ensure_ascii=False).encode(errors="backslashreplace").decode()
            except (ValueError, RecursionError):
                pass
        return hide(text, self._mask.names)

    def note(self, number: int, what: str) -> str:
        """Return the note that so much was cut off."""
        self.was_cut = True
        return f" [cut: {number:,} more {what}]"


def _restored(edited: Any, stored: Any, masked: Any) -> Any:
    """Return ``edited``, a user's edit of ``masked``, with hidden values restored from the same places of ``stored``.

    Raises:
        MaskError: a hidden value was moved to another place, or an item of its list was dropped.
    """
    if _json(edited) == _json(masked):
        return stored
    if isinstance(edited, dict) and isinstance(masked, Mapping):
        return {key: _restored(item, stored.get(key), masked.get(key)) for key, item in edited.items()}
    if isinstance(edited, list) and isinstance(masked, list) and len(edited) >= len(masked):
        places, end = set(map(_json, masked)), len(masked)
        for item, before in zip(edited, masked, strict=False):
            if _json(item) in places and _json(item) != _json(before):
                _refuse_hidden(item)
        _refuse_hidden(edited[end:])
        return [*map(_restored, edited[:end], stored, masked), *edited[end:]]
    _refuse_hidden(edited)
    return edited


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)  # True must not equal 1


def _refuse_hidden(value: Any) -> None:
    if HIDDEN in _json(value):
        raise MaskError(
            f"{HIDDEN} is the placeholder of a hidden value, and it is not clear which; replace it with the value"
        )
