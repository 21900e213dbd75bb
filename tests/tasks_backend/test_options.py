"""Our own options of Django's Tasks, the names they are registered by, and what the checks say of the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import CheckMessage
from django.db import models

from django_delayq import get_job
from django_delayq.core import Broker, Misconfigured
from tests.tasks_backend import deeds
from tests.tasks_backend.stage import (
    WORLD,
    InvalidTask,
    InvalidTaskBackend,
    adopt_tasks,
    be_before_django_6,
    check_world,
    compat,
    forget,
    known,
    registry,
)

BACKEND = "django_delayq.backends.DelayQBackend"
IMMEDIATE = f"{WORLD}.backends.immediate.ImmediateBackend"
HERE = "tests.tasks_backend.test_options"


def send(to: str) -> str:
    return to


def other(to: str) -> str:
    return to


def backoff(failures: int) -> float:
    return failures + 1.0


@pytest.fixture(autouse=True)
def registered_anew() -> Iterator[None]:
    yield
    for function in (send, other):
        forget(function)


@pytest.fixture
def choose(settings: Any) -> Callable[..., None]:
    def choose(**options: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}

    return choose


def options_of(function: Callable[..., Any]) -> Any:
    task = known(function)
    assert task is not None
    return task.options


# --- names


def test_a_task_is_registered_by_its_apps_label_and_its_name() -> None:
    compat.task(queue_name="mail", priority=100)(send)
    task = known(send)
    assert task is not None and registry.get(task.name) is task
    assert (task.name, task.options.queue, task.options.priority) == (f"{HERE}.send", "mail", 0)
    assert (task.options.max_attempts, task.is_async) == (1, False)
    assert known(deeds.fetch.func).is_async  # type: ignore[union-attr]


def test_another_name_and_aliases_come_from_the_settings(delayq: Broker, choose: Callable[..., None]) -> None:
    choose(tasks={f"{HERE}.send": {"name": "mail.send", "aliases": ["old.send"]}})
    task = compat.task(send)
    assert registry.get("mail.send") is registry.get("old.send") is known(send)
    view = get_job(task.enqueue("Ann").id, queue="default")
    assert view is not None and view.job.task == "mail.send"


def test_two_functions_cannot_have_one_name(choose: Callable[..., None]) -> None:
    choose(tasks={f"{HERE}.send": {"name": "mail"}, f"{HERE}.other": {"name": "mail"}})
    compat.task(send)
    with pytest.raises(InvalidTask, match=r"task name 'mail' is taken by .*send"):
        compat.task(other)


def test_a_task_that_is_decorated_again_replaces_itself() -> None:
    first = compat.task(send)
    second = compat.task(send)
    assert first == second
    assert known(send).task is first  # type: ignore[union-attr]


def test_a_task_that_is_decorated_before_the_apps_are_known_is_registered_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apps, "apps_ready", False)
    task = compat.task(queue_name="mail")(send)
    task.using(queue_name="queue_1", priority=100)
    with pytest.raises(InvalidTask, match="cannot be enqueued before Django's apps are loaded"):
        task.enqueue("Ann")
    monkeypatch.undo()
    assert known(send) is None
    adopt_tasks([])
    assert known(send) is not None
    assert (options_of(send).queue, options_of(send).priority) == ("mail", 4)


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempt": 5}, "unknown option 'max_attempt'. Did you mean 'max_attempts'?"),
        ({"max_attempts": 0}, "max_attempts must be"),
        *[
            ({name: True}, f"unknown option {name!r}.")
            for name in ("queue", "merge", "batch_size", "cron", "id", "ack")
        ],
        ({"name": ""}, "task"),
    ],
)
def test_a_wrong_option_is_told_at_the_first_call(
    delayq: Broker, choose: Callable[..., None], options: dict[str, Any], message: str
) -> None:
    choose(tasks={f"{HERE}.send": options})
    task = compat.task(send)
    with pytest.raises(InvalidTaskBackend) as raised:
        task.enqueue("Ann")
    assert message in str(raised.value) and f"{HERE}.send" in str(raised.value)


def test_options_come_from_the_settings_of_all_tasks_and_of_one(choose: Callable[..., None]) -> None:
    choose(
        defaults={"max_attempts": 3, "timeout": 9, "retry_in": [1, 2]},
        tasks={f"{HERE}.send": {"max_attempts": 7, "give_up_on": (KeyError,), "expires": timedelta(hours=1)}},
    )
    compat.task(send)
    compat.task(other)
    mine, others = options_of(send), options_of(other)
    assert (mine.max_attempts, mine.timeout, mine.give_up_on, mine.expires) == (7, 9, (KeyError,), 3600)
    assert (others.max_attempts, others.timeout, others.retry_in(1), others.give_up_on) == (3, 9, 2, ())


def test_other_settings_count_from_the_next_call_on(delayq: Broker, choose: Callable[..., None]) -> None:
    task = compat.task(send)
    choose(defaults={"max_attempts": 3})
    task.enqueue("Ann")
    assert options_of(send).max_attempts == 3


def test_options_are_those_of_the_backend_that_the_task_was_made_for(delayq: Broker, settings: Any) -> None:
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"defaults": {"max_attempts": 3}}},
        "hasty": {"BACKEND": BACKEND, "OPTIONS": {"defaults": {"max_attempts": 8}}},
    }
    task = compat.task(send)
    first = known(send)
    task.using(backend="hasty").enqueue("Ann")
    task.enqueue("Bob")
    assert known(send) is first  # a worker of this process never misses it
    assert options_of(send).max_attempts == 3


# --- tasks of other backends


def test_a_task_of_another_backend_is_adopted_so_that_workers_know_it(
    delayq: Broker, settings: Any, work: Callable[..., Any]
) -> None:
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}, "queue": {"BACKEND": BACKEND}}
    task = compat.task(send)
    assert known(send) is None
    result = task.using(backend="queue").enqueue("Ann")
    assert known(send) is not None
    assert (result.backend, type(result.task)) == ("queue", compat.Task)
    work()
    result.refresh()
    assert result.return_value == "Ann"


def test_the_tasks_of_task_modules_are_adopted_at_start(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {
        "default": {"BACKEND": IMMEDIATE},
        "broken": {"BACKEND": "no.such.backend"},
        "queue": {"BACKEND": BACKEND, "OPTIONS": {"defaults": {"max_attempts": 9}}},
    }
    monkeypatch.setattr(deeds, "adopted", compat.task(send), raising=False)
    adopt_tasks([deeds.__name__])
    assert options_of(send).max_attempts == 9


# --- wrong settings


def messages(settings: Any, **entry: Any) -> list[CheckMessage]:
    settings.TASKS = {"default": {"BACKEND": BACKEND, **entry}}
    return list(compat.task_backends["default"].check())


def test_good_settings_have_no_findings(settings: Any) -> None:
    assert messages(settings) == []
    assert messages(settings, QUEUES=[]) == []
    options = {
        "result_ttl": timedelta(days=1),
        "max_result_bytes": 1000,
        "using_db": "default",
        "defaults": {"max_attempts": 2},
        "tasks": {"tests.tasks_backend.deeds.noop": {"timeout": 5}},
    }
    assert messages(settings, OPTIONS=options) == []


@pytest.mark.parametrize(
    ("entry", "ident", "text"),
    [
        ({"QUEUES": "default"}, "delayq.E040", "must be a list of queue names, got 'default'"),
        ({"QUEUES": 5}, "delayq.E040", "must be a list of queue names, got 5"),
        ({"QUEUES": ["default", "1 2"]}, "delayq.E040", "queue name '1 2' is not usable"),
        ({"QUEUES": ["default", 5]}, "delayq.E040", "queue name 5 is not usable"),
        ({"QUEUES": ["default", "feed"]}, "delayq.E042", "names 'feed', which is of kind 'pull'"),
        ({"OPTIONS": []}, "delayq.E041", "must be a dict, got []"),
        ({"OPTIONS": {"result_tll": 1}}, "delayq.E041", "unknown key 'result_tll'. Did you mean 'result_ttl'?"),
        ({"OPTIONS": {"result_ttl": "1 day"}}, "delayq.E041", "['OPTIONS']['result_ttl'] must be a number of seconds"),
        ({"OPTIONS": {"result_ttl": 1}}, "delayq.E041", "['result_ttl'] must be 60 to 315360000 seconds, got 1"),
        ({"OPTIONS": {"max_result_bytes": 0}}, "delayq.E041", "['max_result_bytes'] must be 1 to 67108864, got 0"),
        (
            {"OPTIONS": {"using_db": "defautl"}},
            "delayq.E041",
            "; got 'defautl'. Did you mean 'default'?",
        ),
        ({"OPTIONS": {"defaults": 5}}, "delayq.E041", 'must be a dict like {"max_attempts": 5}, got 5'),
        ({"OPTIONS": {"defaults": {"name": "x"}}}, "delayq.E041", "'name' belongs to one task"),
        ({"OPTIONS": {"defaults": {"aliases": ["x"]}}}, "delayq.E041", "'aliases' belongs to one task"),
        ({"OPTIONS": {"defaults": {"retries": 1}}}, "delayq.E041", "unknown option 'retries'"),
        ({"OPTIONS": {"tasks": []}}, "delayq.E041", "must be a dict like"),
        ({"OPTIONS": {"tasks": {"a.b": {"every": 5}}}}, "delayq.E041", "['tasks']['a.b']: unknown option 'every'"),
        ({"OPTIONS": {"tasks": {"a.b": {}}}}, "delayq.W040", "names 'a.b', which is not a Task"),
    ],
)
def test_a_wrong_setting_has_one_finding_and_is_no_crash(
    settings: Any, entry: dict[str, Any], ident: str, text: str
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    (message,) = messages(settings, **entry)
    assert message.id == ident and text in message.msg and message.hint
    compat.task(send)  # a task module can be imported all the same


def test_with_wrong_options_nothing_can_be_enqueued(delayq: Broker, choose: Callable[..., None]) -> None:
    choose(result_tll=1)
    with pytest.raises(InvalidTaskBackend, match="Did you mean 'result_ttl'"):
        deeds.noop.enqueue()
    assert delayq.queue_names() == []


def test_the_app_has_to_be_installed(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_delayq"]
    with pytest.raises(Misconfigured, match="'django_delayq' is not in INSTALLED_APPS"):
        deeds.noop.enqueue()


def test_before_django_6_the_backport_has_to_be_installed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    be_before_django_6(monkeypatch)
    with monkeypatch.context() as world:
        world.setitem(sys.modules, "django_tasks", None)
        assert [message.id for message in check_world()] == ["delayq.E044"]
        world.setitem(sys.modules, "django_tasks", models)
        assert check_world() == []
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}}
    assert check_world() == []
    settings.TASKS = {}
    assert check_world() == []
