"""The package's front door, and its logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

import django_delayq
from django_delayq import logs
from django_delayq.apps import autodiscover

ROOT = Path(__file__).resolve().parent.parent.parent


def test_importing_the_package_loads_neither_django_nor_redis() -> None:
    code = "import sys, django_delayq; print(sorted({'django', 'redis', 'asgiref'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_every_name_of_the_door_is_there() -> None:
    for name in django_delayq.__all__:
        assert getattr(django_delayq, name) is not None
    assert set(django_delayq.__all__) <= set(dir(django_delayq))
    assert callable(django_delayq.task)  # a function, not a module of that name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = django_delayq.nothing


def test_a_json_line_carries_extras_and_errors() -> None:
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError:
        record = logging.getLogger("django_delayq.test").makeRecord(
            "django_delayq.test", logging.ERROR, __file__, 1, "job %s", ("5",), sys.exc_info(), extra={"job_id": "5"}
        )
    line = json.loads(logs.JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "django_delayq.test", "job 5")
    assert (line["job_id"], line["error"]) == ("5", "ZeroDivisionError")
    assert "Traceback" in line["traceback"]
    assert line["time"].endswith("Z")


def test_a_json_line_is_one_line_for_every_reader() -> None:
    text = "a\nb\x85c\u2028d\u2029e\x1b[2Jf\x9bg\u202eh"
    record = logging.getLogger("x").makeRecord("x", logging.INFO, __file__, 1, "%s", (text,), None, extra={"id": text})
    line = logs.JsonFormatter().format(record)
    assert line.isprintable() and (json.loads(line)["message"], json.loads(line)["id"]) == (text, text)


def test_the_projects_own_logging_wins() -> None:
    package = logging.getLogger(logs.PACKAGE)
    before = list(package.handlers), package.level
    own = logging.NullHandler()
    package.addHandler(own)
    try:
        assert logs.configure("json") is False
        assert package.handlers == [*before[0], own]
    finally:
        package.removeHandler(own)


FORGOTTEN = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes"], DELAYQ={"REDIS": sys.argv[1]},
                   DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.db import transaction
from django_delayq import Queue, cancel, get_job, schedule, schedule_many, task

@task(name="forgotten.work")
def work(): ...

for verb in (
    lambda: schedule(work), lambda: schedule_many(work, [{}]), lambda: work.using(delay=5).schedule(),
    lambda: get_job("a"), lambda: cancel(work, id="a"), lambda: Queue("feed").put(b""),
):
    try:
        with transaction.atomic():
            verb()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_the_app_in_the_settings_nothing_is_scheduled_and_the_error_says_so(redis_url: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, redis_url],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = answer.stdout.splitlines()
    assert len(lines) == 6 and len(set(lines)) == 1, answer.stdout
    assert lines[0].startswith("Misconfigured 'django_delayq' is not in INSTALLED_APPS")
    assert lines[0].endswith('Add it: INSTALLED_APPS = [..., "django_delayq"]')


def test_a_project_without_users_and_without_the_admin_has_all_but_the_pages(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        "SECRET_KEY, USE_TZ = 'x', True\n"
        "DELAYQ = {'REDIS': 'redis://127.0.0.1:1/0'}\n"
        "INSTALLED_APPS = ['django_delayq']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "bare"}
    for command in ("check", "migrate"):
        subprocess.run([sys.executable, "-W", "error", "-m", "django", command], env=env, check=True)


def test_modules_of_a_package_of_tasks_are_imported_and_named() -> None:
    assert "django_delayq.management.commands.delayq_worker" in autodiscover("management")


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "django_delayq", check_changes=True, dry_run=True, verbosity=0)
