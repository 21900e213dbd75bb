"""Triggers that schedule and cancel jobs on model signals.

Use ``schedule_on(post_save, sender=Order, …)`` and ``cancel_on(post_delete, …)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db.models import Model
from django.dispatch import Signal

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import Task, check_option_names
from .build import explicit, find_task
from .verbs import cancel, schedule_call

__all__ = ["Trigger", "cancel_on", "schedule_on"]

When = Callable[..., object]


@dataclass(eq=False, repr=False)
class Trigger:
    """Connection between a signal and a verb. Keep it only if it must be removed later with :meth:`disconnect`.

    Attributes:
        signal: the signal it is connected to.
        sender: sender whose signals count; None for every sender.
        task: the task, or its name.
    """

    signal: Signal
    sender: Any
    task: Task | str
    _act: Callable[[Task, Any, dict[str, Any]], None]
    _when: When | None
    _raw: bool
    _uid: str | None

    def __post_init__(self) -> None:
        if not isinstance(self.signal, Signal):
            raise Misconfigured(f"expected a signal like django.db.models.signals.post_save, got {short(self.signal)}")
        if not isinstance(self.task, str):
            find_task(self.task)  # a task given by name may be registered later
        self._when = _two_arguments(self._when)
        if self._uid is not None:
            self.signal.disconnect(sender=self.sender, dispatch_uid=self._uid)
        # A strong reference: callers of schedule_on() seldom keep the returned trigger.
        self.signal.connect(self._receive, sender=self.sender, weak=False, dispatch_uid=self._uid)

    def __repr__(self) -> str:
        return f"<Trigger {self.task} of {self.sender}>"

    def disconnect(self) -> bool:
        """Disconnect from the signal. Return True if it was connected."""
        sender = apps.get_model(self.sender) if isinstance(self.sender, str) else self.sender
        return bool(self.signal.disconnect(self._receive, sender=sender, dispatch_uid=self._uid))

    def _receive(self, *, sender: Any, **data: Any) -> None:
        data.pop("signal", None)
        if data.get("raw") and not self._raw:
            return  # loaddata: related rows may not exist yet
        instance = data.get("instance", sender)
        if self._when is not None and not self._when(instance, data.get("created")):
            return
        self._act(find_task(self.task), instance, data)


def schedule_on(
    signal: Signal,
    *,
    sender: Any = None,
    task: Task | str,
    when: When | None = None,
    raw: bool = False,
    dispatch_uid: str | None = None,
    **options: Any,
) -> Trigger:
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
        when: function of (instance, created) or (instance) that returns True if a job should be scheduled. ``created``
            is None if the signal does not provide it.
        raw: also handle rows loaded by ``loaddata``.
        dispatch_uid: a second call with the same value replaces the first one.
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

    def act(task: Task, instance: Any, data: dict[str, Any]) -> None:
        values = {name: _value(option, instance) for name, option in options.items()}
        args, kwargs = explicit(values.pop("args", None), values.pop("kwargs", None))
        if data.get("using") is not None:
            values.setdefault("using_db", data["using"])
        schedule_call(task, args, kwargs, values)

    return Trigger(signal, sender, task, act, when, raw, dispatch_uid)


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
) -> Trigger:
    """Cancel a job of ``task`` whenever ``signal`` is sent.

    Example::

        cancel_on(post_delete, sender=Order, task=cancel_order, id=lambda order: f"order-{order.pk}")

    Args:
        id: the job's id, or a function of the instance. After ``post_delete`` the instance still has its ``pk``.
        queue: queue of the job, if it is not the task's own.
        signal, sender, task, when, raw, dispatch_uid: see :func:`schedule_on`.
    """

    def act(task: Task, instance: Any, data: dict[str, Any]) -> None:
        cancel(id=_value(id, instance), task=task, queue=queue, using_db=data.get("using"))

    return Trigger(signal, sender, task, act, when, raw, dispatch_uid)


def _value(option: Any, instance: Any) -> Any:
    # A model class, for instance, is a value although it can be called.
    return option(instance) if callable(option) and not isinstance(option, (type, Model)) else option


def _two_arguments(when: When | None) -> When | None:
    """Return ``when`` in the form (instance, created); it may also take (instance) only."""
    if when is None:
        return None
    if not callable(when):
        raise Misconfigured(f"when must be a function of (instance, created) or (instance), got {short(when)}")
    try:
        inspect.signature(when).bind(None, None)
    except TypeError:
        return lambda instance, created: when(instance)
    except ValueError:  # a function without a signature
        pass
    return when
