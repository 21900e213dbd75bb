"""Parsing of an id template, ``order-{pk}``, without its rows."""

from __future__ import annotations

import re
from string import Formatter

from ..core.errors import Misconfigured
from ..core.inputs import short


def names_in(template: str) -> list[str]:
    """Return the columns between its braces.

    Raises:
        Misconfigured: it is not a template.
    """
    return list(dict.fromkeys(name for _, name in _pieces(template) if name))


def pattern_of(template: str) -> str:
    """Return a regular expression of Java's for the ids that the template makes."""
    found = "".join(re.escape(text) + ("" if name is None else "(?:.+)") for text, name in _pieces(template))
    return rf"(?s)\A{found}\z"


def _pieces(template: str) -> list[tuple[str, str | None]]:
    try:
        return [(text, name) for text, name, _, _ in Formatter().parse(template)]
    except ValueError as error:
        told = f"the id {short(template)} is no template ({error}); write it like order-{{pk}}"
        raise Misconfigured(told) from None
