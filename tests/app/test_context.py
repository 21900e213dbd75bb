"""Context variables that travel with jobs, logs that know their job, and the project's hooks in a worker."""

from __future__ import annotations

import contextvars
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_delayq import InvalidJob, current_job, get_job, logs, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import NewJob
from django_delayq.core.task import Registry, Task, TaskOptions
from django_delayq.masking import HIDDEN
from django_delayq.runtime import wiring
from django_delayq.scheduling.tasks import MergedTask
from django_delayq.settings.conf import collect_context, conf
from django_delayq.worker.worker import Worker

from .deeds import note, sync
from .running import run_dry

HERE = "tests.app.test_context"
trace: contextvars.ContextVar[Any] = contextvars.ContextVar("trace", default="the default")
tenant: contextvars.ContextVar[Any] = contextvars.ContextVar("tenant")
said: list[Any] = []


def worker_init() -> None:
    said.append("init")


def broken_init() -> None:
    raise ZeroDivisionError("no tracer")


def last_words(error: BaseException) -> None:
    said.append("last words")


def format_error(error: BaseException) -> str:
    return f"formatted {error}"


@pytest.fixture
def linked(delayq: Broker, settings: Any) -> Iterator[Broker]:
    """``CONTEXT`` names both variables; what a test sets is gone afterwards."""
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": {"trace": f"{HERE}.trace", "tenant": f"{HERE}.tenant"}}
    from django_delayq import connections

    said.clear()
    tokens = [(variable, variable.set(None)) for variable in (trace, tenant)]
    yield connections.broker()
    for variable, token in tokens:
        variable.reset(token)


def registered(*tasks: Task) -> Registry:
    names = Registry()
    for one in tasks:
        names.add(one)
    return names


def stored_context(ident: str, queue: str = "default") -> Any:
    view = get_job(ident, queue=queue)
    assert view is not None
    return view.job.options.get("context")


def test_what_is_set_at_the_call_is_in_the_jobs_context(linked: Broker) -> None:
    schedule(note, "x", id="bare")
    trace.set({"id": "t1"})
    schedule(note, "x", id="set")
    schedule(note, "x", id="given", context={"trace": "mine", "more": 1})
    schedule(note, "x", id="not", context={"trace": None})
    tenant.set(7)
    assert schedule_many(note, [{"args": ["x"], "id": "many"}]) == {"created": 1}
    schedule(sync, id="m", payload=1)
    assert stored_context("bare") is None
    assert stored_context("set") == {"trace": {"id": "t1"}}
    assert stored_context("given") == {"trace": "mine", "more": 1}
    assert stored_context("not") == {"trace": None}
    assert stored_context("many") == stored_context("m", "deeds.sync") == {"trace": {"id": "t1"}, "tenant": 7}


def test_what_json_cannot_hold_is_refused_at_the_call(linked: Broker) -> None:
    trace.set(object())
    with pytest.raises(InvalidJob, match="plain JSON values only"):
        schedule(note, "x")
    assert linked.queue_names() == []


@pytest.mark.django_db(transaction=True)
def test_it_is_set_again_around_the_handler_and_around_that_one_only(linked: Broker) -> None:
    def plain() -> None:
        said.append((trace.get(), tenant.get("unset")))
        trace.set("changed by the job")

    async def later() -> None:
        said.append((trace.get(), tenant.get("unset")))

    tasks = [Task(func, name=func.__name__) for func in (plain, later)]
    trace.set("t1")
    for one in tasks:
        schedule(one)
    trace.set(None)
    tenant.set("shop 5")
    for one in tasks:
        schedule(one)
    tenant.set(None)
    contextvars.Context().run(partial(run_dry, names=registered(*tasks)))
    assert sorted(said) == [("t1", "unset")] * 2 + [("the default", "shop 5")] * 2
    assert trace.get() is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [b"{", b"[]", b'{"context":5}', b"[" * 60_000])
def test_a_context_that_cannot_be_read_is_none_and_the_job_runs(linked: Broker, options: bytes) -> None:
    """Else it would be given back again and again, and never end."""
    ran: list[Any] = []

    def handler() -> None:
        job = current_job()
        ran.append((job and dict(job.context), trace.get()))

    linked.queue("default").schedule(NewJob("a", "work", options=options))
    contextvars.Context().run(partial(run_dry, names=registered(Task(handler, name="work"))))
    assert ran == [({}, "the default")]


