"""The ini option ``delayq`` of the pytest plugin: a test that uses no kit never reaches the Redis of the settings."""

from __future__ import annotations

import pytest

from .project import Project

pytest_plugins = ("pytester",)

TASKS = """
import pytest
from django.test import SimpleTestCase
from django_delayq import schedule, task
from django_delayq.core.errors import DelayQError, Misconfigured

@task(name="shop.note")
def note(): ...
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)


def test_by_default_a_test_has_an_in_memory_queue_of_its_own(project: Project) -> None:
    project.write(
        "tests/test_it.py",
        TASKS
        + """
def test_a():
    assert schedule(note, id="a", delay=60).outcome == "created"

def test_b():
    assert schedule(note, id="a", delay=60).outcome == "created"

class Tests(SimpleTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        assert schedule(note, id="a", delay=60).outcome == "created"

    def test_c(self):
        assert schedule(note, id="a", delay=60).outcome == "created"
""",
    )
    project.run().assert_outcomes(passed=3)


def test_real_uses_the_redis_of_the_settings(project: Project) -> None:
    project.write(
        "tests/test_it.py",
        TASKS
        + """
def test_a():
    with pytest.raises(DelayQError, match="Connection refused|cannot be reached|127.0.0.1:1"):
        schedule(note, delay=60)
""",
    )
    project.run("-o", "delayq=real").assert_outcomes(passed=1)


def test_off_refuses_it(project: Project) -> None:
    project.write(
        "tests/test_it.py",
        TASKS
        + """
def test_a():
    with pytest.raises(Misconfigured, match="delayq = real in pytest's ini file"):
        schedule(note, delay=60)

def test_b(delayq_fake):
    assert schedule(note, delay=60).outcome == "created"
""",
    )
    project.run("-o", "delayq=off").assert_outcomes(passed=2)


def test_another_word_is_refused(project: Project) -> None:
    project.write("tests/test_it.py", "def test_a(): ...\n")
    result = project.run("-o", "delayq=none")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the ini option delayq is 'none'; write one of fake, real, off*"])
