"""Groups and limits of Django's Tasks: Wagtail's index tasks of one page never meet each other."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import limits
from django_delayq.core import Broker
from tests.tasks_backend.stage import InvalidTask, InvalidTaskBackend, compat, forget

BACKEND = "django_delayq.backends.DelayQBackend"
HERE = "tests.tasks_backend.test_groups"
OF_PAGE = {"group": "{app_label}.{model_name}:{pk}", "group_concurrency": 1}
PAGES, TASKS_OF_A_PAGE = 6, 5

#: page → begin and end of each attempt
intervals: dict[str, list[tuple[float, float]]] = defaultdict(list)
together = threading.Barrier(2)


def _index(pk: str) -> None:
    began = time.monotonic()
    if pk.startswith("pair"):
        together.wait(10)
    time.sleep(0.02)
    intervals[pk].append((began, time.monotonic()))


def insert_or_update_object_task(app_label: str, model_name: str, pk: str) -> None:
    """Take the time of the task of this name in Wagtail's search."""
    _index(pk)


def update_reference_index_task(app_label: str, model_name: str, pk: str) -> None:
    """Take the time of the task of this name of Wagtail."""
    _index(pk)


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> Iterator[None]:
    intervals.clear()
    functions = insert_or_update_object_task, update_reference_index_task
    options = {"tasks": {f"{HERE}.{function.__name__}": OF_PAGE for function in functions}}
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    yield
    for function in functions:
        forget(function)


def most_at_once(spans: list[tuple[float, float]]) -> int:
    steps = sorted((at, step) for span in spans for at, step in zip(span, (1, -1), strict=True))
    return max(itertools.accumulate(step for _, step in steps), default=0)


@pytest.mark.django_db(transaction=True)
def test_index_tasks_of_one_page_never_meet_each_other(delayq: Broker, work: Callable[..., Any]) -> None:
    index, references = compat.task(insert_or_update_object_task), compat.task(update_reference_index_task)
    for number in range(TASKS_OF_A_PAGE):
        for page in range(PAGES):
            (references if number % 2 else index).enqueue("home", "page", f"page-{page}")
    for page in ("pair-1", "pair-2"):  # those of two pages wait for each other, so they have to meet
        index.enqueue("home", "page", page)
    work(threads=5)
    assert {page: len(spans) for page, spans in intervals.items()} == {
        **{f"page-{page}": TASKS_OF_A_PAGE for page in range(PAGES)},
        "pair-1": 1,
        "pair-2": 1,
    }
    assert {page: most_at_once(spans) for page, spans in intervals.items()} == dict.fromkeys(intervals, 1)


@pytest.mark.django_db(transaction=True)
def test_a_task_has_the_group_of_its_arguments_and_the_limits_that_are_set_for_it(
    delayq: Broker, work: Callable[..., Any]
) -> None:
    index = compat.task(insert_or_update_object_task)
    index.enqueue("home", "page", pk=7)
    (view,) = delayq.inspector.page("default", "waiting").jobs
    assert (view.job.group, view.job.options["group_limits"]) == ("home.page:7", [1, 0, 0, 1])
    limits.set("default", group="home.page:7", concurrency=2)
    assert limits.get("default", group="home.page:7") == {"concurrency": 2}


def test_a_group_of_all_tasks_is_refused_because_it_names_arguments(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"defaults": OF_PAGE}}}
    with pytest.raises(InvalidTaskBackend, match="'group' belongs to one task; put it into OPTIONS"):
        _ = compat.task_backends["default"].settings


def test_a_group_that_names_no_argument_is_refused(settings: Any) -> None:
    options = {"tasks": {f"{HERE}.insert_or_update_object_task": {"group": "{page}"}}}
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    with pytest.raises(InvalidTask, match="names no argument 'page'"):
        compat.task(insert_or_update_object_task)
