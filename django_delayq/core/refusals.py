"""Refusal of values that cannot be stored as arguments: where the value is, why, and what to pass instead."""

from __future__ import annotations

from typing import Any, Final

from .errors import InvalidJob

#: types that the C encoder writes correctly. Exact types: a subclass may print itself differently
SCALARS: Final = frozenset((str, int, float, bool, type(None)))


class Unstorable(Exception):
    """Error for a value without a stored form; it collects the path to the value while the recursion unwinds."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[Any] = []

    def at(self, what: str) -> InvalidJob:
        place = "".join(f"[{short_key(key)}]" for key in reversed(self.path[-8:]))
        return InvalidJob(f"{what}{place}: {self.reason}")


def reason_against(value: Any) -> str:
    """Return the reason why ``value`` cannot be stored, and what to pass instead. No method of ``value`` is called."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
    if isinstance(value, type):
        return f"the class {value.__qualname__} cannot be stored; pass its name"
    if hasattr(kind, "_meta") and hasattr(kind, "pk"):
        return (
            f"a model instance ({name}) cannot be stored, and would be stale when the job runs; "
            f"pass its primary key (obj.pk) and load it in the task"
        )
    if hasattr(kind, "query") and hasattr(kind, "values_list"):
        return f"{name} is a query; pass the primary keys, list(queryset.values_list('pk', flat=True))"
    if isinstance(value, (set, frozenset)):
        return f"a {name} has no order and no form in JSON; pass sorted(value)"
    if any(base.__name__ == "__proxy__" for base in kind.__mro__):
        return "a lazy text has no fixed value yet; pass str(value)"
    if hasattr(kind, "__dataclass_fields__"):
        return f"{name} is a dataclass; pass dataclasses.asdict(value)"
    if hasattr(kind, "__members__"):
        return f"{name} is an Enum member; pass its .value"
    if callable(value):
        return f"{name} is a callable; pass data, and let the task choose what to call"
    return f"{name} has no stored form; pass text, numbers, lists and dicts, or its primary key"


def short_key(key: Any) -> str:
    """Return a short ``repr(key)`` without running code of a foreign class."""
    if type(key) in SCALARS and not (type(key) is int and key.bit_length() > 200):
        text = repr(key)
        return text if len(text) <= 40 else f"{text[:40]}…"
    return f"<{type(key).__name__}>"
