"""``example_project/pipeline.py`` as a user runs it, and the nightly work that the shop gives to Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.pipeline import few_rows
from tests.support.processes import alive

ROOT = Path(__file__).resolve().parents[2]
STORY = ROOT / "example_project" / "pipeline.py"
LIMIT = 600  # s; what a busy machine may need
CUSTOMERS = 3000
#: a Java that lives for seconds is not to spend them on making itself fast
SHORT_LIVED = {"JAVA_TOOL_OPTIONS": few_rows.JAVA}


@pytest.fixture
def story(spawn: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``story("--customers", "3000")``: the story in a folder of its own, which ``.folder`` tells."""

    def start(*options: str, **env: str) -> Any:
        folder = tmp_path / "story"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        process = spawn(
            sys.executable,
            STORY,
            "--folder",
            folder,
            *options,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={"PYTHONPATH": path, **env},
        )
        process.folder = folder
        return process

    return start


def manage(folder: Path, redis_url: str, *arguments: str, **env: str) -> str:
    """A command of the shop, on a database in a folder and the run's Redis. Returns what it printed."""
    said = {
        **os.environ,
        "SHOP_DB": str(folder / "shop.sqlite3"),
        "SHOP_HISTORY": str(folder / "history"),
        "SHOP_REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "shop_site.settings",
        **env,
    }
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=STORY.parent,
        env=said,
        timeout=LIMIT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the story -------------------------------------------------------------------------------------------------------
@pytest.mark.spark
@pytest.mark.slow
def test_the_story_ends_with_everything_counted(story: Callable[..., Any]) -> None:
    process = story("--customers", str(CUSTOMERS), **SHORT_LIVED)

    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 0, said
    assert said.count("0 lost, 0 doubled") == 1
    assert last_number(said, "jobs done") == last_number(said, "customers with a message") == CUSTOMERS
    assert last_number(said, "jobs in the morgue now") == 0
    assert last_number(said, "jobs into the morgue") == 5
    assert re.search(r"lateness of an attempt: median [\d,]+ ms, 99 of 100 within [\d,]+ ms", said)
    steps = re.split(r"(?m)^\d\. ", said)[1:]
    assert len(steps) == 8
    assert max(len([line for line in step.splitlines() if line.strip()]) for step in steps[:-1]) <= 8
    assert re.search(r"7 of \d+ were missing, and are back", said)
    assert (process.folder / "customers.csv").read_text().count("\n") == CUSTOMERS + 1
    assert "make demo-pipeline ARGS=" in said


def last_number(said: str, what: str) -> int:
    """The number that the story told last for something."""
    return int(re.findall(rf"{re.escape(what)} +([\d,]+)", said)[-1].replace(",", ""))


def test_the_file_of_customers_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STORY.parent))
    from pipeline import write_customers

    now = datetime(2026, 11, 21, 3, tzinfo=UTC)
    first = write_customers(tmp_path / "a.csv", 40_000, now)
    second = write_customers(tmp_path / "b.csv", 40_000, now)

    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert first == second == {"example.com": 39_920, "slow.example": 75, "nowhere.example": 5}
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "customer,address,due"
    assert lines[500] == "500,customer-500@slow.example,2026-11-21T03:00:20.375+00:00"
    assert lines[8000] == "8000,customer-8000@nowhere.example,2026-11-21T03:00:26.000+00:00"
    assert lines[-1].endswith("2026-11-21T03:00:50.000+00:00")


def test_ctrl_c_in_the_middle_leaves_nothing_running(story: Callable[..., Any]) -> None:
    process = story("--customers", "100")
    redis_pid = 0
    for line in process.stdout:
        if "delayq_pipeline doctor" in line:
            redis_pid = pid_of_redis(process.folder)
            break
    assert alive(redis_pid)

    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 130, said
    assert "ended by Ctrl-C" in said
    assert "Traceback" not in said
    assert not alive(redis_pid)


def pid_of_redis(folder: Path) -> int:
    from django_delayq.embedded import EmbeddedRedis

    with redis.Redis.from_url(EmbeddedRedis(folder / "redis").url) as client:
        return int(client.info("server")["process_id"])


# --- what is missing -------------------------------------------------------------------------------------------------
def test_without_a_java_the_story_says_how_to_get_one(story: Callable[..., Any], tmp_path: Path) -> None:
    process = story(JAVA_HOME=str(tmp_path / "nothing"))

    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 1
    assert f"{tmp_path / 'nothing'}/bin/java does not run" in said
    assert "openjdk-17-jre-headless" in said
    assert "Traceback" not in said


