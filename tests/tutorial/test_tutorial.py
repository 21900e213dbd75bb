"""The tutorial of the documents, worked through as it is printed: its files written, its commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..support.redis_box import RedisBox
from ..testing.project import ROOT

PAGE = ROOT / "docs" / "tutorial" / "index.md"
BLOCK = re.compile(r"^( *)```(python|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+?)( \(at the end\))?\n")
#: commands that check the files of the tutorial
CHECKS = ("makemigrations", "manage.py test")


class Pupil:
    """A reader who does in a folder what the tutorial says."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "REDIS_URL": redis_url}
        self._env.pop("DJANGO_SETTINGS_MODULE", None)

    def run(self, command: str) -> str:
        """Return the output of a command, which has to succeed."""
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        done = subprocess.run(
            words, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, block: str) -> None:
        """Write the file that a block shows, or append to it."""
        head = FILE.match(block)
        assert head is not None, f"a block has no file name: {block}"
        with (self.folder / head[1]).open("a" if head[2] else "w") as file:
            file.write(block[head.end() :])

    def type_in(self, block: str) -> None:
        """Run the commands of a block; compare what they print with what the block shows behind them."""
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            printed = self.run(command)
            for part in filter(None, shown.strip().split("…")):
                assert part in printed, f"{command}\nprinted {printed}\nnot {part}"


@pytest.mark.one_server("the tutorial's REDIS_URL is one server's")
@pytest.mark.parametrize("commands", [CHECKS, pytest.param(("",), marks=pytest.mark.slow)], ids=["checks", "all"])
def test_the_tutorial_works_as_printed(
    tmp_path: Path, redis_box: RedisBox, redis_url: str, commands: tuple[str, ...]
) -> None:
    """The short run writes all files, and types only the blocks that check them."""
    pupil = Pupil(tmp_path, redis_url)
    pupil.run("python -m django startproject hotel .")
    pupil.run("python manage.py startapp booking")
    blocks = BLOCK.findall(PAGE.read_text())

    for _, language, block in blocks:
        if language == "python":
            pupil.write(textwrap.dedent(block))
        elif any(command in block for command in commands):
            pupil.type_in(textwrap.dedent(block))

    assert len(blocks) == PAGE.read_text().count("```python") + PAGE.read_text().count("```console")
