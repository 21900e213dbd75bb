"""The files of docs/deployment.md: they are well formed, and their commands are those of the package."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from django.core.management import load_command_class

from ..testing.project import ROOT

PAGE = (ROOT / "docs" / "deployment.md").read_text()
COMMAND = re.compile(r"manage\.py (delayq_\w+)([^`\n]*)")


def blocks(language: str) -> list[str]:
    """Return the blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Return the commands with their options, from shell lines and from lists of words."""
    return COMMAND.findall(re.sub(r'", "', " ", PAGE).replace('"]', ""))


@pytest.mark.parametrize(("name", "options"), commands(), ids=lambda part: part.strip())
def test_every_command_has_the_options_that_the_page_gives_it(name: str, options: str) -> None:
    words = shlex.split(options.split(",")[0])
    load_command_class("django_delayq", name).create_parser("manage.py", name).parse_args(words)


def test_the_page_shows_the_worker_in_each_way() -> None:
    assert [name for name, options in commands() if "--grace" in options] == ["delayq_worker"] * 4


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.split(":")[0])
def test_compose_and_kubernetes_are_well_formed(block: str) -> None:
    parts = list(yaml.safe_load_all(block))

    assert all("services" in part or {"apiVersion", "kind", "metadata", "spec"} <= part.keys() for part in parts)


def test_processes_are_given_longer_than_their_grace() -> None:
    (grace,) = {int(found) for found in re.findall(r'--grace"?,? "?(\d+)', PAGE)}
    limits = re.findall(
        r"(?:TimeoutStopSec=|stopwaitsecs=|stop_grace_period: |terminationGracePeriodSeconds: )(\d+)", PAGE
    )

    assert len(limits) == 4
    assert all(int(limit) > grace for limit in limits)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = [block for block in blocks("ini") if block.startswith("[Unit]")]
    for number, unit in enumerate(units):
        suffix = "timer" if "[Timer]" in unit else "service"
        if suffix == "service":
            unit = re.sub(r"/srv/booking/\.venv/bin/python", "/bin/true", unit).replace("/srv/booking", "/")
        (tmp_path / f"unit{number}.{suffix}").write_text(unit)
    (tmp_path / "unit2.service").write_text((tmp_path / "unit1.service").read_text())

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert len(units) == 3
    assert "unit" not in done.stderr, done.stderr
