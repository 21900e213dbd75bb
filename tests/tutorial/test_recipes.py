"""The recipes of the documents, run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..testing.project import ROOT, Project

pytest_plugins = ("pytester",)

BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))


def blocks_of(page: Path) -> dict[str, str]:
    """Return the files that a page prints, by path."""
    return dict(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize(
    "page", [page for page in RECIPES if "def test_" in page.read_text()], ids=lambda page: page.stem
)
def test_a_recipe_works_as_printed(page: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(pytester, monkeypatch)
    files = blocks_of(page)
    for name, text in files.items():
        project.write(name, text)

    result = project.run()

    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=sum(text.count("def test_") for text in files.values()))


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_each_block_of_a_recipe_is_a_file_that_compiles(page: Path) -> None:
    assert page.read_text().count("```python") == len(blocks_of(page))
    for name, text in blocks_of(page).items():
        compile(text, name, "exec")
