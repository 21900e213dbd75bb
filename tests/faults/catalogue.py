"""List of faults: reads it, and checks that it still fits the code and the tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
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
    at_first: bool = True  #: some test caught it when it was drawn; False = a test may still be missing
    equivalent: str = ""  #: why the change makes no difference that a test could see

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the old text however the formatter breaks and indents it."""
        return re.compile(r"\s+".join(map(re.escape, self.old.split())))

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
        if not fault.tests and fault.at_first and not fault.equivalent:
            yield f"{fault.name}: it names no test"
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
