"""Ids and scores that a task derives from its arguments, and what names of other systems are answered."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue, cancel, get_job, schedule, schedule_many, task
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.core.task import registry

from .deeds import note, rest, sync

pytestmark = pytest.mark.usefixtures("delayq")


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """Tasks of a test are forgotten after it."""
    before = set(registry)
    yield
    for one in set(registry) - before:
        registry.remove(one)


def ids(broker: Broker, queue: str = "default") -> list[str]:
    return sorted(view.id for view in broker.inspector.page(queue, "waiting").jobs)


@pytest.mark.parametrize(
    "derive", ["order-{order_id}-{kind}", lambda order_id, kind="paid": f"order-{order_id}-{kind}"]
)
def test_a_task_derives_the_ids_of_its_jobs_from_their_arguments(delayq: Broker, derive: Any) -> None:
    @task(name="derived.cancel", id=derive)
    def cancel_order(order_id: int, kind: str = "paid") -> None: ...

    handle = schedule(cancel_order, 5)
    assert (handle.id, handle.outcome) == ("order-5-paid", "created")
    assert schedule(cancel_order, order_id=5, kind="paid").outcome == "replaced"
    assert cancel_order.schedule(6, "open").id == "order-6-open"
    assert schedule_many(cancel_order, [{"args": [7]}, {"kwargs": {"order_id": 8}}, {"args": [9], "id": "mine"}])
    assert ids(delayq) == ["mine", "order-5-paid", "order-6-open", "order-7-paid", "order-8-paid"]
    assert cancel(cancel_order, "order-5-paid") == "cancelled"
    with pytest.raises(TypeError, match=r"derived\.cancel"):
        schedule(cancel_order)


def test_a_task_derives_the_due_times_of_its_jobs_from_their_arguments(delayq: Broker) -> None:
    @task(name="derived.remind", at=lambda day, quiet=False: None if quiet else day)
    def remind(day: Any, quiet: bool = False) -> None: ...

    def due(handle: Any) -> float:
        view = get_job(remind, handle.id)
        assert view is not None
        return view.job.due_ms / 1000

    now = delayq.now_ms() / 1000
    soon, later = now + 3600, now + 7200
    assert due(remind.schedule(soon)) == pytest.approx(soon, abs=0.001)
    assert due(schedule(remind, day=later)) == pytest.approx(later, abs=0.001)
    assert due(schedule(remind, soon, at=later)) == pytest.approx(later, abs=0.001)
    assert due(schedule(remind, soon, delay=0)) == pytest.approx(now, abs=60)
    assert due(schedule(remind, soon, quiet=True)) == pytest.approx(now, abs=60)
    schedule_many(remind, [{"args": [soon], "id": "a"}, {"args": [soon], "id": "b", "delay": 7200}])
    views = [get_job(remind, one) for one in ("a", "b")]
    assert [round((view.job.due_ms / 1000 - now) / 3600) for view in views if view] == [1, 2]
    with pytest.raises(InvalidJob, match=r"^at must be"):
        schedule(remind, "tomorrow")
    with pytest.raises(TypeError, match=r"derived\.remind"):
        schedule(remind)


def test_a_merged_task_derives_due_times_from_the_payload(delayq: Broker) -> None:
    @task(name="derived.settle", merge=True, queue="crm", id="{customer}", at=lambda payload: payload["by"])
    def settle(payloads: dict[str, list[Any]]) -> None: ...

    by = delayq.now_ms() / 1000 + 3600
    view = get_job(settle, schedule(settle, payload={"customer": 5, "by": by}).id)
    assert view is not None
    assert view.job.due_ms / 1000 == pytest.approx(by, abs=0.001)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": "tomorrow"}, "at must be a function"),
        ({"at": lambda: None, "every": 60}, "every and cron say when"),
        ({"at": lambda: None, "cron": "@daily"}, "every and cron say when"),
    ],
)
def test_a_due_time_that_no_function_derives_is_refused_at_import(options: Any, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        task(name="derived.wrong", **options)(lambda: None)


def test_a_merged_task_derives_ids_and_scores_from_the_payload(delayq: Broker) -> None:
    @task(name="derived.sync", merge=True, queue="crm", id="{customer}", score=lambda payload: payload["version"])
    def sync_customers(payloads: dict[str, list[Any]]) -> None: ...

    assert schedule(sync_customers, payload={"customer": 5, "version": 9}).id == "5"
    assert schedule(sync_customers, payload={"customer": 5, "version": 3}).outcome == "merged"
    schedule_many(sync_customers, [{"payload": {"customer": 5, "version": 1}, "score": 20}])
    (held,) = Queue("crm").reserve()
    assert [payload["version"] for payload in held.payloads] == [3, 9, 1]


def test_arguments_without_an_id_are_refused_with_what_to_mend() -> None:
    @task(name="derived.wrong", id=lambda order_id: f"order-{order_id['pk']}")
    def cancel_order(order_id: int) -> None: ...

    @task(name="derived.none", merge=True, id=lambda payload: payload.get("id"))
    def unite(payloads: dict[str, list[Any]]) -> None: ...

    with pytest.raises(InvalidJob, match=r"derived.wrong: its id= failed .*TypeError: .*subscriptable.*mend"):
        schedule(cancel_order, 5)
    assert schedule(cancel_order, 5, id="x").id == "x"
    with pytest.raises(InvalidJob, match="needs an id="):
        schedule(unite, payload={})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": "order"}, "id must be a function of the call's arguments, or a template"),
        ({"id": 5}, "id must be a function"),
        ({"score": lambda payload: 1}, "score is for merged tasks only"),
        ({"merge": True, "score": "version"}, "score must be a function of the payload"),
        ({"retry_on_false": 1}, "retry_on_false must be True or False"),
    ],
)
def test_an_option_that_derives_nothing_is_refused_at_the_task(options: dict[str, Any], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):

        @task(name="derived.refused", **options)
        def work(payloads: Any) -> None: ...


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("order-{ordre_id}", "no argument 'ordre_id'.*'order_id'"),
        ("order-{ordre_id.pk}-{kind[0]}", "no argument 'ordre_id'"),
        ("order-{}-{}", "no argument '1'"),
        ("order-{5}", "no argument '5'"),
        ("order-{order_id", "no template"),
        ("order-{order_id:{widht}}", "no argument 'widht'"),
    ],
)
def test_a_template_that_no_call_can_fill_is_refused_at_the_task(template: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):

        @task(name="derived.refused", id=template)
        def work(order_id: int, *, kind: str = "paid") -> None: ...

    assert "derived.refused" not in registry.tasks


def test_a_template_may_name_whatever_a_call_may_give(delayq: Broker) -> None:
    @task(name="derived.rest", id="{0}-{rest[0]}-{shop}-{{}}")
    def work(first: int, *rest: int, **more: str) -> None: ...

    assert schedule(work, 1, 2, shop="x").id == "1-2-x-{}"


def test_a_uuid_is_an_id(delayq: Broker) -> None:
    ident = uuid.uuid4()
    assert schedule(note, "x", id=ident).id == str(ident)
    assert schedule_many(note, [{"args": ["x"], "id": ident}]) == {"replaced": 1}
    assert get_job(note, id=ident) is not None
    assert cancel(note, ident) == "cancelled"


def test_an_id_that_is_more_than_a_text_is_stored_as_a_text(delayq: Broker) -> None:
    class Kind(enum.StrEnum):
        NIGHTLY = "nightly"

    handle = schedule(note, "x", id=Kind.NIGHTLY)
    assert (type(handle.id), str(handle.id)) == (str, "nightly")
    assert cancel(note, Kind.NIGHTLY) == "cancelled"


@pytest.mark.parametrize(("name", "ours"), [("countdown", "delay="), ("eta", "at="), ("run_after", "delay= or at=")])
def test_an_option_of_another_system_is_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(TypeError, match=f"Here that is {ours}"):
        schedule(note, "x", **{name: 5})
    with pytest.raises(TypeError, match=f"Here that is {ours}"):
        schedule(sync, id=1, **{name: 5})
    with pytest.raises(TypeError, match=f"Here that is {ours}"):
        rest.using(**{name: 5})
    with pytest.raises(InvalidJob, match=f"Here that is {ours}"):
        schedule_many(note, [{"args": ["x"], name: 5}])


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("bind", "current_job"),
        ("max_retries", "max_attempts="),
        ("time_limit", "timeout="),
        ("queue_name", "queue="),
        ("rate_limit", "rate="),
    ],
)
def test_an_option_of_another_systems_task_is_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(Misconfigured, match=f"unknown option '{name}'. Here that is {ours}"):
        task(name="derived.foreign", **{name: 5})(lambda: None)  # type: ignore[call-overload]


def test_an_option_in_place_of_an_argument_is_answered_with_the_call_that_takes_it() -> None:
    with pytest.raises(
        TypeError, match=r"argument 'delay' .*\. As an option: schedule\(…, delay=…\), or using\(delay=…\)"
    ):
        note.schedule("x", delay=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["delay", "apply_async", "s", "enqueue", "send", "perform_async", "perform_in"])
def test_a_method_of_another_system_is_answered_with_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"task deeds.note has no {name}\(\); call schedule\(note, …, delay=…\)"):
        getattr(note, name)
    with pytest.raises(AttributeError, match="has no attribute 'whatever'"):
        note.whatever  # type: ignore[attr-defined]  # noqa: B018
