"""The page about the core without Django, and the figures of the page about tasks, run as they are printed."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from django_delayq.core.retry import default_backoff

from ..testing.project import ROOT


@pytest.mark.one_server("the program gets one URL")
def test_the_program_of_the_page_runs_without_settings(redis_url: str, prefix: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n# orders\.py\n(.*?)^```$", (ROOT / "docs/core.md").read_text(), re.M | re.S)
    environ = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['django'] = None\n{program}"],
        env={**environ, "REDIS_URL": redis_url, "PREFIX": prefix, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "cancelled 5\nwaiting ['order-6']\n", answer.stderr


def test_the_days_of_life_by_attempts_are_those_of_the_default_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)  # the mean
    page = (ROOT / "docs/tasks.md").read_text()
    rows = re.search(r"\| `max_attempts` \| days \|\n\|---\|---\|\n((?:\|.*\|\n)+)", page)
    assert rows is not None
    for attempts, days in re.findall(r"\| (\d+) \| ([\d.]+) \|", rows[1]):
        lived = sum(default_backoff(n) for n in range(int(attempts) - 1)) / 86_400
        assert f"{lived:.2g}" == days, attempts
