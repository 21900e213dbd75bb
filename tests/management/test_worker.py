"""manage.py delayq_worker and delayq_dispatcher, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.job import NewJob, new_id
from django_delayq.embedded import EmbeddedRedis
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from tests.support.postgres_box import PostgresDatabase

    from .conftest import Depot

Spawn = Callable[..., "subprocess.Popen[str]"]


def put(broker: Broker, task: str, *args: Any, queue: str = "default", **options: Any) -> str:
    job = NewJob(options.pop("id", new_id()), f"depot.{task}", encode_args(args, {}), **options)
    broker.queue(queue).schedule(job)
    return job.id


@pytest.fixture
def start(spawn: Spawn, depot: Depot) -> Callable[..., subprocess.Popen[str]]:
    """A worker that has said its first line."""

    def go(*arguments: str, **env: str) -> subprocess.Popen[str]:
        return spawn(
            *depot.command(*arguments), env={**depot.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    return go


def stopped(process: subprocess.Popen[str]) -> str:
    """Stop a process by SIGTERM; return what it has printed."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    return output


def test_a_burst_runs_everything_and_ends(depot: Depot, broker: Broker) -> None:
    for number in range(20):
        put(broker, "ship", number)
    put(broker, "fetch", 7)
    put(broker, "fail", id="f")
    put(broker, "ship", 20, queue="theirs")  # neither a task nor a setting of the project names it
    broker.queue("feed", kind="pull")
    answer = depot.manage("delayq_worker", "--burst", "--threads", "2", "--queues", "default,theirs,feed")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("delayq_worker 0.1.0 (pid ")
    assert "1 process × 2 threads, queues default, theirs, feed" in answer.stdout
    # No job sees the language that the one before it has activated.
    assert sorted(depot.lines()) == sorted([*(f"ship {n} en" for n in range(21)), "fetch 7 attempt 1"])
    assert "kind 'pull'" in answer.stderr and "Queue('feed').reserve()" in answer.stderr, "it finds nothing there"
    counts = broker.inspector.counts("default")
    assert (counts.ready, counts.delayed, counts.reserved, counts.morgue) == (0, 0, 0, 1)


def test_a_supervised_worker_takes_its_jobs_and_stops_at_sigterm(
    depot: Depot, broker: Broker, start: Callable[..., subprocess.Popen[str]]
) -> None:
    put(broker, "ship", 1)
    worker = start("delayq_worker", "--queues", "default", "--processes", "2", "--log-format", "json")
    depot.wait_for(1)
    put(broker, "ship", 2, delay_ms=50)
    depot.wait_for(2)
    output = stopped(worker)
    banner, *logged = [json.loads(line) for line in output.splitlines()]
    assert "2 processes × 5 threads, queues default" in banner["message"] and banner["level"] == "INFO"
    loud = [line for line in logged if line["level"] != "INFO"]
    assert {line["logger"] for line in loud} <= {"django_delayq.bookkeeping"}, "the shop's jobs are durable"
    assert len(loud) <= 2, "each process says at most once that there are no tables for them"
    assert broker.workers() == []


def test_processes_of_a_worker_that_code_starts_have_its_options(depot: Depot, broker: Broker, spawn: Spawn) -> None:
    options = ("--queues", "default", "--processes", "2", "--threads", "3", "--no-dispatcher")
    imports = "import django; from django.core.management import call_command"
    code = f"{imports}; django.setup(); call_command{('delayq_worker', *options)}"
    worker = spawn(sys.executable, "-c", code, env=depot.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: len(broker.workers()) == 2, what="both processes")
    assert [(info["dispatcher"], info["threads"]) for info in broker.workers()] == [(False, 3)] * 2
    stopped(worker)


def test_with_json_every_line_of_the_process_is_json_and_those_of_a_job_name_it(depot: Depot, broker: Broker) -> None:
    put(broker, "speak", id="loud")
    answer = depot.manage("delayq_worker", "--burst", "--queues", "default", "--log-format", "json")
    assert (answer.returncode, answer.stdout) == (0, "")
    lines = [json.loads(line) for line in answer.stderr.splitlines()]
    own = {"job_id": "loud", "queue": "default", "task": "depot.speak", "attempt": 1}
    for logger, text in (("depot", "few parcels"), ("django", "django's own"), ("py.warnings", "old parcels")):
        (line,) = [line for line in lines if text in line["message"]]
        assert (line["logger"], line["level"]) == (logger, "WARNING") and own.items() <= line.items()
    (line,) = [line for line in lines if "depot-thread" in line["message"]]
    assert line["error"] == "ZeroDivisionError" and "1 / 0" in line["traceback"]


def test_a_burst_without_redis_ends_with_an_exit_code_of_its_own(depot: Depot) -> None:
    answer = depot.manage("delayq_worker", "--burst", "--redis-patience", "1", DELAYQ_TEST_URL="redis://127.0.0.1:1/0")
    assert answer.returncode == 85, answer.stderr
    assert "Redis or a part of it has been away for" in answer.stderr


