"""Render the tables of ``docs/reference/settings.md`` from the table of settings in ``settings/conf.py``.

    .venv/bin/python -m tests.packaging.settings_tables --write

A row has the name of a key, its default, and the comment above it. A test compares the page with the code.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "settings.md"
SOURCE: Final = ROOT / "django_delayq" / "settings" / "conf.py"
HEAD: Final = "| key | default | meaning |\n|---|---|---|\n"
#: defaults that are longer lists of words are cut after so many
WORDS: Final = 4


def default_of(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]


def sections() -> dict[str, type]:
    """Return the classes of settings by the names of their sections, in the order of the code."""
    from django_delayq.settings import conf

    classes = {name.removesuffix("Conf").upper(): one for name, one in vars(conf).items() if name.endswith("Conf")}
    del classes[""]
    return {"QUEUES": classes.pop("QUEUE"), **classes}


def comments() -> dict[str, dict[str, str]]:
    """Return the comment above each field, by class."""
    found: dict[str, dict[str, str]] = {}
    comment: list[str] = []
    for line in SOURCE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"class (\w+)", line):
            own = found.setdefault(match[1], {})
        elif line.startswith("    #: ") or (comment and line.startswith("    #")):
            comment.append(line.removeprefix("    #:").strip())
        elif comment:
            if match := re.match(r"    (\w+):", line):
                own[match[1]] = " ".join(comment)
            comment = []
    return found


def table(name: str) -> str:
    """Return the table of a section."""
    cls = sections()[name]
    said = comments()[cls.__name__]
    rows = [f"| `{one.name}` | {_default(default_of(one))} | {_meaning(said[one.name])} |\n" for one in fields(cls)]
    return HEAD + "".join(rows)


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{', '.join(value[:WORDS])} …" if len(value) > WORDS else f"`{json.dumps(value)}`"
    if isinstance(value, float):
        return f"`{value:.10g}`"
    if isinstance(value, dict):
        return f"`{json.dumps({name: round(found) for name, found in value.items()})}`"
    return f"`{json.dumps(value)}`" if isinstance(value, str) else f"`{value!r}`"


def _meaning(comment: str) -> str:
    """Return a comment in Markdown: values are code, also where the comment does not mark them."""
    parts = re.split(r"(`[^`]*`)", comment.replace("``", "`"))
    for place in range(0, len(parts), 2):
        text = re.sub(r"\b(None|True|False) = ", r"`\1`: ", parts[place])
        text = re.sub(r'("[\w*]*") = ', r"`\1`: ", text)
        parts[place] = re.sub(r'(?<!`)("[\w*/]+")(?!`)', r"`\1`", text)
    return "".join(parts)


def page() -> str:
    """Return the page with the tables of the code."""
    text = PAGE.read_text(encoding="utf-8")
    for name in sections():
        begin = text.index("| key |", text.index(f"\n## {name}\n"))
        end = text.find("\n\n", begin) + 1 or len(text)
        text = text[:begin] + table(name) + text[end:]
    return text


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif page() != PAGE.read_text(encoding="utf-8"):
        sys.exit(f"{PAGE.relative_to(ROOT)} is not as the code says: --write")
