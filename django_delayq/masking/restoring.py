"""Restoring of hidden values after a user has edited the masked ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .texts import HIDDEN


class MaskError(ValueError):
    """Raised if an edited value has the placeholder of a hidden value at a place where no value was hidden."""


def restored(edited: Any, stored: Any, shown: Any) -> Any:
    """Return ``edited``, a user's edit of ``shown``, with the hidden values restored from ``stored``.

    Raises:
        MaskError: a hidden value was moved to another place.
    """
    if isinstance(edited, dict) and isinstance(stored, Mapping) and isinstance(shown, Mapping):
        return {key: restored(item, stored.get(key), shown.get(key)) for key, item in edited.items()}
    if isinstance(edited, list) and isinstance(stored, (list, tuple)) and isinstance(shown, (list, tuple)):
        return restored_items(edited, stored, shown)
    if type(edited) is type(shown) and edited == shown:  # True must not equal 1
        return stored
    if _holds_hidden(edited):
        raise MaskError(f"{HIDDEN} stands for a hidden value, and there is none at this place")
    return edited


def restored_items(edited: list[Any], stored: Sequence[Any], shown: Sequence[Any]) -> list[Any]:
    """Return an edited list with the hidden values restored. Items may be dropped, added and moved.

    Raises:
        MaskError: the stored value of a placeholder is ambiguous.
    """
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
            result.append(restored(item, stored[place], shown[place]))  # edited in place
        elif _holds_hidden(item):
            raise MaskError(f"{HIDDEN} stands for a hidden value, and it is not clear for which")
        else:
            result.append(item)
    return result


def _name(item: Any) -> str:
    """Return the identity of an item: equal items have equal names. True does not equal 1."""
    return json.dumps(item, sort_keys=True)


def _holds_hidden(value: Any) -> bool:
    if isinstance(value, str):
        return HIDDEN in value
    if isinstance(value, Mapping):
        return any(_holds_hidden(item) for item in value.values())
    return isinstance(value, list) and any(_holds_hidden(item) for item in value)
