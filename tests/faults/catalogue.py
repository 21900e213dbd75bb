"""List of faults: reads it, and checks that it still fits the code and the tests."""

from __future__ import annotations

import ast
import json
import re
import threading
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "django_delayq"
CATALOGUE: Final = Path(__file__).with_name("faults.toml")
DRAWN: Final = Path(__file__).with_name("drawn.toml")


@dataclass(frozen=True)
class Fault:
    """A slip in one file of the package."""

    name: str  #: what goes wrong, as a sentence
    file: str  #: below the package
    old: str
    new: str
    tests: tuple[str, ...]  #: pytest's names of tests, of which at least one has to fail
    at_first: bool = True  #: a test caught it when it was drawn
    equivalent: str = ""  #: why the change makes no difference that a test could see

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the old text however the formatter breaks and indents it."""
        return re.compile(r"\s+".join(map(re.escape, self.old.split())))

    def lines(self) -> range:
        """Return the numbers of the lines that it changes; none if the file has changed since it was listed."""
        text = (ROOT / PACKAGE / self.file).read_text(encoding="utf-8")
        match = self.pattern().search(text)
        first = text.count("\n", 0, match.start()) + 1 if match else 0
        return range(first, first + match[0].count("\n") + 1) if match else range(0)

    def insert(self, root: Path) -> None:
        """Replace the old text by the new one in the project at ``root``."""
        path = root / PACKAGE / self.file
        text, times = self.pattern().subn(lambda _: self.new.strip(), path.read_text(encoding="utf-8"))
        if times != 1:
            raise ValueError(f"{self.file} has the old text of {self.name!r} {times} times")
        path.write_text(text, encoding="utf-8")


def load(path: Path = CATALOGUE) -> list[Fault]:
    """Return the faults of a list."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


_writing: Final = threading.Lock()
_TESTS: Final = re.compile(r"^tests = \[(?:.*\]|\n(?: .*\n)*\])$", re.MULTILINE)


def remember(path: Path, fault: Fault, caught_by: Sequence[str]) -> None:
    """Write into the list which tests caught a fault, or that none did; the rest of the file stays as it is."""
    if any(test.startswith(known) for test in caught_by for known in fault.tests):
        return
    tests = "".join(f"    {json.dumps(test, ensure_ascii=False)},\n" for test in (*fault.tests, *caught_by))
    block = f"tests = [\n{tests}]" if tests else "tests = []"
    if fault.at_first and not tests:
        block += "\nat_first = false"
    with _writing:
        text = path.read_text(encoding="utf-8")
        names = re.finditer(r"^name = .+$", text, re.MULTILINE)
        start = next(match.end() for match in names if tomllib.loads(match[0])["name"] == fault.name)
        path.write_text(text[:start] + _TESTS.sub(lambda _: block, text[start:], count=1), encoding="utf-8")


def figures(drawn: Sequence[Fault]) -> str:
    """Return how many of the drawn faults are caught, in a sentence."""
    caught = [fault for fault in drawn if fault.tests]
    equivalent = sum(bool(fault.equivalent) for fault in drawn)
    return (
        f"{len(drawn)} drawn, {sum(fault.at_first for fault in caught)} caught at first, {len(caught)} now, "
        f"{equivalent} without a difference, {len(drawn) - len(caught) - equivalent} open."
    )


def problems(faults: Iterable[Fault], root: Path = ROOT) -> Iterator[str]:
    """Yield the reasons why faults cannot be tried on the project at ``root``."""
    names: set[str] = set()
    for fault in faults:
        if fault.name in names:
            yield f"{fault.name}: there are two faults of this name"
        names.add(fault.name)
        path = root / PACKAGE / fault.file
        times = len(fault.pattern().findall(path.read_text(encoding="utf-8"))) if path.is_file() else 0
        if times != 1:
            yield f"{fault.name}: its old text occurs {times} times in {fault.file}"
        if fault.new == fault.old:
            yield f"{fault.name}: its new text equals the old one"
        for test in fault.tests:
            if not is_test(root, test):
                yield f"{fault.name}: there is no test {test}"


def is_test(root: Path, test: str) -> bool:
    """Return True if the file has such a test, ``file.py::function`` or ``file.py::Class::function``."""
    file, *inside = test.partition("[")[0].split("::")
    path = root / file
    return bool(inside) and path.is_file() and ".".join(inside) in _tests_in(path)


@cache
def _tests_in(path: Path) -> frozenset[str]:
    return frozenset(_functions(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _functions(nodes: Iterable[ast.stmt], prefix: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
