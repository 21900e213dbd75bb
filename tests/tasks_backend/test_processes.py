"""Worker processes that are killed, and projects as a fresh interpreter finds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core import Broker
from tests.support.processes import wait_until
from tests.tasks_backend.stage import WORLD

pytestmark = pytest.mark.one_server("about processes")
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.tasks_backend.settings"}


class Project:
    """The project of ``tests.tasks_backend.settings``, used through processes of its own."""

    def __init__(self, env: dict[str, str], spawn: Callable[..., Any]) -> None:
        self.env = {**os.environ, **env, **SETTINGS}
        self._spawn = spawn

    def python(self, code: str, *arguments: str, **env: str) -> Any:
        """Run code in a process and return its JSON output."""
        program = f"import json, sys, django; django.setup()\n{code}"
        answer = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**self.env, **env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def enqueue(self, *calls: tuple[Any, ...]) -> list[str]:
        """Ids of the results of these calls: (name of the task, its arguments …)."""
        found: list[str] = self.python(
            "from tests.tasks_backend.workshop import tasks\n"
            "calls = json.loads(sys.argv[1])\n"
            "made = [getattr(tasks, name).using(backend='default').enqueue(*args) for name, *args in calls]\n"
            "print(json.dumps([one.id for one in made]))",
            json.dumps(calls),
        )
        return found

    def results(self, *idents: str) -> list[tuple[str, Any, list[str], int]]:
        """(status, value, classes of the errors, attempts) of each."""
        found = self.python(
            "from django_delayq.backends.compat import task_backends\n"
            "def told(r):\n"
            "    errors = [e.exception_class_path.rpartition('.')[2] for e in r.errors]\n"
            "    return r.status.value, r._return_value, errors, len(r.worker_ids)\n"
            "print(json.dumps([told(task_backends['default'].get_result(one)) for one in sys.argv[1:]]))",
            *idents,
        )
        return [tuple(one) for one in found]

    def worker(self, *arguments: str) -> Any:
        return self._spawn(
            sys.executable, "-m", "django", "delayq_worker", "--threads", "1", *arguments, env=self.env, cwd=ROOT
        )

    def dispatcher(self) -> Any:
        return self._spawn(sys.executable, "-m", "django", "delayq_dispatcher", env=self.env, cwd=ROOT)


@pytest.fixture
def project(manage_env: dict[str, str], spawn: Callable[..., Any]) -> Project:
    return Project(manage_env, spawn)


def is_empty(broker: Broker) -> bool:
    counts = broker.inspector.counts("default")
    return not (counts.ready or counts.reserved)


def test_tasks_run_in_processes_and_a_killed_one_is_told_of(broker: Broker, project: Project) -> None:
    idents = project.enqueue(("add", 2, 3), ("elsewhere", "loud"))
    project.worker()
    wait_until(lambda: is_empty(broker), 20, what="the end of the tasks that do no harm")
    idents += project.enqueue(("die",))
    wait_until(lambda: broker.inspector.counts("default").morgue == 1, 20, what="the burial of the task that kills")
    assert project.results(*idents) == [
        ("SUCCESSFUL", 5, [], 1),
        ("SUCCESSFUL", "LOUD", [], 1),  # decorated for another backend
        ("FAILED", None, ["Crashed"], 1),  # one attempt is all that a task has, unless it says otherwise
    ]


def test_a_task_whose_whole_machine_is_lost_is_not_called_running_for_ever(
    broker: Broker, project: Project, tmp_path: Path
) -> None:
    began = tmp_path / "pid"
    (ident,) = project.enqueue(("dream", str(began)))
    worker = project.worker()
    wait_until(lambda: began.exists() and began.read_text(), 20, what="the start of the task")
    assert project.results(ident) == [("RUNNING", None, [], 1)]
    worker.send_signal(signal.SIGKILL)  # nobody is left who could settle
    os.kill(int(began.read_text()), signal.SIGKILL)
    assert worker.wait(20) == -signal.SIGKILL
    queue = broker.queue("default")
    (job,) = queue.leases(0)
    broker.client.zadd(queue.shard(0).names["lease"], {job.id: 0})  # the lease runs out
    project.dispatcher()
    wait_until(lambda: not list(queue.leases(0)), 20, what="the reaper")
    ((status, _, errors, attempts),) = project.results(ident)
    # Whether the start was known by then decides whether it was counted; nobody calls it running any more.
    assert (status, errors, attempts) in [("READY", [], 1), ("FAILED", ["Crashed"], 1)]


def fresh(settings: str, code: str, env: dict[str, str], *, before: str = "") -> str:
    program = f"import sys, django\n{before}\ndjango.setup()\n{code}"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **env, "DJANGO_SETTINGS_MODULE": settings},
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


LOADED = f"print([name for name in ({WORLD!r}, 'django_tasks', 'django_delayq.backends') if name in sys.modules])"


def test_a_project_without_the_setting_does_not_load_the_framework(manage_env: dict[str, str]) -> None:
    code = (
        "from django.core.checks import run_checks; import django_delayq, django_delayq.runtime.wiring; run_checks()\n"
    )
    assert fresh("tests.settings", code + LOADED, manage_env) == "[]"


def test_with_the_setting_djangos_own_check_asks_our_backend(manage_env: dict[str, str]) -> None:
    before = "from django.conf import settings; settings.TASKS['default']['OPTIONS'] = {'result_tll': 5}"
    code = "from django.core.checks import run_checks; print([one.id for one in run_checks()])"
    assert fresh("tests.tasks_backend.settings", code, manage_env, before=before) == "['delayq.E041']"


def test_tasks_are_registered_when_the_apps_are_loaded(manage_env: dict[str, str]) -> None:
    code = "from django_delayq.core.task import registry; print(sorted(t for t in registry.tasks if 'workshop' in t))"
    names = ["workshop.add", "workshop.die", "workshop.dream", "workshop.elsewhere"]
    assert fresh("tests.tasks_backend.settings", code, manage_env) == str(names)
