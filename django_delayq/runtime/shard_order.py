"""Splitter and scheduler of the settings: in which order a worker visits shards."""

from __future__ import annotations

from typing import Any

from ..core.errors import Misconfigured
from ..settings.conf import SETTING, load_function, load_plain_function
from ..settings.sections import SCHEDULERS, SPLITTERS


def splitter(name: str) -> Any:
    """Return the name of a splitter, or the function at a dotted path.

    Raises:
        Misconfigured: there is none.
    """
    return name if name in SPLITTERS else load_function(f"{SETTING}['WORKER']['splitter']", name)


def scheduler(name: str) -> Any:
    """Return the name of a scheduler, the function or object at a dotted path, or an object of the class there.

    Raises:
        Misconfigured: there is none, it cannot be made, or it cannot be called.
    """
    if name in SCHEDULERS:
        return name
    where = f"{SETTING}['WORKER']['scheduler']"
    loaded = load_plain_function(where, name)
    if not isinstance(loaded, type):
        return loaded
    try:
        made = loaded()
    except Exception as error:
        raise Misconfigured(f"{where}: {name}() failed: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise Misconfigured(f"{where}: objects of {name} are not callable; give the class a method __call__(self, due)")
    return made
