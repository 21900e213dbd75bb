"""Tests of the program that tries the faults: it finds and keeps the test that catches one, and reports the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from . import __main__ as program
from .catalogue import DRAWN, ROOT, Fault, figures, load, remember
from .recording import record

RECORDED = "tests/core/test_ids.py::test_random_ids_are_20_characters_that_no_command_takes_for_an_option"
OLD, SHORT, SAME = "id_from(os.urandom(15))", "id_from(os.urandom(12))", "id_from(bytes(os.urandom(15)))"
LIST = """\
# what goes wrong

[[fault]]
name = "A \\"new\\" id is too short"
file = "core/job.py"
old = {old}
new = {short}
tests = []

# --- more

[[fault]]
name = "An id is the same"
file = "core/job.py"
old = {old}
new = {same}
tests = []
"""


@pytest.mark.slow
def test_a_fault_without_tests_is_caught_by_one_that_executes_its_line_and_the_list_keeps_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(["-p", "no:cacheprovider", RECORDED], tmp_path / "record") == 0
    file = tmp_path / "list.toml"
    texts = {"old": OLD, "short": SHORT, "same": SAME}
    file.write_text(LIST.format(**{name: repr(text) for name, text in texts.items()}))

    code = program.main(["--no-clean-run", "--record", str(tmp_path / "record"), "--catalogue", str(file)])

    assert code == 1, "one survives"
    caught, survivor = load(file)
    assert (caught.tests, caught.at_first) == ((RECORDED,), True)
    assert (survivor.tests, survivor.at_first) == ((), False)
    assert file.read_text().startswith("# what goes wrong\n") and "\n# --- more\n" in file.read_text()
    printed = capsys.readouterr().out
    assert f"by {RECORDED}" in printed and "SURVIVED" in printed and "1 of 2 faults caught" in printed


@pytest.mark.parametrize(
    "written", ["[]", '["tests/a.py::t"]', '[\n    "tests/a.py::t",\n]'], ids=["none", "a line", "lines"]
)
def test_what_caught_a_fault_is_written_to_its_own_entry_however_that_was_written(tmp_path: Path, written: str) -> None:
    file = tmp_path / "list.toml"
    texts = LIST.format(old=repr(OLD), short=repr(SHORT), same=repr(SAME))
    file.write_text(texts.replace("tests = []", f"tests = {written}"))
    first, second = load(file)

    remember(file, first, ["tests/b.py::t"])

    assert load(file) == [replace(first, tests=(*first.tests, "tests/b.py::t")), second]


@pytest.mark.parametrize(
    ("changed", "is_selected"),
    [
        ({"django_delayq/core/job.py"}, True),
        ({"tests/core/test_ids.py"}, True),
        ({"django_delayq/core/queue.py", "tests/core/test_queue.py"}, False),
        (None, True),
    ],
)
def test_changed_faults_are_those_whose_file_or_tests_differ(changed: set[str] | None, *, is_selected: bool) -> None:
    fault = Fault("a short id", "core/job.py", "a", "b", (RECORDED,))

    assert program._is_selected(fault, (), changed) is is_selected


def test_the_page_for_contributors_has_the_figures_of_the_list() -> None:
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())

    assert figures(load(DRAWN)) in page
