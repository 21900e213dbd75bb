"""The pages of the reference are complete: every setting, check, command, signal, event and public name."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

from django.apps import apps
from django.core.management import get_commands
from django.dispatch import Signal

import django_delayq
from django_delayq import signals
from django_delayq.core.events import COLUMNS
from django_delayq.core.outcomes import AttemptOutcome
from django_delayq.core.redis.config import CHECKS, RedisConfig
from django_delayq.settings import conf
from tests.packaging import settings_tables

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_delayq"
#: how the forms of ``REDIS`` name what a RedisConfig has under other names
OF_ADDRESS = {"host", "port", "path", "sentinels", "sentinel_master", "cluster_nodes"}


@cache
def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / f"{name}.md").read_text()


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`" in line.split("|")[1]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def part(name: str, heading: str) -> str:
    return page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_setting_is_described() -> None:
    listed = [name for cells in rows(page("settings").partition("\n## ")[0]) for name in names(cells[0])]

    assert sorted(listed) == sorted(field.name.upper() for field in fields(conf.Conf))


def test_the_tables_of_sections_are_those_of_the_code() -> None:
    assert settings_tables.page() == page("settings"), "python -m tests.packaging.settings_tables --write"
    assert {name for name in settings_tables.sections() if f"\n## {name}\n" not in page("settings")} == set()


def test_every_option_of_redis_is_described() -> None:
    listed = {name.lower() for cells in rows(part("settings", "REDIS")) for name in names(cells[0])}
    configured = {field.name for field in fields(RedisConfig)} - {"ssl_options"}

    assert listed == set(CHECKS) - OF_ADDRESS
    assert configured - OF_ADDRESS <= listed


def test_every_check_is_described() -> None:
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = set(re.findall(r"\bdelayq\.[EW]\d{3}\b", source)) | {
        f"delayq.{found}" for found in re.findall(r"[\"'{}]([EW]\d{3})\b[\"']", source)
    }

    assert {name for cells in rows(page("checks")) for name in names(cells[0])} == used


def test_every_command_is_described() -> None:
    commands = {name for name, app in get_commands().items() if app == "django_delayq"}

    assert {name for cells in rows(page("commands")) for name in names(cells[0])} == commands


def test_every_signal_is_described_with_its_arguments() -> None:
    described = {names(cells[0])[0]: re.sub(r"\([^)]*\)", "", cells[2]) for cells in rows(page("signals"))}
    comments = dict[str, str]()
    block = ""
    for line in (PACKAGE / "signals.py").read_text().splitlines():
        if line.startswith("#:"):
            block += line
        elif found := re.match(r"(job_\w+): Final = Signal", line):
            comments[found[1]] = re.sub(r"\([^)]*\)", "", block.partition("Arguments:")[2].partition(". ")[0])
            block = ""
    arguments = {name: re.findall(r"``(\w+)``", comment) for name, comment in comments.items()}

    assert described.keys() == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert {name: names(cell) for name, cell in described.items()} == arguments


def test_every_field_and_outcome_of_an_event_is_described() -> None:
    outcomes, columns = page("events").split("| field |")

    assert [name for cells in rows(outcomes) for name in names(cells[0])] == list(AttemptOutcome)
    assert sorted(name for cells in rows(columns) for name in names(cells[0])) == sorted(COLUMNS)


def test_every_public_name_is_in_the_python_api() -> None:
    text = page("python")
    errors = {
        node.name
        for module in ("errors", "verdicts")
        for node in ast.parse((PACKAGE / "core" / f"{module}.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    described = {found.rpartition(".")[2] for found in re.findall(r"^::: (\S+)$", text, re.MULTILINE)} | errors

    assert "::: django_delayq.core.errors\n" in text and "::: django_delayq.core.verdicts\n" in text
    assert [name for name in django_delayq.__all__ if name not in described and f"`{name}`" not in text] == [
        "__version__"
    ]


def test_every_permission_of_the_admin_is_listed() -> None:
    text = (ROOT / "docs" / "admin.md").read_text().partition("<!-- permissions")[2].partition("<!-- end")[0]
    made = {
        codename
        for model in apps.get_app_config("django_delayq").get_models()
        for codename, _ in (
            *((f"{verb}_{model._meta.model_name}", "") for verb in model._meta.default_permissions),
            *model._meta.permissions,
        )
    }
    assert set(re.findall(r"`(\w+)`", text)) == {name for name in made if not name.startswith("api_")}
