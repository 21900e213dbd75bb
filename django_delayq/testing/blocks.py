"""Blocks in which a test has an in-memory queue: context managers, decorators and a mixin for test classes."""

from __future__ import annotations

import functools
import inspect
import unittest
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .. import connections
from . import dispatching
from .fake import Fake, active, actives
from .times import Moment

F = TypeVar("F", bound=Callable[..., Any])


class fake_queue:
    """In-memory queue with a clock that moves only on request: ``with fake_queue() as fake:`` or ``@fake_queue()``.

    Until the block ends, the in-memory broker replaces that of the whole process. As a decorator it accepts functions
    and coroutine functions; classes inherit from :class:`DelayQTestCase` instead.

    Args:
        at: time at which the clock is frozen (aware ``datetime`` or Unix seconds); None = the machine's current time.
        time_machine: move ``timezone.now()`` along with the clock; needs the package time-machine.
    """

    def __init__(self, at: Moment | None = None, *, time_machine: bool = False) -> None:
        self._options: dict[str, Any] = {"at": at, "time_machine": time_machine}
        self._stack: list[tuple[Fake, Any]] = []

    def __enter__(self) -> Fake:
        fake = Fake(**self._options)
        self._stack.append((fake, connections.stand_in(fake.broker)))
        actives.append(fake)
        return fake

    def __exit__(self, *_: object) -> None:
        fake, before = self._stack.pop()
        actives.remove(fake)
        connections.stand_in(before)
        fake.close()

    def __call__(self, function: F) -> F:
        if isinstance(function, type):
            raise TypeError("fake_queue() decorates functions; let the class inherit from DelayQTestCase instead")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def around(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def around(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return around  # type: ignore[return-value]


class immediate(fake_queue):
    """Block in which ``schedule()`` runs the job before it returns, or on commit in a transaction; delays are ignored.

    Exceptions of the job are raised by ``schedule()``. If the job runs after a commit (or is durable), where an
    exception would be swallowed, it is raised when the block ends. Inside ``fake_queue()`` its jobs and its clock are
    used. This mode is enabled only by an explicit call.
    """

    def __init__(self, at: Moment | None = None, *, time_machine: bool = False, _on: Fake | None = None) -> None:
        super().__init__(at, time_machine=time_machine)
        self._on = _on
        self._blocks: list[tuple[Fake, Any, bool]] = []

    def __enter__(self) -> Fake:
        own = self._on is None and not actives
        fake = super().__enter__() if own else self._on or active()
        self._blocks.append((fake, fake.broker.on_scheduled, own))
        fake.broker.on_scheduled = fake.run_at_once
        return fake

    def __exit__(self, kind: object = None, *rest: object) -> None:
        fake, before, own = self._blocks.pop()
        fake.broker.on_scheduled = before
        dispatching.store_completions(fake.broker)
        if own:
            super().__exit__(kind, *rest)
        errors, fake.errors = fake.errors, []
        if kind is None and errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("jobs that ran after their commits", errors)
        if kind is None:
            fake._warn_of_commit("immediate() did not run every job")


class DelayQTestCase:
    """Mixin for test classes of Django and unittest: ``class OrderTests(DelayQTestCase, TestCase)``; must come first.

    Each test has its own in-memory queue, ``self.delayq``; the class's set-up (``setUpTestData``) has another one.

    Attributes:
        delayq: the :class:`Fake` of the test.
        delayq_options: arguments of :class:`fake_queue`.
    """

    delayq: Fake
    delayq_options: Mapping[str, Any] = {}

    @classmethod
    def setUpClass(cls) -> None:
        """Give the set-up of the class a queue of its own."""
        fake = fake_queue(**cls.delayq_options)
        fake.__enter__()
        cls.addClassCleanup(fake.__exit__, None, None, None)  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test with its set-up and tear-down in a queue of its own."""
        with fake_queue(**self.delayq_options) as self.delayq:
            return super().run(result)  # type: ignore[misc, no-any-return]

    def debug(self) -> None:
        """Run the test without collecting a result."""
        with fake_queue(**self.delayq_options) as self.delayq:
            super().debug()  # type: ignore[misc]
