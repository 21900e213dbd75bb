"""Bounds of the dependencies whose unpublished names are used, and the versions on which the tests run."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirement(name: str) -> Requirement:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    texts = chain(project["dependencies"], *project["optional-dependencies"].values())
    (found,) = [one for one in map(Requirement, texts) if one.name == name]
    return found


@pytest.mark.parametrize("name", ["redis", "fakeredis"])
def test_a_dependency_with_unpublished_names_in_use_has_an_upper_bound(name: str) -> None:
    """A later version may drop them: it is allowed when the tests have run on it (CONTRIBUTING.md)."""
    bounds = {one.operator: Version(one.version) for one in requirement(name).specifier}
    assert bounds.keys() == {">=", "<"}
    assert bounds[">="] <= Version(version(name)) < bounds["<"], "the tests run on a version that is not allowed"


def test_no_other_package_is_used_by_its_unpublished_modules() -> None:
    package = PYPROJECT.parent / "django_delayq"
    used = re.compile(r"^\s*(?:from|import) ([a-z_0-9]+)(?:\.[a-z_0-9]+)*\._", re.MULTILINE)
    found = {name for file in package.rglob("*.py") for name in used.findall(file.read_text())}
    assert found <= {"fakeredis", "redis"}
