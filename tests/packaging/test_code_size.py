"""Size of the code: what counts, and that a package which grows is reported."""

from __future__ import annotations

from pathlib import Path

from .code_size import compare, lua_size, python_size, sizes

PYTHON = '''"""A module
of two lines."""

import os
from x import (
    y,
)

# a comment
def f(a: int) -> str:
    """Return it."""
    text = """two
lines"""
    return text  # here
'''


def test_lines_and_tokens_leave_out_imports_docstrings_comments_and_blank_lines() -> None:
    assert python_size(PYTHON) == {"lines": 4, "tokens": 15, "files": 1}
    assert lua_size("#!lua flags=no-writes\n-- why\nlocal a = 'x y'\n\n  return a\n") == {
        "lines": 2,
        "tokens": 6,
        "files": 1,
    }


def test_packages_modules_and_scripts_are_counted_by_row_without_migrations_and_deleted_files(tmp_path: Path) -> None:
    names = ["core/a.py", "core/b.py", "core/lua/c.lua", "logs.py", "migrations/0001.py", "static/x.js"]
    paths = [f"django_delayq/{name}" for name in names]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("a = 1\n")
    one = {"lines": 1, "tokens": 3, "files": 1}
    assert sizes([*paths, "django_delayq/core/gone.py", "tests/x.py"], tmp_path) == {
        "core": {"lines": 2, "tokens": 6, "files": 2},
        "lua": one,
        "logs": one,
    }


def test_a_package_that_grows_or_is_new_is_reported() -> None:
    table = {"core": {"lines": 5, "tokens": 50, "files": 2}, "logs+apps": {"lines": 9, "tokens": 90, "files": 3}}
    found = {
        "core": {"lines": 5, "tokens": 51, "files": 2},
        "logs": {"lines": 1, "tokens": 9, "files": 1},
        "apps": {"lines": 8, "tokens": 80, "files": 3},
        "new": {"lines": 1, "tokens": 1, "files": 1},
    }
    rows, problems = compare(table, found)
    assert rows["logs+apps"] == {"lines": 9, "tokens": 89, "files": 4}
    assert problems == ["new has no row", "core has 51 tokens, and had 50", "logs+apps has 4 files, and had 3"]
