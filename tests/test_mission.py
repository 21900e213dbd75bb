"""Table of what the product is for: every feature and every scenario has tests that exist."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.catalogue import ROOT, is_test

TABLE: Final = Path(__file__).with_name("mission.toml")
FEATURES: Final = [f"F{number}" for number in range(1, 110)]
SCENARIOS: Final = [f"T{number:02}" for number in range(1, 65)]
ROW: Final = {"id": "F1", "what": "It holds.", "tests": ["tests/test_mission.py::test_each_row_has_tests_that_exist"]}

Row = Mapping[str, Any]


def problems(rows: Iterable[Row], expected: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with the rows, which should have the expected ids in this order."""
    ids = [row["id"] for row in rows]
    if ids != list(expected):
        yield f"the ids are {' '.join(ids)}"
    for row in rows:
        if not row["what"].endswith("."):
            yield f"{row['id']}: it says nothing that could be proved"
        if not row["tests"]:
            yield f"{row['id']}: it names no test"
        if len(set(row["tests"])) < len(row["tests"]):
            yield f"{row['id']}: it names a test twice"
        for test in row["tests"]:
            if not is_test(ROOT, test):
                yield f"{row['id']}: there is no test {test}"


def test_each_row_has_tests_that_exist() -> None:
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["row"]
    assert list(problems(rows, FEATURES + SCENARIOS)) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the ids are"),
        ([ROW, ROW], "the ids are F1 F1"),
        ([ROW | {"id": "F2"}], "the ids are F2"),
        ([ROW | {"what": ""}], "it says nothing"),
        ([ROW | {"tests": []}], "it names no test"),
        ([ROW | {"tests": [*ROW["tests"], *ROW["tests"]]}], "it names a test twice"),
        ([ROW | {"tests": [f"{ROW['tests'][0]}_now"]}], "there is no test"),
        ([ROW | {"tests": ["tests/test_mission.py"]}], "there is no test"),
    ],
)
def test_a_row_without_proof_is_reported(rows: list[Row], message: str) -> None:
    assert list(problems([ROW], ["F1"])) == []
    (problem,) = problems(rows, ["F1"])
    assert message in problem
