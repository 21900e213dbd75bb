"""Draw faults by a mutator: ``python -m tests.faults.mutations --number N [--seed S] [--only FOLDER ...]``.

Mutations are small changes of the package's source that tests should notice. Python and Lua are read line by line;
what no test should depend on is left out: texts, comments, log calls, imports, assertions, ``TYPE_CHECKING`` blocks.
The list ``drawn.toml`` gets so many new ones that it has N, in proportion to the code of each package. They are no
selection of what the tests are known to catch. ``python -m tests.faults`` then looks for a test that catches each. A
fault that none catches stays in the list without tests, until somebody writes the missing test, or writes next to it
why the change makes no difference (``equivalent``). One with which the package cannot be imported shows nothing about
the tests: take it out.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Final

from .catalogue import DRAWN, PACKAGE, ROOT, Fault, load

#: most lines that one mutation may span; a longer old text would not survive the next edit
_MOST_LINES: Final = 3
#: keywords that change nothing but texts, types or speed
_TEXT_WORDS: Final = (
    "help|help_text|text|description|short_description|verbose_name|verbose_name_plural|label|title|hint|metavar|summary"
    "|example|examples|requests|stacklevel|name|daemon|strict|frozen|slots|kw_only"
)
#: what is said to people: calls with texts, what is written and logged, errors' words, members with examples
_TEXTS: Final = re.compile(
    r"\b(?:logger|log|warnings|gettext|gettext_lazy|ngettext|add_argument|TypeVar|field|extend_schema\w*|OpenApi\w+"
    rf"|\w+\.write)\b[\w.]*\(.*|(?<=\w(?:Error)\().*|(?<=\wException\().*|^\s*(?:{_TEXT_WORDS})(?:: \w+)? = .*"
)
New = str | Callable[[re.Match[str]], str]
_COMMON: Final[Sequence[tuple[str, New]]] = [
    (r"(?<![<>~=!-])<=(?!=)", "<"),
    (r"(?<![<>~=!-])<(?![=<])", "<="),
    (r"(?<![<>~=!-])>=(?!=)", ">"),
    (r"(?<![<>~=!-])>(?![=>])", ">="),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot (?!in\b)", ""),
    (r"(?<=[\w)]) \+ (?=[\w(])", " - "),
    (r"(?<=[\w)]) - (?=[\w(])", " + "),
]
_LUA: Final[Sequence[tuple[str, New]]] = [
    *_COMMON,
    (r"==", "~="),
    (r"~=", "=="),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"(?<!.)(?:redis\.call|[a-z_]+)\([^()]*(?:\([^()]*\)[^()]*)*\) *$", ""),
]
_PYTHON: Final[Sequence[tuple[str, New]]] = [
    *_COMMON,
    (r"==", "!="),
    (r"!=", "=="),
    (r"\bis not\b", "is"),
    (r"\bis\b(?! not)", "is not"),
    (r"\bnot in\b", "in"),
    (r"(?<!not) in\b", " not in"),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"(?<=[\w)]) \* (?=[\w(])", " / "),
    (r"(?<=[\w)]) (?://|/|%) (?=[\w(])", " * "),
    (r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?![\w.])", lambda number: str(ast.literal_eval(number[0]) + 1)),
    (r"(?<=\bif )(?!not\b)(?!.*\bis\b)(?!.*[<>=])(?!.* in )[^:]+(?=: *$)", lambda condition: f"not ({condition[0]})"),
    (r"(?<=\breturn )(?!(?:None|True|False|\d+) *$).+$", "None"),
    (r"(?<!.)raise .+$", "pass"),
    (r"(?<!.)(?:await )?[\w.]+\(.*\) *$", "pass"),
    (rf"(?<=\()(?!{_TEXT_WORDS})\w+=[^,()]+(?:, (?!\*))?(?=.*\) *$)", ""),
    (rf", (?!{_TEXT_WORDS})\w+=[^,()]+(?=[,)])", ""),
]


@dataclass(frozen=True)
class Mutation:
    """A change of one place in one file."""

    file: str  #: below the package
    line: int
    where: str  #: qualified name of the function or class around it; empty for a module or a Lua file
    old: str
    new: str
    #: the file's text with the change
    text: str


def draw(
    number: int, seed: int, *, known: Collection[tuple[str, str]] = (), folders: Collection[str] = (), root: Path = ROOT
) -> list[Mutation]:
    """Return mutations, distributed over the package's folders in proportion to their lines that can be mutated.

    Args:
        number: how many, rounded up a little: each folder gets at least one.
        seed: the same seed draws the same mutations from the same source.
        known: file and old text of those that were drawn before; they count, and are not drawn again.
        folders: draw in these folders only, as many as they would get of ``number``; () = in all.
        root: the project.
    """
    chooser = random.Random(seed)
    by_folder: dict[str, dict[tuple[str, int], list[_Change]]] = defaultdict(lambda: defaultdict(list))
    texts = {file: (root / PACKAGE / file).read_text(encoding="utf-8") for file in _files(root)}
    for file, text in texts.items():
        for change in _changes(file, text):
            by_folder[_folder(file)][(file, text.count("\n", 0, change.start))].append(change)
    total = sum(map(len, by_folder.values()))
    before = Counter(_folder(file) for file, _ in known)
    drawn: list[Mutation] = []
    for folder, lines in sorted(by_folder.items()):
        if folders and folder not in folders:
            continue
        share = max(0, max(1, round(number * len(lines) / total)) - before[folder])
        places = sorted(lines)
        chooser.shuffle(places)
        made = (_mutation(file, texts[file], chooser.choice(lines[file, line])) for file, line in places)
        drawn += islice((one for one in made if one is not None and (one.file, one.old) not in known), share)
    return drawn


def _folder(file: str) -> str:
    return "lua" if file.endswith(".lua") else file.split("/", 1)[0].removesuffix(".py")


def _files(root: Path) -> list[str]:
    tracked = subprocess.run(["git", "ls-files", PACKAGE], cwd=root, capture_output=True, text=True, check=True)
    names = (name.removeprefix(f"{PACKAGE}/") for name in tracked.stdout.split())
    return sorted(name for name in names if name.endswith((".py", ".lua")) and not name.startswith("migrations/"))


def mutations(file: str, text: str) -> list[Mutation]:
    """Return all mutations of a file."""
    return [made for change in _changes(file, text) if (made := _mutation(file, text, change)) is not None]


@dataclass(frozen=True)
class _Change:
    start: int  #: offset in the text
    end: int
    new: str


def _changes(file: str, text: str) -> Iterator[_Change]:
    is_lua = file.endswith(".lua")
    rules = [(re.compile(pattern), new) for pattern, new in (_LUA if is_lua else _PYTHON)]
    bare = _without_texts_of_lua(text) if is_lua else _without_texts(text)
    offset = 0
    for line in bare.splitlines(keepends=True):
        code = line.lstrip(" ").rstrip("\n")
        start = offset + len(line.rstrip("\n")) - len(code)
        for pattern, new in rules:
            for match in pattern.finditer(code):
                changed = new if isinstance(new, str) else new(match)
                yield _Change(start + match.start(), start + match.end(), changed)
        offset += len(line)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _without_texts_of_lua(text: str) -> str:
    """Return a script of the same length without texts, comments and its first line."""
    return re.sub(r"^#!.*|'[^'\n]*'|\"[^\"\n]*\"|--.*", _blank, text, flags=re.MULTILINE)


def _without_texts(text: str) -> str:
    """Return a module of the same length without what no test should depend on."""
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    kept = list(text)

    def fill(start: int, end: int, with_char: str) -> None:
        kept[start:end] = [char if char == "\n" else with_char for char in kept[start:end]]

    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            (first, column), (last, end) = token.start, token.end
            fill(starts[first - 1] + column, starts[last - 1] + end, '"' if token.type == tokenize.STRING else " ")
    for node in ast.walk(ast.parse(text)):
        skipped = isinstance(node, ast.Import | ast.ImportFrom | ast.Assert)
        if skipped or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            fill(starts[node.lineno - 1], starts[node.end_lineno or node.lineno], " ")  # type: ignore[attr-defined]
    return "".join(
        _TEXTS.sub(lambda match: '"' * len(match[0]), line) for line in "".join(kept).splitlines(keepends=True)
    )


def _mutation(file: str, text: str, change: _Change) -> Mutation | None:
    """Return the mutation with enough of its surroundings that its old text occurs once, or None if there is none."""
    changed = text[: change.start] + change.new + text[change.end :]
    where = ""
    if file.endswith(".py"):
        try:
            compile(changed, "mutation", "exec")
        except (SyntaxError, ValueError):
            return None
        where = _where(text, text.count("\n", 0, change.start) + 1)
    start, end = text.rfind("\n", 0, change.start) + 1, text.find("\n", change.end) % (len(text) + 1)
    first = text.count("\n", 0, change.start) + 1
    for _ in range(_MOST_LINES):
        old = text[start:end]
        if old.count("\n") < _MOST_LINES and Fault("", file, old, "", ()).pattern().findall(text) == [old.strip()]:
            new = text[start : change.start] + change.new + text[change.end : end]
            return Mutation(file, first, where, old.strip(), new.strip(), changed)
        start = text.rfind("\n", 0, max(start - 1, 0)) + 1
    return None


def _where(text: str, line: int) -> str:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    around = [n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds) and n.lineno <= line <= (n.end_lineno or 0)]
    return ".".join(node.name for node in sorted(around, key=lambda node: node.lineno))


# --- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, required=True, help="number of faults in the list afterwards")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=(), metavar="FOLDER", help="draw in these folders of the package")
    options = parser.parse_args(arguments)
    known = [(fault.file, fault.old) for fault in load(DRAWN)]
    new = draw(options.number, options.seed, known=known, folders=options.only)
    with DRAWN.open("a", encoding="utf-8") as file:
        file.writelines(map(_entry, new))
    print(f"{len(new)} faults drawn")
    return 0


def _entry(mutation: Mutation) -> str:
    before, after = (" ".join(text.split()) for text in (mutation.old, mutation.new))
    name = f"{mutation.where or Path(mutation.file).stem}: `{before}` becomes `{after}`"
    entry = {"name": name, "file": mutation.file, "old": mutation.old, "new": mutation.new, "tests": []}
    return "\n[[fault]]\n" + "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entry.items()
    )


if __name__ == "__main__":
    sys.exit(main())
