"""The shop's own settings, in a process of their own: the tests of this package have others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "example_project"
PROGRAM = """
import django
django.setup()
from django.core.management import call_command
call_command("check", verbosity=0)
from django_redis import get_redis_connection
from django_delayq import schedule
from shop.tasks import restock
schedule(restock, 1, delay=60, id="restock-1")
print(any(b"shop" in key for key in get_redis_connection("jobs").keys()))
"""


def test_the_jobs_are_in_the_redis_of_a_cache_that_is_theirs_alone(redis_url: str, tmp_path: Path) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "shop_site.settings", "SHOP_REDIS_URL": redis_url, "SHOP_DB": str(tmp_path / "db")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=PROJECT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True", done.stdout
