"""@task: names, options, and finding task modules."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_delayq import exactly_once, task
from django_delayq.core.errors import Misconfigured
from django_delayq.core.retry import default_backoff, ladder
from django_delayq.core.task import Registry, Task, TaskOptions, registry
from django_delayq.scheduling.tasks import MergedTask, task_name


@pytest.fixture(autouse=True)
def _same_registry() -> Iterator[None]:
    """Unregister the test's tasks afterwards."""
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


def test_a_merged_task_has_a_queue_of_its_own_and_its_own_defaults(settings: Any) -> None:
    settings.DELAYQ = {
        **settings.DELAYQ,
        "TASK_DEFAULTS": {
            "queue": "slow",
            "on_conflict": "ignore",
            "due_policy": "latest",
            "expires": 60,
            "batch_size": 20,
            "max_attempts": 3,
            "missed": "skip",
            "timezone": "Europe/Berlin",
        },
    }

    @task(name="x.merged", merge=True)
    def merged(payloads_by_id: dict[str, list[Any]]) -> int:
        return len(payloads_by_id)

    @task(name="x.last", merge=True, queue="q", payloads="last", batch_size=1)
    def last(payloads_by_id: dict[str, list[Any]], *, dry: bool = False) -> None: ...

    @task(name="x.plain")
    def plain() -> None: ...

    assert isinstance(merged, MergedTask)
    assert merged({"a": [1]}) == 1
    assert (merged.options.queue, merged.options.on_conflict, merged.options.due_policy) == ("x.merged", None, None)
    assert (merged.options.batch_size, merged.options.max_attempts, merged.options.expires) == (20, 3, None)
    assert (merged.options.max_payloads, last.options.max_payloads, plain.options.max_payloads) == (10_000, 1, None)
    assert (last.options.queue, last.options.batch_size) == ("q", 1)
    assert (plain.options.queue, plain.options.expires, plain.options.batch_size) == ("slow", 60, 1)
    assert (plain.options.missed, plain.options.timezone) == ("once", None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "_hidden"}, "queue name '_hidden' is not usable: use 1 to 64 letters"),
        ({"name": "ä.b"}, "queue name 'ä.b' is not usable"),
        ({"batch_size": 251}, "batch_size must be 1 to 250"),
        ({"payloads": "newest"}, "payloads must be one of all, last, first"),
        ({"score_policy": "mx"}, "Did you mean 'max'"),
        ({"max_payloads": 0}, "max_payloads must be 1 to"),
        ({"expires": 5}, "expires is not for merged tasks"),
        ({"every": 5}, "every is not for merged tasks"),
        ({"cron": "@daily"}, "cron is not for merged tasks"),
    ],
)
def test_a_wrong_merged_task_is_refused_where_it_stands(options: dict[str, Any], text: str) -> None:
    def work(payloads_by_id: dict[str, list[Any]]) -> None: ...

    with pytest.raises(Misconfigured, match=rf"@task .*work: .*{text}"):
        task(merge=True, **{"name": "x.work", **options})(work)
    assert registry.get("x.work") is None


def nothing() -> None: ...
def two(one: Any, other: Any = None) -> None: ...
def named(payloads: Any, *, must: int) -> None: ...
def only_named(*, payloads: Any) -> None: ...
def anything(*args: Any, **kwargs: Any) -> None: ...
def optional(payloads: Any = None) -> None: ...


def lines() -> Iterator[int]:
    yield 1


async def lines_to_come() -> Any:
    yield 1


@pytest.mark.parametrize("function", [lines, lines_to_come])
def test_a_generator_is_refused_because_calling_it_runs_nothing(function: Any) -> None:
    with pytest.raises(Misconfigured, match="a generator, so a call would run nothing of it; take the `yield` out"):
        task(name="streams")(function)
    with pytest.raises(Misconfigured, match="a generator, so a call would run nothing of it; take the `yield` out"):
        task(name="streams")(exactly_once(function))


@pytest.mark.parametrize("decorate", [task, task(queue="naps"), task(merge=True)])
@pytest.mark.parametrize("func", [lambda: None, functools.partial(print, "x")])
def test_what_has_no_name_is_refused_at_once(decorate: Any, func: Any) -> None:
    before = registry.tasks
    with pytest.raises(Misconfigured, match=r"it has no name by which a worker could find it\. Write it as a def"):
        decorate(func)
    assert registry.tasks == before


def test_a_task_of_a_task_is_refused() -> None:
    with pytest.raises(Misconfigured, match="is a task already; one @task is enough"):
        task(name="again")(task(name="once")(nothing))


@pytest.mark.parametrize("function", [nothing, two, named, only_named])
def test_a_merged_task_takes_exactly_one_positional_argument(function: Any) -> None:
    with pytest.raises(Misconfigured, match=rf"x.one: .*exactly one positional argument.*{function.__name__} takes \("):
        task(name="x.one", merge=True)(function)
    for fine in (anything, optional):
        Task(fine, name="x.one", options=TaskOptions(merge=True))


