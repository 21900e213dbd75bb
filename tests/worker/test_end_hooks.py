"""The last words of a worker process: the hook gets the error that ends it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker
from tests.support.worker_stage import EXIT_FATAL, Hooks, Worker, config, drain, put, registry_of

threads_die = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Mortal:
    """A duty whose thread dies at its second turn."""

    turns = 0

    def run(self) -> float:
        self.turns += 1
        if self.turns == 2:
            raise SystemExit("the duty is dead")
        return 0.01


def worker_of(broker: Broker, *functions: Callable[..., Any], hooks: Hooks, **options: Any) -> Worker:
    settings = config(threads=1, grace=0.3, heartbeat=0.2)
    return Worker(broker, registry_of(*functions), settings, hooks, **options)


@threads_die
def test_a_dead_loop_ends_the_process_and_its_error_is_in_the_last_words(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    stopped: list[str] = []
    hooks = Hooks(last_words=heard.append, process_stop=lambda: stopped.append("stop"))
    before = threading.excepthook
    with caplog.at_level(logging.CRITICAL):
        assert worker_of(broker, hooks=hooks, duties={"mortal": Mortal()}).run() == EXIT_FATAL
    assert [(type(error), str(error)) for error in heard] == [(SystemExit, "the duty is dead")]
    assert stopped == ["stop"]
    assert "thread delayq-mortal died, so this process ends" in caplog.text
    assert threading.excepthook is before


@threads_die
def test_a_dead_fetch_loop_ends_the_process_at_once(broker: Broker) -> None:
    def die(due: Any) -> Any:
        raise SystemExit("no more")

    heard: list[Any] = []
    settings = config(queues=("default", "other"), grace=0.3, heartbeat=0.2, scheduler=die)
    worker = Worker(broker, registry_of(), settings, Hooks(last_words=heard.append))
    began = time.monotonic()
    assert worker.run() == EXIT_FATAL
    assert time.monotonic() - began < 10
    assert [str(error) for error in heard] == ["no more"]


@threads_die
def test_a_dead_thread_of_a_job_is_not_the_workers(broker: Broker) -> None:
    heard: list[Any] = []
    worker: list[Worker] = []

    def work() -> None:
        thread = threading.Thread(target=lambda: 1 / 0, name="mine")
        thread.start()
        thread.join()
        drain(worker[0])

    put(broker, "work")
    worker.append(worker_of(broker, work, hooks=Hooks(last_words=heard.append)))
    assert worker[0].run() == 0
    assert heard == []


def test_a_start_that_fails_has_last_words(broker: Broker) -> None:
    heard: list[Any] = []

    def fail() -> None:
        raise ZeroDivisionError("no tracer")

    with pytest.raises(ZeroDivisionError):
        worker_of(broker, hooks=Hooks(process_start=fail, last_words=heard.append)).run()
    assert [str(error) for error in heard] == ["no tracer"]


def test_the_end_of_grace_is_an_error_and_heard_once(broker: Broker) -> None:
    begun, enough = threading.Event(), threading.Event()
    heard: list[Any] = []

    def endless() -> None:
        begun.set()
        enough.wait(30)

    put(broker, "endless")
    worker = worker_of(broker, endless, hooks=Hooks(last_words=heard.append))
    worker.start()
    try:
        assert begun.wait(20)
        assert worker.stop(0) is False
        assert worker.stop(0) is False
        assert [(type(error), str(error)) for error in heard] == [
            (TimeoutError, "1 jobs still ran at the end of the process")
        ]
    finally:
        enough.set()


def test_last_words_that_fail_are_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("no")

    def broken(error: BaseException) -> None:
        raise KeyError("worse")

    with pytest.raises(ValueError, match="no"):
        worker_of(broker, hooks=Hooks(process_start=fail, last_words=broken)).run()
    assert "the hook last_words failed" in caplog.text
