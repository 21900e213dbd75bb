"""Mutations of the package: small changes of its source that tests should notice, drawn with a fixed seed.

Python files are read as syntax trees, Lua files line by line. What no test should depend on is left out: docstrings,
texts for people, log calls, annotations, imports, ``TYPE_CHECKING`` blocks.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from .catalogue import PACKAGE, ROOT

#: most lines that one mutation may span; a longer old text would not survive the next edit
_MOST_LINES: Final = 3
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
#: calls whose arguments are texts for people, and calls without an effect that a test should notice
_TEXT_CALLS: Final = re.compile(
    r"^(logger|log|warnings|_|gettext|gettext_lazy|ngettext|add_argument|TypeVar|field|extend_schema\w*|OpenApi\w+)$|(Error|Warning|Exception)$"
)
#: keywords that change nothing but texts, types or speed
_TEXT_KEYWORDS: Final = frozenset(
    {
        "help",
        "help_text",
        "text",
        "description",
        "short_description",
        "verbose_name",
        "verbose_name_plural",
        "label",
        "title",
        "hint",
        "metavar",
        "summary",
        "example",
        "examples",
        "requests",
        "stacklevel",
        "name",
        "daemon",
        "strict",
        "frozen",
        "slots",
        "kw_only",
    }
)
_LUA_CHANGES: Final = (
    (re.compile(r"(?<![<>~=])<=(?!=)"), "<"),
    (re.compile(r"(?<![<>~=])<(?!=)"), "<="),
    (re.compile(r"(?<![<>~=])>=(?!=)"), ">"),
    (re.compile(r"(?<![<>~=])>(?!=)"), ">="),
    (re.compile(r"=="), "~="),
    (re.compile(r"~="), "=="),
    (re.compile(r"\band\b"), "or"),
    (re.compile(r"\bor\b"), "and"),
    (re.compile(r"\bnot "), ""),
    (re.compile(r"(?<=[\w)]) \+ (?=[\w(])"), " - "),
    (re.compile(r"(?<=[\w)]) - (?=[\w(])"), " + "),
    (re.compile(r"\btrue\b"), "false"),
    (re.compile(r"\bfalse\b"), "true"),
)
_LUA_CALL: Final = re.compile(r"^\s*(redis\.call|[a-z_]+)\([^()]*(\([^()]*\)[^()]*)*\)\s*$")
_LUA_TEXT: Final = re.compile(r"'[^']*'|\"[^\"]*\"|--.*$")


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
    number: int,
    seed: int,
    *,
    known: Collection[tuple[str, str]] = (),
    folders: Collection[str] = (),
    root: Path = ROOT,
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


def _changes(file: str, text: str) -> list[_Change]:
    return list(_lua_changes(text) if file.endswith(".lua") else _python_changes(text))


@dataclass(frozen=True)
class _Change:
    start: int  #: offset in the text
    end: int
    new: str
    where: str = ""


def _mutation(file: str, text: str, change: _Change) -> Mutation | None:
    """Return the mutation with enough of its surroundings that its old text occurs once, or None if there is none."""
    changed = text[: change.start] + change.new + text[change.end :]
    if file.endswith(".py") and not _compiles(changed):
        return None
    start, end = _line_span(text, change.start, change.end)
    first = text.count("\n", 0, change.start) + 1
    for _ in range(_MOST_LINES):
        old = text[start:end]
        if old.count("\n") < _MOST_LINES and _occurs_once(old, text):
            new = text[start : change.start] + change.new + text[change.end : end]
            return Mutation(file, first, change.where, old.strip(), new.strip(), changed)
        start = text.rfind("\n", 0, max(start - 1, 0)) + 1
    return None


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutation", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _line_span(text: str, start: int, end: int) -> tuple[int, int]:
    after = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if after < 0 else after


def _occurs_once(old: str, text: str) -> bool:
    words = old.split()
    return bool(words) and len(re.findall(r"\s+".join(map(re.escape, words)), text)) == 1


# --- Python


def _python_changes(text: str) -> list[_Change]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    finder = _Finder(text.encode(), starts)
    finder.visit(ast.parse(text))
    found = []
    for start, end, new, where in finder.found:  # offsets in bytes, as those of the syntax tree
        before = len(text.encode()[:start].decode())
        found.append(_Change(before, before + len(text.encode()[start:end].decode()), new, where))
    return found


class _Finder(ast.NodeVisitor):
    """Collector of the changes of one module."""

    def __init__(self, source: bytes, starts: list[int]) -> None:
        self.found: list[tuple[int, int, str, str]] = []
        self._source = source
        self._starts = starts
        self._names: list[str] = []

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replace(self, node: ast.AST, new: str) -> None:
        self.found.append((*self._span(node), new, ".".join(self._names)))

    def _replace_between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end].decode()
        if gap.count(old) == 1:
            at = start + len(gap[: gap.index(old)].encode())
            self.found.append((at, at + len(old), new, ".".join(self._names)))

    # --- what is left out, and where we are

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        for part in [*node.decorator_list, *node.body]:
            self.visit(part)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave out annotations; defaults count."""
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
            self.visit(default)
        self._enter(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Leave out annotations."""
        self._enter(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Leave out base classes."""
        if node.name not in {"Media"} and not any(self._text(base).endswith("Protocol") for base in node.bases):
            self._enter(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out the annotation, and examples of documents."""
        if node.value is not None and not (isinstance(node.target, ast.Name) and node.target.id in _TEXT_KEYWORDS):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Leave out texts and examples of documents."""
        if not any(isinstance(target, ast.Name) and target.id in _TEXT_KEYWORDS for target in node.targets):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Leave out imports."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Leave out imports."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave out assertions."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out texts."""

    # --- what is changed

    def visit_If(self, node: ast.If) -> None:
        """Negate a condition."""
        if self._text(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate a condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Loops are not negated: a fault that never ends shows nothing but a time limit."""
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._replace(test, f"not ({self._text(test)})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop a ``not``."""
        if isinstance(node.op, ast.Not):
            self._replace(node, self._text(node.operand))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Turn a comparison, or move its limit by one."""
        left: ast.expr = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._replace_between(left, right, *_COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange ``and`` and ``or``."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._replace_between(node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Exchange an operator, but not that of texts."""
        texts = any(isinstance(part, ast.JoinedStr) or _is_text(part) for part in (node.left, node.right))
        if type(node.op) in _ARITHMETIC and not texts:
            self._replace_between(node.left, node.right, *_ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a number, or turn a truth value."""
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        """Return None instead."""
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._replace(node, "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Raise nothing."""
        if node.exc is not None:
            self._replace(node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        """Leave out a call."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not _is_text_call(value):
            self._replace(node, "pass")
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Leave out a keyword; skip calls with texts for people."""
        if _is_text_call(node):
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _TEXT_KEYWORDS:
                self.found.append((*self._span_with_comma(keyword), "", ".".join(self._names)))
                self.visit(keyword.value)
        for part in (node.func, *node.args):
            self.visit(part)

    def _span_with_comma(self, keyword: ast.keyword) -> tuple[int, int]:
        """Return the span of a keyword with the comma, and the blanks, that go with it."""
        start, end = self._span(keyword)
        before = self._source[:start].rstrip()
        if self._source[end : end + 2] == b", ":
            return start, end + 2
        if before.endswith(b"("):
            return start, end + (self._source[end : end + 1] == b",")
        return len(before) - before.endswith(b","), end

    def visit_Dict(self, node: ast.Dict) -> None:
        """Rename a key."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._replace(key, repr(key.value + "_").replace("'", '"'))
            self.visit(value)

    def _shorten(self, node: ast.List | ast.Tuple) -> None:
        if len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
            start, end = self._span(node.elts[-2])[1], self._span(node.elts[-1])[1]
            self.found.append((start, end, "," if isinstance(node, ast.Tuple) else "", ".".join(self._names)))
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        """Leave out the last element."""
        self._shorten(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_text_call(node: ast.Call) -> bool:
    names = [part.id if isinstance(part, ast.Name) else part.attr for part in _dotted(node.func)]
    return any(_TEXT_CALLS.search(name) for name in names) or names[-1:] == ["write"]


def _dotted(node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    if isinstance(node, ast.Attribute):
        yield from _dotted(node.value)
    if isinstance(node, ast.Name | ast.Attribute):
        yield node


# --- Lua


def _lua_changes(text: str) -> Iterator[_Change]:
    offset = 0
    for line in text.splitlines(keepends=True):
        bare = _LUA_TEXT.sub(lambda match: " " * len(match[0]), line.rstrip("\n"))
        if bare.strip() and not line.startswith("#!"):
            for pattern, new in _LUA_CHANGES:
                for match in pattern.finditer(bare):
                    yield _Change(offset + match.start(), offset + match.end(), new)
            if _LUA_CALL.match(bare):
                yield _Change(offset + len(line) - len(line.lstrip()), offset + len(line.rstrip("\n")), "")
        offset += len(line)
