"""The recipes of the documents, and the guide to limits, run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..testing.project import ROOT, Project

pytest_plugins = ("pytester",)

BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = [*sorted((ROOT / "docs" / "recipes").glob("*.md")), ROOT / "docs" / "limits.md"]


def blocks_of(page: Path) -> dict[str, str]:
    """Return the files that a page prints, by path."""
    return dict(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", [page for page in RECIPES if page.stem != "index"], ids=lambda page: page.stem)
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


#: Sentry's package in as much as the recipe uses it, and a test that the recipe's hook and logger are right
SENTRY = {
    "sentry_sdk/__init__.py": """
import contextlib

captured, tags = [], {}


class Scope:
    set_tags = staticmethod(tags.update)


@contextlib.contextmanager
def new_scope():
    yield Scope


capture_exception = captured.append
""",
    "sentry_sdk/integrations/__init__.py": "",
    "sentry_sdk/integrations/logging.py": "ignored = []\nignore_logger = ignored.append\n",
    "tests/test_sentry.py": """
import sentry_sdk
from django_delayq import schedule, task
from sentry_sdk.integrations.logging import ignored


@task(name="shop.fails", max_attempts=1)
def fails():
    raise ValueError("no")


def test_a_failure_is_sent_once(settings, delayq_fake, caplog):
    settings.DELAYQ = {**settings.DELAYQ, "HOOKS": {"report_error": "shop.sentry.report"}}
    schedule(fails, id="x")
    delayq_fake.run_due(raise_errors=False)
    assert [str(error) for error in sentry_sdk.captured] == ["no"]
    assert sentry_sdk.tags == {"task": "shop.fails", "job": "x", "attempt": 1}
    assert {record.name for record in caplog.records if record.levelname == "ERROR"} == set(ignored)
    assert ignored == ["django_delayq.worker.notifier"]
""",
}


def test_the_recipe_for_sentry_sends_each_failure_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(pytester, monkeypatch)
    page = blocks_of(ROOT / "docs" / "recipes" / "observe.md")
    for name, text in {**SENTRY, "shop/sentry.py": page["shop/sentry.py"]}.items():
        project.write(name, text)

    project.run().assert_outcomes(passed=1)