@pytest.mark.django_db(transaction=True)
def test_a_handler_that_schedules_passes_it_on(linked: Broker) -> None:
    def first() -> None:
        schedule(note, "x", id="second", delay=60)

    trace.set("t1")
    one = Task(first, name="first")
    schedule(one)
    trace.set(None)
    contextvars.Context().run(partial(run_dry, names=registered(one)))
    assert stored_context("second") == {"trace": "t1"}


@pytest.mark.django_db(transaction=True)
def test_of_a_batch_the_first_jobs_context_is_set(linked: Broker) -> None:
    def gather(payloads_by_id: dict[str, list[Any]]) -> None:
        said.append((sorted(payloads_by_id), trace.get(), logs.job_fields()["job_id"]))

    one: MergedTask[None] = MergedTask(
        gather, name="gather", options=TaskOptions(merge=True, batch_size=10, queue="gather")
    )
    for ident in ("a", "b", "c"):
        trace.set(f"trace of {ident}")
        schedule(one, id=ident, payload=1, at=1_000_000_000 + ord(ident))
    trace.set(None)
    contextvars.Context().run(partial(run_dry, "gather", names=registered(one)))
    assert said == [(["a", "b", "c"], "trace of a", "a,b,c")]


def test_nothing_is_looked_up_when_nothing_is_configured(delayq: Broker) -> None:
    assert (conf().context_variables, collect_context()) == ({}, {})


