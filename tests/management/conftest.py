"""Commands as a person runs them: real processes on the test's own Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import wait_until


@pytest.fixture
def depot(manage_env: dict[str, str], tmp_path: Path) -> Depot:
    """Depot with the file that the workers' tasks write to, and a method that runs commands."""
    return Depot(manage_env, tmp_path)


class Depot:
    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.log = folder / "depot.log"
        self.log.touch()
        self.env = {**env, "DJANGO_SETTINGS_MODULE": "tests.app.settings", "DEPOT_LOG": str(self.log)}

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_for(self, count: int, timeout: float = 20.0) -> list[str]:
        wait_until(lambda: len(self.lines()) >= count, timeout, f"{count} lines of the tasks")
        return self.lines()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error::RuntimeWarning", "-m", "django", *arguments]

    def manage(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env={**os.environ, **self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
