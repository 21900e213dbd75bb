"""Count the code of each package, and compare it with the figures in ``code_size.toml``.

    .venv/bin/python tests/packaging/code_size.py            # part of `make check`
    .venv/bin/python tests/packaging/code_size.py --record   # store smaller figures

Code is what is left without imports, docstrings, comments and blank lines; tokens are counted beside lines, so that
nothing is gained by longer lines. A package may not exceed its figures: growth is a decision, made in
``code_size.toml`` where a reader of the change sees it. A package beyond its budget is marked, which is no error.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FIGURES: Final = Path(__file__).with_name("code_size.toml")
PACKAGE: Final = "django_delayq"
#: row of the scripts; all other rows are names of top modules and packages, joined by ``+``
LUA: Final = "lua"
KINDS: Final = ("lines", "tokens", "files")

_LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def python_size(text: str) -> Counter[str]:
    """Return the numbers of lines and tokens of a Python file."""
    left_out = {line for node in ast.walk(ast.parse(text)) for line in _lines_left_out(node)}
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT and token.start[0] not in left_out
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return Counter(lines=len(lines), tokens=len(tokens), files=1)


def _lines_left_out(node: ast.AST) -> Iterable[int]:
    """Return the lines of an import, or of the docstring of a definition."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return range(node.lineno, (node.end_lineno or 0) + 1)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return range(first.lineno, (first.end_lineno or 0) + 1)
    return ()


def lua_size(text: str) -> Counter[str]:
    """Return the numbers of lines and tokens of a script."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(("--", "#!"))]
    tokens = re.findall(r"'[^'\n]*'|\"[^\"\n]*\"|\w+|[^\s\w]", "\n".join(lines))
    return Counter(lines=len(lines), tokens=len(tokens), files=1)


def sizes(paths: Iterable[str], root: Path = ROOT) -> dict[str, Counter[str]]:
    """Return the size of each top module or package, and that of all scripts as ``lua``."""
    found: dict[str, Counter[str]] = {}
    for name in paths:
        folder, _, inside = name.partition("/")
        path = root / name
        if folder != PACKAGE or "migrations" in path.parts or path.suffix not in (".py", ".lua") or not path.is_file():
            continue
        row = LUA if path.suffix == ".lua" else inside.partition("/")[0].removesuffix(".py")
        measure = lua_size if path.suffix == ".lua" else python_size
        found.setdefault(row, Counter()).update(measure(path.read_text(encoding="utf-8")))
    return found


def compare(
    table: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the present figures of each row of the table, and what is wrong with them."""
    rows = {
        row: {kind: sum(found.get(part, {}).get(kind, 0) for part in row.split("+")) for kind in KINDS} for row in table
    }
    known = {part for row in table for part in row.split("+")}
    problems = [f"{name} has no row" for name in sorted(set(found) - known)]
    problems += [
        f"{row} has {rows[row][kind]} {kind}, and had {table[row][kind]}"
        for row in table
        for kind in KINDS
        if rows[row][kind] > table[row][kind]
    ]
    return rows, problems


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 if a package has grown."""
    table: dict[str, dict[str, int]] = tomllib.loads(FIGURES.read_text(encoding="utf-8"))
    rows, problems = compare(table, sizes(_files()))
    for row, now in rows.items():
        budget = table[row]
        over = now["lines"] > budget["budget_lines"] or now["files"] > budget["budget_files"]
        print(
            f"{row:52}{now['lines']:7} lines of {budget['budget_lines']:6} {now['files']:4} files of "
            f"{budget['budget_files']:4}{'  over its budget' if over else ''}"
        )
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        print(f"Shorten it, or decide on the growth: change {FIGURES.relative_to(ROOT)}.", file=sys.stderr)
        return 1
    if "--record" in arguments:
        FIGURES.write_text(_as_toml(table, rows), encoding="utf-8")
    elif any(now[kind] < table[row][kind] for row, now in rows.items() for kind in KINDS):
        print(f"There is less code than {FIGURES.relative_to(ROOT)} says: store it with --record.")
    return 0


def _files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", PACKAGE]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def _as_toml(table: Mapping[str, Mapping[str, int]], rows: Mapping[str, Mapping[str, int]]) -> str:
    head = "".join(line for line in FIGURES.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    parts = [
        f'\n["{row}"]\n' + "".join(f"{key} = {value}\n" for key, value in {**table[row], **rows[row]}.items())
        for row in table
    ]
    return head + "".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