@pytest.mark.parametrize(
    ("path", "text"),
    [("no.such.variable", "cannot be imported"), (f"{HERE}.said", "is no contextvars.ContextVar")],
)
def test_a_wrong_variable_is_told_at_the_call(delayq: Broker, settings: Any, path: str, text: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": {"trace": path}}
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['CONTEXT'\]\['trace'\]: {path} {text}"):
        schedule(note, "x")


# --- logs


def record(logger: str = "shop") -> logging.LogRecord:
    return logging.getLogger(logger).makeRecord(logger, logging.INFO, __file__, 1, "line", (), None)


@pytest.fixture
def ran(delayq: Broker, transactional_db: None) -> Callable[[Callable[[], None]], None]:
    """``ran(function)`` runs it as a job with id "j", attempt 1 and a context, in a worker."""

    def run(function: Callable[[], None]) -> None:
        one = Task(lambda: function(), name="logging")
        schedule(one, id="j", context={"trace": "t1"})
        run_dry(names=registered(one))

    return run


FIELDS = {"job_id": "j", "queue": "default", "task": "logging", "attempt": 1, "context_trace": "t1"}


def test_the_filter_gives_records_the_fields_of_their_job(ran: Callable[[Callable[[], None]], None]) -> None:
    lines: list[dict[str, Any]] = []

    def job() -> None:
        for made in (record(), record()):
            if lines:
                made.__dict__["job_id"] = "its own"
            assert logs.JobFilter().filter(made)
            lines.append({name: vars(made)[name] for name in FIELDS})

    ran(job)
    assert lines == [FIELDS, {**FIELDS, "job_id": "its own"}]
    assert current_job() is None


def test_secrets_in_the_context_reach_no_line(delayq: Broker, transactional_db: None) -> None:
    lines: list[dict[str, Any]] = []

    def job() -> None:
        made = record()
        logs.JobFilter().filter(made)
        lines.append(json.loads(logs.JsonFormatter().format(made)))

    one = Task(job, name="logging")
    context = {"api_key": "hunter2", "tenant": {"db_pass": "hunter2", "n": 5}, "url": "x?jwt=hunter2"}
    schedule(one, id="j", context=context)
    run_dry(names=registered(one))
    assert "hunter2" not in str(lines)
    (line,) = lines
    assert (line["context_api_key"], line["context_url"]) == (HIDDEN, f"x?jwt={HIDDEN}")
    assert line["context_tenant"] == {"db_pass": HIDDEN, "n": 5}


def test_outside_of_a_job_a_format_may_name_the_fields_all_the_same() -> None:
    outside = record()
    assert logs.JobFilter().filter(outside)
    assert logging.Formatter("%(job_id)s %(queue)s %(task)s %(attempt)s %(message)s").format(outside) == "- - - - line"
    bare = record()
    assert logs.JobFilter(missing=None).filter(bare)
    assert "job_id" not in vars(bare)


def test_a_format_may_name_the_context_of_the_settings_in_every_record(
    settings: Any, ran: Callable[[Callable[[], None]], None]
) -> None:
    context = {"trace": f"{HERE}.trace", "tenant": f"{HERE}.tenant"}
    settings.DELAYQ = {**settings.DELAYQ, "CONTEXT": context}
    form, lines = logging.Formatter("%(context_trace)s %(context_tenant)s %(message)s"), []

    def write() -> None:
        made = record()
        assert logs.JobFilter().filter(made)
        lines.append(form.format(made))

    write()
    ran(write)
    assert lines == ["- - line", "t1 - line"]
    with override_settings(DELAYQ={"CONTEXT": "wrong"}):  # the checks report it; the log goes on
        assert logs.JobFilter().filter(record())


def test_a_logger_for_tasks_gives_its_records_the_fields_and_keeps_the_message(
    ran: Callable[[Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logs.get_logger("shop.tasks")
    with caplog.at_level(logging.INFO, "shop.tasks"):
        logger.info("outside %d%%", 5)
        ran(lambda: logger.info("inside", extra={"task": "mine", "more": 1}))
    outside, inside = (one for one in caplog.records if one.name == "shop.tasks")
    assert (outside.getMessage(), hasattr(outside, "job_id")) == ("outside 5%", False)
    assert inside.getMessage() == "inside"
    told = {name: vars(inside)[name] for name in (*FIELDS, "more")}
    assert told == {**FIELDS, "task": "mine", "more": 1}
    assert inside.funcName == "<lambda>"


def with_hooks(settings: Any, **paths: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "HOOKS": {name: f"{HERE}.{path}" for name, path in paths.items()}}


@pytest.mark.django_db(transaction=True)
def test_a_worker_calls_the_projects_hooks(delayq: Broker, settings: Any) -> None:

    def fail() -> None:
        said.append("job")
        raise ValueError("secret")

    said.clear()
    with_hooks(settings, worker_init="worker_init", format_error="format_error", last_words="last_words")
    one = Task(fail, name="fail", options=TaskOptions(max_attempts=1))
    schedule(one, id="f")
    run_dry(names=registered(one))
    view = get_job("f", queue="default")
    assert view is not None
    assert (said, json.loads(view.job.error)["message"]) == (["init", "job"], "formatted secret")
    hooks = wiring.make_hooks(conf())
    assert hooks.last_words is last_words


@pytest.mark.django_db(transaction=True)
def test_the_last_words_are_said_when_jobs_still_run_at_the_end(delayq: Broker, settings: Any) -> None:
    from django_delayq import connections

    begun, enough = threading.Event(), threading.Event()
    ended: list[threading.Thread] = []

    def endless() -> None:
        ended.append(threading.current_thread())
        begun.set()
        enough.wait(30)

    said.clear()
    with_hooks(settings, last_words="last_words")
    one = Task(endless, name="endless")
    schedule(one)
    hooks = wiring.make_hooks(conf())
    config = wiring.make_config(conf(), queues=("default",), threads=1, dispatcher=False)
    worker = Worker(connections.broker(), registered(one), config, hooks)
    worker.start()
    try:
        assert begun.wait(20)
        assert said == []
        assert worker.stop(0) is False
        assert said == ["last words"]
    finally:
        enough.set()
        ended[0].join(20)
        hooks.process_stop()


def test_an_init_that_fails_says_so(delayq: Broker, settings: Any) -> None:
    with_hooks(settings, worker_init="broken_init")
    hooks = wiring.make_hooks(conf())
    try:
        with pytest.raises(Misconfigured, match=r"worker_init'\]: .*broken_init failed.*ZeroDivisionError: no tracer"):
            hooks.process_start()
    finally:
        hooks.process_stop()


@pytest.mark.parametrize(("name", "text"), [("nothing", "cannot be imported"), ("said", "is not callable")])
def test_a_wrong_hook_is_told_before_anything_starts(delayq: Broker, settings: Any, name: str, text: str) -> None:
    with_hooks(settings, last_words=name)
    with pytest.raises(Misconfigured, match=rf"DELAYQ\['HOOKS'\]\['last_words'\]: .* {text}"):
        wiring.make_hooks(conf())


def test_a_worker_process_whose_init_fails_ends_with_a_clear_message(
    manage_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "broken_site.py").write_text(
        f'from tests.settings import *\nDELAYQ = {{**DELAYQ, "HOOKS": {{"worker_init": "{HERE}.broken_init"}}}}\n'
    )
    env = {
        **manage_env,
        "DJANGO_SETTINGS_MODULE": "broken_site",
        "PYTHONPATH": f"{tmp_path}:{manage_env['PYTHONPATH']}",
    }
    answer = subprocess.run(
        [sys.executable, "-m", "django", "delayq_worker", "--burst"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr
    assert "CommandError: DELAYQ['HOOKS']['worker_init']" in answer.stderr
    assert "so this process ends: ZeroDivisionError: no tracer" in answer.stderr
