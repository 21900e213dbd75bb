"""Stored arguments of jobs as plain data, with their secrets masked."""

from __future__ import annotations

import json
from typing import Any

from ..core.codec import as_json, decode_args
from ..core.task import registry
from ..settings.conf import mask


def loaded(data: bytes) -> Any:
    """Return stored JSON as it is, tags included.

    Raises:
        ValueError: it is not JSON, nor stored with the codec of this process.
    """
    try:
        return json.loads(as_json(data))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def argument_names(task: str) -> list[str]:
    """Return the names of a task's positional arguments, or none if the task is not registered here."""
    registered = registry.get(task)
    return [] if registered is None else list(registered.argument_names)


def split_call(stored: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of a stored call, tags included.

    Raises:
        ValueError: these are not arguments.
    """
    return decode_args(stored, loaded)


def call_rows(task: str, stored: bytes) -> list[tuple[str, Any]]:
    """Return name and value of each argument of a call, masked.

    Raises:
        ValueError: these are not arguments.
    """
    args, kwargs = split_call(stored)
    names = argument_names(task)
    masked_args, masked_kwargs = mask().arguments(args, kwargs, names)
    labels = [names[place] if place < len(names) else f"#{place + 1}" for place in range(len(args))]
    return [*zip(labels, masked_args, strict=True), *masked_kwargs.items()]
