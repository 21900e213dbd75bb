"""The documents name code that exists, link to what is there, and show the layers as the contract has them."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from django_delayq.core.outcomes import AttemptOutcome

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_delayq"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: documents for contributors, which name code as ``file.py::name``
FOR_CONTRIBUTORS = [
    ROOT / "CONTRIBUTING.md",
    ARCHITECTURE,
    ROOT / "docs" / "glossary.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
REFERENCE = re.compile(r"`([\w./-]+\.(?:py|lua|toml|md))(?:::([\w.]+))?`")
#: the same in a diagram, where nothing stands in quotes
BARE_REFERENCE = re.compile(r"(?<![`\w./-])([\w./-]+\.py)::([\w.]+)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def names_in(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Functions, classes and variables that are defined in a module or a class."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found.update({target.id: node for target in targets if isinstance(target, ast.Name)})
    return found


@cache
def is_defined(path: Path, name: str) -> bool:
    """Return True if a dotted name is defined in a file."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        node = names_in(body).get(part)
        if node is None:
            return False
        body = node.body if isinstance(node, ast.ClassDef) else []
    return True


def missing_code(text: str) -> list[str]:
    """References to code that does not exist; paths are relative to the package or to the project."""
    missing = []
    for path, name in REFERENCE.findall(text) + BARE_REFERENCE.findall(text):
        found = next((base / path for base in (PACKAGE, ROOT) if (base / path).is_file()), None)
        if "/" not in path and found is None:
            continue  # said of the file's own folder, or of any project
        if found is None or (name and not is_defined(found, name)):
            missing.append(f"{path}::{name}" if name else path)
    return missing


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a document."""
    text = FENCE.sub("", path.read_text())
    return {anchor_of(match[1]) for match in re.finditer(r"^#+ (.+)$", text, re.MULTILINE)}


def broken_links(path: Path) -> list[str]:
    """Links of a document to files or headings of the project that do not exist."""
    broken = []
    for link in LINK.findall(FENCE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_a_missing_name_is_found() -> None:
    good = "`core/queue.py::Queue.cancel` `core/lua/settle.lua` `tasks.py` worker/loop.py::Loop"
    bad = "`core/queue.py::Queue.produce` `core/door.py` worker/loop.py::Wheel"

    assert missing_code(f"{good} {bad}") == ["core/queue.py::Queue.produce", "core/door.py", "worker/loop.py::Wheel"]


@pytest.mark.parametrize("path", FOR_CONTRIBUTORS, ids=lambda path: path.name)
def test_documents_name_code_that_exists(path: Path) -> None:
    assert missing_code(path.read_text()) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_the_tests_that_make_runs_on_other_servers_exist() -> None:
    printed = subprocess.check_output(["make", "-n", "test-servers"], cwd=ROOT, text=True)
    listed = re.findall(r"(?<= )tests/\S+", printed)

    assert [path for path in listed if not (ROOT / path).exists()] == []
    assert listed.count("tests/core/test_reserve.py") == 2, "on a cluster and in memory"


def test_the_layers_are_shown_as_the_contract_has_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {contract["containers"][0]: contract["layers"] for contract in contracts if contract["type"] == "layers"}
    text = ARCHITECTURE.read_text()
    shown = text.partition("```layers\n")[2].partition("```")[0]
    in_core = re.findall(r"^\| `core/(\w+)` \|", text, re.MULTILINE)

    assert shown.split("\n")[:-1] == layers["django_delayq"]
    assert [name for name in in_core if name != "lua"] == layers["django_delayq.core"]


def test_every_package_is_in_the_table_of_layers() -> None:
    text = ARCHITECTURE.read_text().partition("## Layers")[2].partition("\n## ")[0]
    shown = text.partition("```layers\n")[2].partition("```")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))

    assert listed == set(re.findall(r"\w+", shown))


def test_every_key_of_a_shard_is_in_the_data_model() -> None:
    from django_delayq.core.records.keys import PRIORITIES, SHARD_KEYS

    text = ARCHITECTURE.read_text().partition("## Data model")[2].partition("Keys of the deployment:")[0]
    listed = {
        name for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    }

    assert listed | {f"due.{priority}" for priority in range(PRIORITIES)} == set(SHARD_KEYS)


def test_every_outcome_of_an_attempt_is_in_the_columns_of_an_event() -> None:
    row = next(
        line for line in (ROOT / "docs" / "pipeline.md").read_text().splitlines() if line.startswith("| `outcome` |")
    )
    assert " ".join(re.findall(r"`([a-z ]+)`", row)[1:]).split() == list(AttemptOutcome)


def section(path: Path, heading: str) -> str:
    """Return the text of a section up to its first blank line after a list."""
    return re.sub(
        r"\s+", " ", path.read_text().partition(f"\n## {heading}\n")[2].partition("\n\n[")[0].partition("\n\nWhat ")[0]
    )


def test_the_promise_is_the_same_in_the_readme_and_in_its_page() -> None:
    promise = section(ROOT / "README.md", "The promise")

    assert promise.startswith(" * **At least once**")
    assert promise == section(ROOT / "docs" / "promise.md", "The promise")


def test_the_readme_is_short() -> None:
    """At most 1,200 words beside the promise."""
    text = (ROOT / "README.md").read_text()

    assert len(text.split()) - len(section(ROOT / "README.md", "The promise").split()) <= 1_200


def test_every_picture_is_shown_and_every_picture_that_is_shown_exists() -> None:
    pictures = ROOT / "docs" / "pictures"
    shown = {
        (path.parent / name).resolve()
        for path in DOCUMENTS
        for name in re.findall(r"\]\(([^)\s]+\.png)\)", path.read_text())
    }

    assert shown == set(pictures.glob("*.png"))
    assert sum(one.stat().st_size for one in shown) < 2_000_000


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))

    assert sorted(pages - listed) == []


def test_the_extras_of_the_readme_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = section(ROOT / "README.md", "Extras")
    listed = set(re.findall(r"`([\w-]+)`", " ".join(re.findall(r"(?:^|\| )((?:`[\w-]+`(?:, )?)+) \|", table))))
    in_all = set(re.search(r"\[(.*)\]", extras["all"][0])[1].split(","))  # type: ignore[index]

    assert listed == set(extras) - {"demo", "test", "docs", "dev"}
    assert in_all == listed - {"embedded", "tasks", "all", "spark"}


#: what users of these systems write
THEIR_WORDS = {
    "delayedQueue": "enqueueWithDelayNonBlocking subscribe() block() getId() addHandler removeHandler Mono.just "
    "eventContext delayedEventService() client( mapper( handlerScheduler enableScheduling schedulingInterval "
    "schedulingBatchSize pollingTimeout eventContextHandler dataSetPrefix retryAttempts metrics( close() "
    "delayed.queue.ready.for.handling.count refreshSubscriptionsInterval",
    "nereus": "put putIfAbsent offer expectedTime take() take(callback) poll(timeout) completeJob retry(job) timeout "
    "lives lostLives computeRetryInterval remove(id) clear() size() topic Waiting Ready Back Metadata",
}


@pytest.mark.parametrize("system", THEIR_WORDS)
def test_the_words_of_related_systems_are_all_there(system: str) -> None:
    text = (ROOT / "docs" / "coming-from" / "words.md").read_text()
    rows = text.split(f"| **{system}** ")[1].split("| **")[0].splitlines()
    theirs = " ".join(row.removeprefix("| ").split(" | ")[0] for row in rows)
    assert [word for word in THEIR_WORDS[system].split() if word not in theirs] == []