def test_without_pyspark_the_story_says_how_to_get_it(story: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])

    process = story(PYTHONPATH=path)
    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 1
    assert f"{sys.executable} lacks: pyspark." in said
    assert "pip install '.[demo,spark]'" in said
    assert "Traceback" not in said
    assert not process.folder.exists()


def test_a_folder_of_somebody_else_is_not_emptied(story: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "story").mkdir()
    (tmp_path / "story" / "thesis.txt").write_text("the only copy")

    process = story("--customers", "100")
    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 1
    assert "will not be emptied" in said
    assert (tmp_path / "story" / "thesis.txt").read_text() == "the only copy"


def test_looking_before_there_was_a_story_says_what_to_do_first(story: Callable[..., Any]) -> None:
    process = story("--look")

    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 1
    assert "There is no story" in said


@pytest.mark.parametrize("number", ["99", "many"])
def test_a_number_of_customers_that_cannot_be_is_refused(story: Callable[..., Any], number: str) -> None:
    process = story(f"--customers={number}")

    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 2
    assert "is no number of customers" in said


# --- the night of the shop -------------------------------------------------------------------------------------------
@pytest.mark.spark
@pytest.mark.slow
def test_a_night_of_the_shop_run_twice_does_everything_once(tmp_path: Path, redis_url: str) -> None:
    for arguments in (("migrate", "-v0"), ("shop_seed",), ("shop_traffic", "--rate=20", "--seconds=1", "--pay=0")):
        manage(tmp_path, redis_url, *arguments)
    manage(tmp_path, redis_url, "shop_mishap", "--orders", "3")

    first, second = (
        results(manage(tmp_path, redis_url, "shop_night", "--grace", "0", **SHORT_LIVED)) for _ in range(2)
    )

    assert (first["bulk"]["created"], second["bulk"]["was_over"]) == (12, True)  # a greeting for each customer
    queues = json.loads(manage(tmp_path, redis_url, "delayq_status", "--json"))["queues"]
    assert [one["delayed"] + one["ready"] for one in queues if one["name"] == "greetings"] == [12]
    assert (first["delayq_reconcile"]["outcomes"], second["delayq_reconcile"]["missing"]) == ({"created": 3}, 0)
    assert [one["state"] for one in first.values()] == ["finished"] * 5
    assert json.loads(manage(tmp_path, redis_url, "delayq_pipeline", "status", "--json"))["unread"] == 0


def results(said: str) -> dict[str, dict[str, Any]]:
    """Step of the night → the line of JSON that it ended with."""
    found: dict[str, dict[str, Any]] = {}
    step = ""
    for line in said.splitlines():
        if line.startswith("delayq_"):
            step = line.removeprefix("delayq_pipeline ").split()[0]
        elif line.startswith("{"):
            found[step] = json.loads(line)
    return found


@pytest.mark.parametrize(
    ("given", "why"),
    [(["--day", "tomorrow"], "--day: invalid"), (["--grace", "soon"], "--grace: invalid")],
)
def test_a_night_that_cannot_be_is_refused(given: list[str], why: str) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match=why):
        call_command("shop_night", *given)


# --- parts -----------------------------------------------------------------------------------------------------------
def test_the_slow_provider_takes_a_message_at_the_third_try(settings: Any, tmp_path: Path) -> None:
    from shop import mail

    settings.SHOP_MAILBOX = tmp_path / "box"
    for attempt in (1, 2):
        with pytest.raises(mail.ProviderDown, match=r"slow\.example does not answer"):
            mail.deliver(7, "a@slow.example", attempt=attempt)
    mail.deliver(7, "a@slow.example", attempt=3)

    assert [file.read_text() for file in (tmp_path / "box").iterdir()] == ["7\n"]


def test_the_provider_that_is_down_takes_messages_when_it_is_back(settings: Any, tmp_path: Path) -> None:
    from shop import mail

    settings.SHOP_MAILBOX = tmp_path / "box"
    with pytest.raises(mail.ProviderDown, match=r"nowhere\.example does not answer"):
        mail.deliver(8, "a@nowhere.example", attempt=9)
    settings.SHOP_NOWHERE_IS_BACK = True
    mail.deliver(8, "a@nowhere.example", attempt=1)

    assert [file.read_text() for file in (tmp_path / "box").iterdir()] == ["8\n"]


def test_a_greeting_of_the_shop_itself_is_a_notification_and_sent_once(customer: Any) -> None:
    from shop import tasks
    from shop.models import Notification

    for _ in range(2):
        tasks.greet(customer.pk, customer.email)

    assert Notification.objects.get().customer == customer


def test_a_mishap_without_unpaid_orders_says_what_to_do(shop: None) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match="shop_traffic"):
        call_command("shop_mishap")
