"""Hook of the documentation site: generated pages, and those that code hosts expect at the root of a repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ci")]

from reference_pages import pages  # noqa: E402 (a hook is loaded by its path)

AT_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the root, their links as seen from the folder of the documents, and the generated ones."""
    for name in AT_THE_ROOT:
        text = re.sub(r"\]\((?:docs/)", "](", (ROOT / name).read_text())
        files.append(File.generated(config, name, content=text))
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Return a page without the roles of docstrings: ``:func:`` and others."""
    return re.sub(r":(?:func|meth|class|attr|mod|data):<code>~?", "<code>", html)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page's text; links to the root's pages lead to their copies in the site."""
    names = "|".join(map(re.escape, AT_THE_ROOT))
    depth = page.file.src_uri.count("/")
    return re.sub(rf"\]\((?:\.\./){{{depth + 1}}}({names})", rf"]({'../' * depth}\1", markdown)
