"""@task: names, options, and finding task modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_delayq import task
from django_delayq.core.errors import Misconfigured
from django_delayq.core.retry import default_backoff
from django_delayq.core.task import Registry, Task, TaskOptions, registry
from django_delayq.decorators import task_name


@pytest.fixture(autouse=True)
def _same_registry() -> Iterator[None]:
    """What a test registers is forgotten."""
    before = registry.tasks
    yield
    for one in registry:
        if before.get(one.name) is not one:
            registry.remove(one)


def test_a_task_is_named_after_its_app() -> None:
    def work() -> None: ...

    work.__module__ = "django.contrib.auth.deep.inside"
    assert task_name(work) == "auth.work"
    work.__module__ = "somewhere.else"
    assert task_name(work) == "somewhere.else.work"


def test_the_decorator_keeps_name_doc_and_function() -> None:
    @task(name="shop.cancel", queue="orders", max_attempts=5, timeout=30, aliases=("old.cancel",))
    def cancel_order(order_id: int) -> int:
        """Cancels."""
        return order_id + 1

    assert (cancel_order(1), cancel_order.__doc__, cancel_order.__name__) == (2, "Cancels.", "cancel_order")
    assert registry.get("shop.cancel") is registry.get("old.cancel") is cancel_order
    assert cancel_order.options == TaskOptions(queue="orders", max_attempts=5, timeout=30, aliases=("old.cancel",))
    assert not cancel_order.is_async


def test_defaults_of_the_project_come_first(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TASK_DEFAULTS": {"max_attempts": 4, "queue": "slow"}}

    @task(name="x.defaults", max_attempts=9)
    def work() -> None: ...

    assert (work.options.queue, work.options.max_attempts) == ("slow", 9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"que": "x"}, "unknown option 'que'. Did you mean 'queue'"),
        ({"merge": True}, "'merge' is not available in this release"),
        ({"queue": "{x}"}, "letters, digits"),
        ({"max_attempts": True}, "max_attempts must be an int"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"retry_in": 5}, "retry_in must be a function"),
        ({"priority": 9}, "priority must be 0 to 7"),
        ({"on_conflict": "merge"}, "merged tasks"),
        ({"aliases": "old"}, "aliases must be a tuple"),
        ({"shards": 0}, "shards must be 1 to"),
    ],
)
def test_a_wrong_option_is_refused_where_the_task_stands(options: dict[str, Any], text: str) -> None:
    def work() -> None: ...

    with pytest.raises(Misconfigured, match=rf"@task .*work: .*{text}"):
        task(**options)(work)


def test_two_functions_cannot_share_a_name_but_a_module_may_be_read_twice() -> None:
    names = Registry()

    def one() -> None: ...
    def two() -> None: ...

    first = Task(one, name="x.same")
    names.add(first)
    again = Task(one, name="x.same", options=TaskOptions(aliases=("x.old",)))
    names.add(again)
    assert (names.get("x.same"), names.get("x.old"), len(names)) == (again, again, 1)
    for clash in (Task(two, name="x.same"), Task(two, name="x.two", options=TaskOptions(aliases=("x.same",)))):
        with pytest.raises(Misconfigured, match=r"task name 'x.same' is taken by .*one"):
            names.add(clash)


def test_arguments_are_bound_at_the_call() -> None:
    def work(a: int, b: int = 0, *, c: int = 0) -> None: ...

    bound = Task(work, name="x.work")
    for args, kwargs in (((1,), {}), ((1, 2), {}), ((1,), {"c": 3}), ((), {"a": 1})):
        assert bound.bind(args, kwargs) == (args, kwargs)
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"d": 1}), ((1,), {"a": 1})):
        with pytest.raises(TypeError, match=r"task x\.work"):
            bound.bind(args, kwargs)


def test_the_default_back_off_is_the_houses() -> None:
    assert TaskOptions().retry_in is default_backoff


PROJECT = {
    "shop/__init__.py": "",
    "shop/jobs/__init__.py": "",
    "shop/jobs/orders.py": "from django_delayq import task\n\n@task\ndef cancel_order(pk): ...\n",
    "shop/jobs/deep/__init__.py": "from django_delayq import task\n\n@task\ndef deep(): ...\n",
    "main.py": """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_delayq", "shop"], DELAYQ={"TASKS_MODULE": "jobs", "REDIS": "redis://x"})
django.setup()
from django_delayq.core.task import registry
print(sorted(registry.tasks))
""",
}


def test_task_packages_of_installed_apps_are_found(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root = Path(__file__).resolve().parent.parent.parent
    answer = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")],
        env={"PYTHONPATH": f"{tmp_path}:{root}"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert answer.stdout.strip() == "['shop.cancel_order', 'shop.deep']", answer.stderr
