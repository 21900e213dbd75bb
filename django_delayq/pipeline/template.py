"""What the template of an id, ``order-{pk}``, says without the rows that it is for."""

from __future__ import annotations

import re
from string import Formatter

from ..core.errors import Misconfigured
from ..core.inputs import short


def names_in(template: str) -> list[str]:
    """The columns between its braces.

    Raises:
        Misconfigured: it is no template.
    """
    return list(dict.fromkeys(name for _, name in _pieces(template) if name))


def pattern_of(template: str) -> str:
    """What the ids that it makes look like, as a regular expression of Java's."""
    found = "".join(re.escape(text) + ("" if name is None else "(?:.+)") for text, name in _pieces(template))
    return rf"(?s)\A{found}\z"


def _pieces(template: str) -> list[tuple[str, str | None]]:
    try:
        return [(text, name) for text, name, _, _ in Formatter().parse(template)]
    except ValueError as error:
        told = f"the id {short(template)} is no template ({error}); write it like order-{{pk}}"
        raise Misconfigured(told) from None
