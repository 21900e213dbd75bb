"""Tests of the list of faults: it fits the code, and the package in a copy is the one with the fault."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from .catalogue import DRAWN, ROOT, Fault, load, problems
from .copies import environment, project_copy

FAULT = Fault(
    "the window is of another length",
    "core/lua/lib/window.lua",
    "LENGTH = 100000",
    "LENGTH = 7",
    ("tests/faults/test_catalogue.py::test_every_fault_fits_the_code_and_names_existing_tests",),
)
PRINT_PACKAGE = """
import sys
import django_delayq
from django_delayq.core.redis.scripts import compose
print(django_delayq.__file__, "LENGTH = 7" in compose("settle"))
"""


def test_every_fault_fits_the_code_and_names_existing_tests() -> None:
    assert list(problems([*load(), *load(DRAWN)])) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (replace(FAULT, old="LENGTH = 8"), "occurs 0 times"),
        (replace(FAULT, old="WINDOW_LENGTH"), "occurs 2 times"),
        (replace(FAULT, file="core/lua/lib/door.lua"), "occurs 0 times"),
        (replace(FAULT, new=FAULT.old), "its new text equals the old one"),
        (replace(FAULT, tests=(FAULT.tests[0] + "_now",)), "there is no test"),
        (replace(FAULT, tests=("tests/faults/test_catalogue.py",)), "there is no test"),
    ],
)
def test_a_fault_that_cannot_be_tried_is_reported(wrong: Fault, message: str) -> None:
    assert list(problems([FAULT])) == []
    (problem,) = problems([wrong])
    assert message in problem


def test_every_process_of_a_copy_imports_the_faulty_package(tmp_path: Path) -> None:
    original = (ROOT / "django_delayq" / FAULT.file).read_text()
    with project_copy() as copy:
        FAULT.insert(copy)
        for folder in (copy, tmp_path):
            process = subprocess.run(
                [sys.executable, "-c", PRINT_PACKAGE],
                env=environment(copy),
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert process.stdout.split() == [str(copy / "django_delayq" / "__init__.py"), "True"]
    assert (ROOT / "django_delayq" / FAULT.file).read_text() == original
    assert not copy.exists()