def test_a_recurring_task_is_called_without_arguments() -> None:
    for options in ({"every": 60}, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin", "missed": "skip"}):
        with pytest.raises(Misconfigured, match=r"is called without arguments; give those of .*two defaults"):
            task(name="x.tick", **options)(two)
        assert task(name="x.tick", **options)(optional).options.recurring


def test_back_offs_and_exceptions_are_kept_in_one_form() -> None:
    options = TaskOptions.build(
        {
            "retry_in": [10, timedelta(minutes=1)],
            "retry_for": {OSError: "ladder", ValueError: 5},
            "give_up_on": KeyError,
            "expires": timedelta(hours=1),
            "every": timedelta(minutes=1),
            "on_exhausted": lambda job, error: None,
        }
    )
    assert [options.retry_in(n) for n in (0, 1, 9)] == [10, 60, 60]
    assert isinstance(options.retry_for, dict)
    assert {kind: policy(0) for kind, policy in options.retry_for.items()} == {OSError: 10, ValueError: 5}
    assert (options.give_up_on, options.expires, options.every) == ((KeyError,), 3600, 60)
    assert TaskOptions.build({"retry_for": [OSError]}).retry_for == (OSError,)
    assert TaskOptions.build({"retry_in": "ladder"}) == TaskOptions.build({"retry_in": ladder()})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"que": "x"}, "unknown option 'que'. Did you mean 'queue'"),
        ({"queue": "{x}"}, "letters, digits"),
        ({"max_attempts": True}, "max_attempts must be an int"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"retry_in": "lader"}, "Did you mean 'ladder'"),
        ({"retry_in": -1}, "between 0 and ten years"),
        ({"retry_in": {}}, "retry_in: a back-off is a function"),
        ({"ack": "soon"}, "ack must be one of late, early"),
        ({"expires": 0}, "expires must be more than 0 seconds"),
        ({"expires": "1h"}, "expires must be seconds"),
        ({"merge": 1}, "merge must be True or False"),
        ({"batch_size": 5}, r"batch_size is for merged tasks only; add merge=True"),
        ({"payloads": "last"}, "payloads is for merged tasks only"),
        ({"max_payloads": 5}, "max_payloads is for merged tasks only"),
        ({"score_policy": "max"}, "score_policy is for merged tasks only"),
        ({"due_policy": "inherit"}, 'due_policy="inherit" is for merged tasks'),
        ({"every": 0}, "every must be more than 0 seconds"),
        ({"every": 0.001}, "every must be one second to ten years"),
        ({"every": 60, "cron": "* * * * *"}, "give one of them"),
        ({"cron": "every day"}, "five fields"),
        ({"cron": "61 * * * *"}, "cron '61 [*].*cannot be read"),
        ({"cron": 5}, "five fields"),
        ({"cron": "@fortnightly"}, "five fields.*@weekly"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"every": "10m"}, "every must be seconds"),
        ({"timezone": "Europe/Berlin"}, "timezone is for cron only"),
        ({"cron": "@daily", "timezone": "Europe/Brelin"}, 'a name like "Europe/Berlin"'),
        ({"cron": "@daily", "timezone": "../etc/passwd"}, 'a name like "Europe/Berlin"'),
        ({"cron": "@daily", "missed": "all"}, "missed must be one of once, skip"),
        ({"missed": "skip"}, "missed is for recurring tasks only"),
        ({"retry_for": 5}, "retry_for takes exception classes"),
        ({"retry_for": {ValueError: "lader"}}, "Did you mean 'ladder'"),
        ({"retry_for": {"ValueError": 5}}, "retry_for takes exception classes"),
        ({"give_up_on": (5,)}, "give_up_on takes exception classes"),
        ({"on_exhausted": 5}, r"on_exhausted must be a function of \(job, error\)"),
        ({"on_exhausted": lambda job: None}, r"is called with \(job, error\)"),
        ({"priority": 9}, "priority must be 0 to 7"),
        ({"on_conflict": "merge"}, "merged tasks"),
        ({"aliases": "old"}, "aliases must be a tuple"),
        ({"shards": 0}, "shards must be 1 to"),
    ],
)
def test_a_wrong_option_is_refused_where_the_task_stands(options: dict[str, Any], text: str) -> None:
    def work() -> None: ...

    with pytest.raises(Misconfigured, match=rf"task .*work: .*{text}"):
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
        bound.check_call(args, kwargs)
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"d": 1}), ((1,), {"a": 1})):
        with pytest.raises(TypeError, match=r"task x\.work"):
            bound.check_call(args, kwargs)


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
        env={"PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "['django_delayq.carry_out', 'shop.cancel_order', 'shop.deep']", answer.stderr
