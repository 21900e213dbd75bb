"""Reference pages of the documentation site that are generated: routes of the HTTP API, options, metrics."""

from __future__ import annotations

import os
import re
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import django

#: options that every command of Django has
_DJANGO = {
    "help",
    "version",
    "verbosity",
    "settings",
    "pythonpath",
    "traceback",
    "no_color",
    "force_color",
    "skip_checks",
}
_DOCS = Path(__file__).resolve().parent.parent / "docs"
_PLAIN = {"[": "&#91;", "<": "&lt;"}


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from django_delayq.api.openapi import document

    return {
        "reference/http.md": _routes(document("/")),
        "reference/options.md": "\n".join(_commands()),
        "reference/metrics.md": _metrics(),
    }


def _metrics() -> str:
    """Return the table of the guide to metrics, which a test compares with the code."""
    table = re.search(r"^\| name \|.*?(?=^<!--)", (_DOCS / "metrics.md").read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    return f"# Metrics\n\n[How to export and read them](../metrics.md).\n\n{table[0]}"


def _routes(document: Mapping[str, Any]) -> str:
    lines = ["# Routes of the HTTP API", "", "From the OpenAPI document; [the guide](../http.md) explains them.", ""]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += [f"## `{method.upper()} {path}`", "", *_operation(operation, document)]
    return "\n".join(lines)


def _operation(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{operation['summary']}.\n\n{operation['description']}"
    yield ""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    rows = [
        _row(_resolved(one, document), "in the " + _resolved(one, document)["in"])
        for one in operation.get("parameters", [])
    ]
    rows += _members(_resolved(body, document), document) if body else []
    if rows:
        yield from ("| name | where | type | meaning |", "|---|---|---|---|", *rows)
        yield ""
    yield "Responses: " + ", ".join(f"`{status}`" for status in operation["responses"])
    yield ""


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema or len(schema.get("allOf", ())) == 1:
        reference = schema.get("$ref")
        schema = schema["allOf"][0] if reference is None else _at(document, reference)
    return schema


def _at(document: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found  # type: ignore[no-any-return]


def _members(schema: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    required = schema.get("required", ())
    return [
        _row(
            {"name": name, "schema": _resolved(member, document), **member}, "required" if name in required else "body"
        )
        for name, member in schema.get("properties", {}).items()
    ]


def _row(one: Mapping[str, Any], where: str) -> str:
    schema = one.get("schema", {})
    kind = schema.get("type") or " or ".join(part.get("type", "object") for part in schema.get("oneOf", ()))
    return f"| `{one['name']}` | {where} | {kind} | {_cell(one.get('description') or schema.get('description', ''))} |"


def _commands() -> Iterator[str]:
    from django.core.management import get_commands, load_command_class

    yield "# Options of the commands\n\nAs `--help` prints them. [What each command does](commands.md)."
    for name in sorted(name for name, app in get_commands().items() if app == "django_delayq"):
        parser = load_command_class("django_delayq", name).create_parser("manage.py", name)
        yield f"\n## {name}\n"
        yield parser.description or ""
        yield from _options(parser)


def _options(parser: ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, child in action.choices.items():
                yield f"\n### `{parser.prog.split()[-1]} {name}`\n"
                yield child.description or ""
                yield from _options(child)
        elif action.dest not in _DJANGO and action.help is not SUPPRESS:
            rows.append(f"| `{_spelling(action)}` | {_cell(_help(action))} |")
    if rows:
        yield from ("", "| option | meaning |", "|---|---|", *rows)


def _spelling(action: Action) -> str:
    choices = "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    name = action.metavar if isinstance(action.metavar, str) else choices
    return f"{action.option_strings[-1]} {name if action.nargs != 0 else ''}".strip() if action.option_strings else name


def _help(action: Action) -> str:
    return (action.help or "") % {**vars(action), "prog": ""} if action.help else ""


def _cell(text: str) -> str:
    """Return a text for a cell of a table; outside of code, brackets are no links and angles no tags."""
    text = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return re.sub(r"`[^`]*`|[\[<]", lambda found: _PLAIN.get(found[0], found[0]), text)
