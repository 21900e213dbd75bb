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


def logged(depot: Depot, broker: Broker, verbosity: str) -> str:
    """Return what a worker logs of a success, a coroutine and a last failure."""
    put(broker, "ship", 1, id="s")
    put(broker, "fetch", 1)
    put(broker, "fail", id="f")
    answer = depot.manage("delayq_worker", "--burst", "--threads", "1", "--queues", "default", "-v", verbosity)
    assert answer.returncode == 0, answer.stderr
    return answer.stderr


def test_verbosity_0_has_the_failures(depot: Depot, broker: Broker) -> None:
    output = logged(depot, broker, "0")
    assert "ERROR   django_delayq.worker.notifier: f: task depot.fail went to the morgue (exhausted)" in output
    assert "ZeroDivisionError: no parcels" in output and "Traceback (most recent call last):" in output
    assert " INFO " not in output and " DEBUG " not in output


def test_verbosity_1_adds_what_the_worker_does(depot: Depot, broker: Broker) -> None:
    output = logged(depot, broker, "1")
    assert " ERROR " in output and "INFO    django_delayq.worker.worker: worker " in output
    assert " DEBUG " not in output


def test_verbosity_2_adds_each_success(depot: Depot, broker: Broker) -> None:
    output = logged(depot, broker, "2")
    assert "DEBUG   django_delayq.worker.notifier: s: attempt 1 of task depot.ship succeeded in 0." in output
    assert " asyncio: " not in output


def test_verbosity_3_adds_other_libraries(depot: Depot, broker: Broker) -> None:
    output = logged(depot, broker, "3")
    assert "s: attempt 1 of task depot.ship succeeded" in output
    assert "DEBUG   asyncio: " in output


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
