"""Triggers that schedule and cancel jobs on model signals.

Use ``schedule_on(post_save, sender=Order, …)`` and ``cancel_on(post_delete, …)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Model
from django.dispatch import Signal

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import Task, check_option_names
from .build import explicit, find_task
from .verbs import cancel, schedule_call

#: function of the instance, and of ``created``: True, False, or None if the signal does not provide it
When = Callable[[Any, bool | None], object]
#: function of the task, the instance, and the alias of the database of the signal
Act = Callable[[Task, Any, str | None], object]


def schedule_on(
    signal: Signal,
    *,
    sender: Any = None,
    task: Task | str,
    when: When | None = None,
    raw: bool = False,
    dispatch_uid: str | None = None,
    **options: Any,
) -> None:
    """Schedule ``task`` whenever ``signal`` is sent.

    Example::

        schedule_on(post_save, sender=Order, task=cancel_order, delay=timedelta(minutes=30),
                    id=lambda order: f"order-{order.pk}", args=lambda order: (order.pk,),
                    when=lambda order, created: created)

    The job belongs to the transaction in which the row is saved (``using_db`` is its database). Call it in an app's
    ``ready()``, or next to the task.

    Args:
        signal: a model's signal, or any other; without an ``instance`` the functions receive the sender.
        sender: the model, as a class or (model signals) as "app.Model"; None = every sender.
        task: the task, or its name.
        when: function of (instance, created) that returns True if a job should be scheduled. ``created`` is None if the
            signal does not provide it.
        raw: also handle rows loaded by ``loaddata``.
        dispatch_uid: a second call with the same value replaces the first one; ``signal.disconnect(sender=…,
            dispatch_uid=…)`` removes it.
        options: options of :func:`django_delayq.schedule`, and ``args``, ``kwargs``, ``payload``; each a value, or a
            function of the instance.

    Raises:
        TypeError, InvalidJob, Misconfigured: raised at once if the trigger can never work. Errors caused by the values
            of one job are raised where the signal is sent.
    """
    named = {name: options[name] for name in options if name not in ("args", "kwargs")}
    check_option_names(named, task if isinstance(task, Task) else None)
    fixed = {name: value for name, value in options.items() if not callable(value)}
    explicit(fixed.get("args"), fixed.get("kwargs"))

    def act(task: Task, instance: Any, using: str | None) -> None:
        values = {name: _value(option, instance) for name, option in options.items()}
        args, kwargs = explicit(values.pop("args", None), values.pop("kwargs", None))
        schedule_call(task, args, kwargs, {"using_db": using, **values})

    _connect(signal, sender, task, act, when, raw, dispatch_uid)


def cancel_on(
    signal: Signal,
    *,
    sender: Any = None,
    task: Task | str,
    id: Any,
    when: When | None = None,
    queue: str | None = None,
    raw: bool = False,
    dispatch_uid: str | None = None,
) -> None:
    """Cancel a job of ``task`` whenever ``signal`` is sent.

    Example::

        cancel_on(post_delete, sender=Order, task=cancel_order, id=lambda order: f"order-{order.pk}")

    Args:
        id: the job's id, or a function of the instance. After ``post_delete`` the instance still has its ``pk``.
        queue: queue of the job, if it is not the task's own.
        signal, sender, task, when, raw, dispatch_uid: see :func:`schedule_on`.
    """

    def act(task: Task, instance: Any, using: str | None) -> None:
        cancel(id=_value(id, instance), task=task, queue=queue, using_db=using)

    _connect(signal, sender, task, act, when, raw, dispatch_uid)


def _connect(
    signal: Signal, sender: Any, task: Task | str, act: Act, when: When | None, raw: bool, uid: str | None
) -> None:
    if not isinstance(signal, Signal):
        raise Misconfigured(f"expected a signal like django.db.models.signals.post_save, got {short(signal)}")
    if when is not None and not callable(when):
        raise Misconfigured(f"when must be a function of (instance, created), got {short(when)}")
    if not isinstance(task, str):
        find_task(task)  # a task given by name may be registered later

    def receive(*, sender: Any, **data: Any) -> None:
        if data.get("raw") and not raw:
            return  # loaddata: related rows may not exist yet
        instance = data.get("instance", sender)
        if when is None or when(instance, data.get("created")):
            act(find_task(task), instance, data.get("using"))

    if uid is not None:
        signal.disconnect(sender=sender, dispatch_uid=uid)
    signal.connect(receive, sender=sender, weak=False, dispatch_uid=uid)


def _value(option: Any, instance: Any) -> Any:
    # A model class, for instance, is a value although it can be called.
    return option(instance) if callable(option) and not isinstance(option, (type, Model)) else option
