"""Checks of single values of the ``DELAYQ`` setting. Each returns the value or raises Misconfigured with its name."""

from __future__ import annotations

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, short, suggest


def strings(name: str, value: object) -> tuple[str, ...]:
    """Return a list or tuple of strings as a tuple."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    raise Misconfigured(f"{name} must be a list of strings, got {short(value)}")


def whole(name: str, value: object, low: int, high: int) -> int:
    """Return an int (no bool) from ``low`` to ``high``."""
    if type(value) is int and low <= value <= high:
        return value
    raise Misconfigured(f"{name} must be an int, {_span(value, low, high)}, got {short(value)}")


def number(name: str, value: object, low: float, high: float = 1e9, *, unit: str = "seconds") -> float:
    """Return a number (no bool) from ``low`` to ``high``; ``unit`` names its unit in the message ("" = none)."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    of = f" of {unit}" if unit else ""
    raise Misconfigured(f"{name} must be a number{of}, {_span(value, low, high)}, got {short(value)}")


def _span(value: object, low: float, high: float) -> str:
    """Return the range for a message. The upper end is included only if the value exceeds it."""
    above = isinstance(value, (int, float)) and value > high
    return f"{low} to {high:g}" if above else f"{low} or more"


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that the value is one of ``choices``."""
    if value not in choices:
        hint = suggest(value, choices) if isinstance(value, str) else ""
        raise Misconfigured(f"{name} must be one of {', '.join(choices)}; got {short(value)}.{hint}")


def flag(name: str, value: object) -> bool:
    """Return True or False."""
    if isinstance(value, bool):
        return value
    raise Misconfigured(f"{name} must be True or False, got {short(value)}")


def dotted_path(name: str, value: object) -> str:
    """Return the dotted path of an importable object, like ``shop.hooks.begin``."""
    if isinstance(value, str) and "." in value and all(part.isidentifier() for part in value.split(".")):
        return value
    raise Misconfigured(f"{name} must be a dotted path like 'shop.module.name', got {short(value)}")


def queue_name(name: object, path: str = "") -> str:
    """Return a valid queue name; ``path`` begins the message."""
    try:
        return check_queue_name(name)
    except InvalidJob as error:
        raise Misconfigured(f"{path}{error}") from None
