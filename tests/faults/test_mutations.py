"""Tests of the mutator: what it draws is small, compiles, and is the same for the same seed."""

from __future__ import annotations

import ast

import pytest

from .catalogue import PACKAGE, ROOT, Fault
from .mutations import Mutation, draw, mutations

SOURCE = '''
"""Text of the module: 1 < 2."""
import logging

logger = logging.getLogger(__name__)


def limit(value: int = 5, *, strict: bool = True) -> int:
    """Return value + 1."""
    if value < 0 and strict:
        raise ValueError(f"{value} < 0")
    logger.warning("%d jobs", value)
    send(value, confirm=True)
    return value + 1
'''
SCRIPT = """#!lua flags=no-writes
-- if a < b then nothing
if due <= now_ms and not paused then
  redis.call('ZREM', KEYS[1], 'a < b')
end
"""


def changes(file: str, text: str) -> set[tuple[str, str]]:
    """Return the old and new texts of all mutations of a file."""
    return {(one.old, one.new) for one in mutations(file, text)}


def test_conditions_limits_defaults_errors_results_and_calls_of_python_are_changed() -> None:
    assert changes("a.py", SOURCE) == {
        ("def limit(value: int = 5, *, strict: bool = True) -> int:", new)
        for new in (
            "def limit(value: int = 6, *, strict: bool = True) -> int:",
            "def limit(value: int = 5, *, strict: bool = False) -> int:",
        )
    } | {
        ("if value < 0 and strict:", new)
        for new in (
            "if value < 0 or strict:",
            "if value <= 0 and strict:",
            "if value < 1 and strict:",
        )
    } | {
        ('raise ValueError(f"{value} < 0")', "pass"),
        ("send(value, confirm=True)", "pass"),
        ("send(value, confirm=True)", "send(value)"),
        ("send(value, confirm=True)", "send(value, confirm=False)"),
        ("return value + 1", "return None"),
        ("return value + 1", "return value - 1"),
        ("return value + 1", "return value + 2"),
    }


def test_conditions_and_calls_of_a_script_are_changed_but_not_its_texts() -> None:
    assert changes("core/lua/a.lua", SCRIPT) == {
        ("if due <= now_ms and not paused then", "if due < now_ms and not paused then"),
        ("if due <= now_ms and not paused then", "if due <= now_ms or not paused then"),
        ("if due <= now_ms and not paused then", "if due <= now_ms and paused then"),
        ("redis.call('ZREM', KEYS[1], 'a < b')", ""),
    }


@pytest.fixture(scope="module")
def drawn() -> list[Mutation]:
    return draw(60, seed=7)


def test_a_draw_has_faults_of_every_folder_that_can_be_put_in(drawn: list[Mutation]) -> None:
    folders = {path.name for path in (ROOT / PACKAGE).iterdir() if (path / "__init__.py").exists()}
    assert {one.file.split("/")[0] for one in drawn} >= folders - {"migrations"}
    for one in drawn:
        text = (ROOT / PACKAGE / one.file).read_text(encoding="utf-8")
        assert len(Fault("", one.file, one.old, one.new, ()).pattern().findall(text)) == 1
        if one.file.endswith(".py"):
            ast.parse(one.text)


@pytest.mark.slow
def test_a_draw_repeats_with_its_seed_and_has_as_many_of_a_folder_alone_as_of_it_among_all(
    drawn: list[Mutation],
) -> None:
    of_admin = [one for one in drawn if one.file.startswith("admin/")]
    alone = draw(60, seed=7, folders=["admin"])
    assert alone == draw(60, seed=7, folders=["admin"])
    assert len(alone) == len([one for one in alone if one.file.startswith("admin/")]) == len(of_admin) > 3


@pytest.mark.parametrize("text", ["", '"""Only a text."""\n', "import os\n"])
def test_a_file_without_code_has_no_faults(text: str) -> None:
    assert mutations("a.py", text) == []
