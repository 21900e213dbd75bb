"""Restoring of hidden values after a user has edited the masked ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .texts import HIDDEN


class MaskError(ValueError):
    """Raised if an edited value has the placeholder of a hidden value at a place where no value was hidden."""


def restored(edited: Any, stored: Any, masked: Any) -> Any:
    """Return ``edited``, a user's edit of ``masked``, with the hidden values restored from ``stored``.

    Raises:
        MaskError: a hidden value was moved to another place.
    """
    if isinstance(edited, dict) and isinstance(stored, Mapping) and isinstance(masked, Mapping):
        return {key: restored(item, stored.get(key), masked.get(key)) for key, item in edited.items()}
    if isinstance(edited, list) and isinstance(stored, (list, tuple)) and isinstance(masked, (list, tuple)):
        return restored_items(edited, stored, masked)
    if type(edited) is type(masked) and edited == masked:  # True must not equal 1
        return stored
    if _contains_hidden(edited):
        raise MaskError(
            f"{HIDDEN} is the placeholder of a hidden value, and no value is hidden here; replace it with a value"
        )
    return edited


def restored_items(edited: list[Any], stored: Sequence[Any], masked: Sequence[Any]) -> list[Any]:
    """Return an edited list with the hidden values restored. Items may be dropped, added and moved.

    Raises:
        MaskError: the stored value of a placeholder is ambiguous.
    """
    names, edited_names = [_name(item) for item in masked], [_name(item) for item in edited]
    same = len(edited) == len(masked)
    places = {place: place for place, name in enumerate(edited_names) if same and names[place] == name}
    free: dict[str, list[int]] = {}
    for home, name in enumerate(names):
        if home not in places:
            free.setdefault(name, []).append(home)
    moved = Counter(name for place, name in enumerate(edited_names) if place not in places)
    for place, name in enumerate(edited_names):
        homes = free.get(name)
        if place in places or not homes:
            continue
        if moved[name] == len(homes):
            moved[name] -= 1
            places[place] = homes.pop(0)
        elif len({_name(stored[home]) for home in homes}) == 1:
            places[place] = homes[0]
    taken = set(places.values())
    result = []
    for place, item in enumerate(edited):
        if place in places:
            result.append(stored[places[place]])
        elif place < len(masked) <= len(edited) and place not in taken:
            result.append(restored(item, stored[place], masked[place]))  # edited in place
        elif _contains_hidden(item):
            raise MaskError(
                f"{HIDDEN} is the placeholder of a hidden value, but it is ambiguous which; replace it with a value"
            )
        else:
            result.append(item)
    return result


def _name(item: Any) -> str:
    """Return the identity of an item: equal items have equal names. True does not equal 1."""
    return json.dumps(item, sort_keys=True)


def _contains_hidden(value: Any) -> bool:
    if isinstance(value, str):
        return HIDDEN in value
    if isinstance(value, Mapping):
        return any(_contains_hidden(item) for item in value.values())
    return isinstance(value, list) and any(_contains_hidden(item) for item in value)