def test_fresh_processes_start_when_code_changes(
    depot: Depot, broker: Broker, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    package = tmp_path / "lately"
    package.mkdir()
    (package / "__init__.py").touch()
    code = (
        "from tests.app.depot.tasks import say\nfrom django_delayq import task\n\n@task\ndef speak():\n    say('{}')\n"
    )
    (package / "tasks.py").write_text(code.format("old"))
    (tmp_path / "lately_settings.py").write_text(
        "from tests.app.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'lately']\n"
    )
    path = os.pathsep.join([str(tmp_path), depot.env["PYTHONPATH"]])
    worker = start(
        "delayq_worker", "--queues", "default", "--reload", PYTHONPATH=path, DJANGO_SETTINGS_MODULE="lately_settings"
    )
    queue = broker.queue("default")
    queue.schedule(NewJob("a", "lately.speak"))
    assert depot.wait_for(1) == ["old"]
    (before,) = wait_until(broker.workers, what="the worker's announcement")
    (package / "tasks.py").write_text(code.format("brand new"))
    wait_until(lambda: [one for one in broker.workers() if one["pid"] != before["pid"]], 20, "a fresh process")
    wait_until(lambda: len(broker.workers()) == 1, 20, "the end of the old process")
    queue.schedule(NewJob("b", "lately.speak"))
    assert depot.wait_for(2)[1] == "brand new"
    stopped(worker)


def test_postgres_sees_one_connection_per_thread_and_no_leak(
    depot: Depot, broker: Broker, postgres_database: PostgresDatabase
) -> None:
    depot.env["DELAYQ_TEST_DB"] = postgres_database.url
    assert depot.manage("migrate", "--verbosity", "0").returncode == 0
    for _ in range(60):
        put(broker, "backend")
    put(broker, "leak", id="leak")
    for _ in range(20):
        put(broker, "backend")
    answer = depot.manage("delayq_worker", "--burst", "--threads", "2", "--queues", "default")
    assert answer.returncode == 0, answer.stderr
    assert len(depot.lines()) == 80
    assert len(set(depot.lines())) <= 3  # two threads, and one new connection after the leak
    (buried,) = broker.inspector.page("default", "morgue").jobs
    assert (buried.id, buried.error_class.rpartition(".")[2]) == ("leak", "LeakedTransaction")
    with postgres_database.connect() as connection:
        assert connection.execute("SELECT count(*) FROM auth_group").fetchone() == (0,)
    # Also the session of the look above ends a moment after it was closed here.
    wait_until(lambda: postgres_database.sessions() == [], what="the end of all sessions")


def test_the_last_user_of_the_embedded_redis_stops_it(depot: Depot, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "from tests.app.settings import *\n"
        f"DELAYQ = {{'REDIS': 'embedded', 'EMBEDDED_DIR': {str(tmp_path / 'store')!r}}}\n"
    )
    path = os.pathsep.join([str(tmp_path), depot.env["PYTHONPATH"]])
    answer = depot.manage("delayq_worker", "--burst", PYTHONPATH=path, DJANGO_SETTINGS_MODULE="alone")
    assert answer.returncode == 0, answer.stderr
    assert "embedded Redis. Ctrl-C stops." in answer.stdout
    assert EmbeddedRedis(tmp_path / "store").running is False


def test_a_dispatcher_runs_no_job_and_stops(
    depot: Depot, broker: Broker, start: Callable[..., subprocess.Popen[str]]
) -> None:
    put(broker, "ship", 1)
    dispatcher = start("delayq_dispatcher", "--queues", "default")
    (info,) = wait_until(broker.workers, 20, "the dispatcher's announcement")
    assert (info["threads"], info["dispatcher"]) == (0, True)
    assert stopped(dispatcher).startswith("delayq_dispatcher 0.1.0")
    assert depot.lines() == []


@pytest.mark.parametrize(("command", "form"), [("delayq_worker", "plain"), ("delayq_dispatcher", "json")])
def test_a_misspelled_queue_is_refused_and_not_made(depot: Depot, broker: Broker, command: str, form: str) -> None:
    put(broker, "ship", 1)
    answer = depot.manage(command, "--queues", "default,defualt", "--log-format", form)
    assert (answer.returncode, answer.stdout) == (1, "")
    said = answer.stderr
    if form == "json":
        (line,) = [json.loads(line) for line in answer.stderr.splitlines()]
        assert line["level"] == "ERROR"
        said = line["message"]
    assert "there is no queue 'defualt': no task and no setting names it" in said
    assert "Did you mean 'default'?" in said and "DELAYQ['QUEUES']" in said
    assert "Traceback" not in said
    assert broker.queue_names() == ["default"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--threads", "0"], "'0' is not a whole number above 0"),
        (["--threads", "many"], "'many' is not a whole number"),
        (["--queues", "a{b}"], "letters, digits"),
        (["--queues", ","], "queue names separated by commas"),
        (["--grace", "-1"], "not a number of seconds of 0 or more"),
        (["--redis-patience", "1"], "--redis-patience is for --burst"),
    ],
)
def test_wrong_options_are_explained(arguments: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("delayq_worker", *arguments)


def test_a_wrong_url_is_one_clear_line(depot: Depot) -> None:
    answer = depot.manage("delayq_worker", "--skip-checks", DELAYQ_TEST_URL="reddis://localhost")
    assert answer.returncode == 1
    assert "CommandError" in answer.stderr
    assert "reddis" in answer.stderr
    assert "Traceback" not in answer.stderr
