"""The plugin in a project of somebody else, and in one that has nothing to do with it; the examples of the docs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

from .project import ROOT, Project

pytest_plugins = ("pytester",)

DOCS = ROOT / "docs" / "testing.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

TESTS = """
import asyncio
import unittest

import pytest
from django.test import SimpleTestCase, TestCase

from django_delayq import aschedule, schedule, task
from django_delayq.testing import DelayQTestCase

done = []


@task(name="shop.note")
def note(text):
    done.append(text)


def test_a_fixture(delayq_fake):
    schedule(note, "x", delay=60)
    delayq_fake.assert_scheduled(note, args=["x"], delay=60)


def test_each_test_has_its_own(delayq_fake):
    assert not delayq_fake.scheduled_jobs()


@pytest.mark.delayq(1_900_000_000)
def test_a_marker(delayq_fake):
    assert delayq_fake.clock.now.year == 2030


def test_at_once(delayq_immediate):
    schedule(note, "at once", delay=60)
    assert done[-1] == "at once"


@pytest.mark.django_db
def test_a_forgotten_commit(delayq_fake):
    schedule(note, "x")
    with pytest.raises(AssertionError, match="1 job waits for the commit"):
        delayq_fake.assert_scheduled(note)


def test_a_coroutine(delayq_fake):
    async def go():
        await aschedule(note, "async")
        await delayq_fake.arun_due()

    asyncio.run(go())
    assert done[-1] == "async"


class Simple(DelayQTestCase, SimpleTestCase):
    def test_sync(self):
        schedule(note, "x")
        assert len(self.delayq.run_due()) == 1

    async def test_async(self):
        await aschedule(note, "x")
        self.assertEqual(len(self.delayq.scheduled_jobs()), 1)


class WithDatabase(DelayQTestCase, TestCase):
    def test_sync(self):
        with self.captureOnCommitCallbacks(execute=True):
            schedule(note, "x")
        self.assertEqual(len(self.delayq.run_due().succeeded), 1)


class Plain(DelayQTestCase, unittest.TestCase):
    def test_plain(self):
        schedule(note, "x")
        self.delayq.assert_scheduled(note)


def test_fails(delayq_fake):
    delayq_fake.assert_scheduled(note, args=["nobody"])
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)


def test_in_a_project_with_pytest_django(project: Project) -> None:
    project.write("tests/test_it.py", TESTS)
    result = project.run()
    result.assert_outcomes(passed=10, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: no job of shop.note with args=[[]'nobody'[]] is scheduled*"])


def test_in_a_project_without_pytest_django(project: Project) -> None:
    project.write(
        "conftest.py",
        "import os, django\n\nos.environ['DJANGO_SETTINGS_MODULE'] = 'project_settings'\ndjango.setup()\n",
    )
    project.write("tests/test_it.py", "def test_it(delayq_fake):\n    assert not delayq_fake.scheduled_jobs()\n")
    project.run(django=False).assert_outcomes(passed=1)


def test_a_project_without_django_does_not_notice_it(project: Project) -> None:
    project.write(
        "tests/test_it.py",
        "import sys\n\n\ndef test_it():\n    assert not {'django', 'redis', 'pytest_django'} & sys.modules.keys()\n",
    )
    project.run(django=False).assert_outcomes(passed=1)


def test_the_examples_of_the_documentation(project: Project) -> None:
    blocks = BLOCK.findall(DOCS.read_text())
    for block in blocks:
        name = block.partition("\n")[0].removeprefix("# ")
        assert re.fullmatch(r"(shop|tests)/\w+\.py", name), f"a block of testing.md has no name: {name}"
        project.write(name, block)
    result = project.run()
    assert result.ret == 0, result.outlines
    result.assert_outcomes(passed=sum(block.count("def test_") for block in blocks))


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"delayq": "django_delayq.testing.plugin"}
    assert import_module(declared["delayq"]).delayq_fake


@pytest.mark.parametrize(
    ("module", "foreign"),
    [("django_delayq.testing", {"django", "redis", "pytest"}), ("django_delayq.testing.plugin", {"django", "redis"})],
)
def test_importing_it_loads_nothing_foreign(module: str, foreign: set[str]) -> None:
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert not foreign & set(answer.stdout.split())


def test_the_kit_loads_no_pytest() -> None:
    program = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; import django; django.setup()\n"
        "from django_delayq import testing\n"
        "for name in testing.__all__: getattr(testing, name)\n"
        "assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=True)
