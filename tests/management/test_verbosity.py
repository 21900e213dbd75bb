"""``-v`` of the worker commands: what is logged at each level, and what a project's own LOGGING keeps."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from django_delayq import logs
from django_delayq.core.broker import Broker
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf

from .test_worker import put

if TYPE_CHECKING:
    from .conftest import Depot


FAILURE = "ERROR   django_delayq.worker.notifier: f: task depot.fail went to the morgue (exhausted)"
PROGRESS = "INFO    django_delayq.worker.worker: worker "
SUCCESS = "DEBUG   django_delayq.worker.notifier: s: attempt 1 of task depot.ship succeeded in 0."
OTHERS = "DEBUG   asyncio: "


@pytest.mark.parametrize(
    ("verbosity", "shown", "hidden"),
    [
        ("0", [FAILURE, "ZeroDivisionError: no parcels", "Traceback (most recent"], [" INFO ", " DEBUG "]),
        ("2", [FAILURE, PROGRESS, SUCCESS], [" asyncio: "]),
        ("3", [FAILURE, PROGRESS, SUCCESS, OTHERS], []),
    ],
)
def test_each_level_logs_more_of_a_success_a_coroutine_and_a_last_failure(
    depot: Depot, broker: Broker, verbosity: str, shown: list[str], hidden: list[str]
) -> None:
    put(broker, "ship", 1, id="s")
    put(broker, "fetch", 1)
    put(broker, "fail", id="f")
    answer = depot.manage("delayq_worker", "--burst", "--threads", "1", "--queues", "default", "-v", verbosity)
    assert answer.returncode == 0, answer.stderr
    assert [text for text in shown if text not in answer.stderr] == []
    assert [text for text in hidden if text in answer.stderr] == []


@pytest.fixture
def package() -> Iterator[logging.Logger]:
    """Logger of the package, with a handler of the project."""
    logger, handler = logging.getLogger(logs.PACKAGE), logging.NullHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("own", "verbosity", "level"),
    [
        (logging.NOTSET, 0, logging.WARNING),
        (logging.NOTSET, 1, logging.NOTSET),
        (logging.NOTSET, 2, logging.DEBUG),
        (logging.ERROR, 2, logging.ERROR),
    ],
)
def test_a_level_that_the_project_set_stays(package: logging.Logger, own: int, verbosity: int, level: int) -> None:
    package.setLevel(own)
    handlers = list(package.handlers)
    assert logs.configure("json", verbosity) is False
    assert (package.level, package.handlers) == (level, handlers)


def test_lines_of_failures_follow_the_settings(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"sensitive": ["parcel"]}}
    log = wiring.make_hooks(conf()).log
    assert (log.mask_text("parcel=5"), log.mask_traceback("parcel=5")) == ("parcel=••••••", "parcel=••••••")
