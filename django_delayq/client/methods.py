"""Verbs that are defined once for both clients.

A verb is a generator of the steps that it needs. :class:`verb` and :class:`listing` make a method of it that performs
them: on the classes derived from :class:`Blocking` a function, on those derived from :class:`Asynchronous` a coroutine
function, with the types that belong to each.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from .wire import Steps

P = ParamSpec("P")
T = TypeVar("T")

#: fetches one page of a list: from its cursor (None = the first page) to its items and the cursor of the next page
Pages: TypeAlias = Callable[[str | None], Steps[tuple[list[T], str | None]]]


class Blocking:
    """Base of classes whose verbs block until they are performed."""

    __slots__ = ()

    def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    @staticmethod
    def _method(steps: Callable[..., Steps[T]]) -> Callable[..., T]:
        @functools.wraps(steps)
        def method(self: Blocking, *args: Any, **kwargs: Any) -> T:
            return self._run(steps(self, *args, **kwargs))

        return method

    @staticmethod
    def _iterator_method(pages: Callable[..., Pages[T]]) -> Callable[..., Iterator[T]]:
        @functools.wraps(pages)
        def method(self: Blocking, *args: Any, **kwargs: Any) -> Iterator[T]:
            page, cursor = pages(self, *args, **kwargs), None
            while True:
                items, cursor = self._run(page(cursor))
                yield from items
                if not cursor:
                    return

        return method


class Asynchronous:
    """Base of classes whose verbs are awaited."""

    __slots__ = ()

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    @staticmethod
    def _method(steps: Callable[..., Steps[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @functools.wraps(steps)
        async def method(self: Asynchronous, *args: Any, **kwargs: Any) -> T:
            return await self._run(steps(self, *args, **kwargs))

        return method

    @staticmethod
    def _iterator_method(pages: Callable[..., Pages[T]]) -> Callable[..., AsyncIterator[T]]:
        @functools.wraps(pages)
        async def method(self: Asynchronous, *args: Any, **kwargs: Any) -> AsyncIterator[T]:
            page, cursor = pages(self, *args, **kwargs), None
            while True:
                items, cursor = await self._run(page(cursor))
                for item in items:
                    yield item
                if not cursor:
                    return

        return method


class verb(Generic[P, T]):
    """Method that performs the steps of a generator and returns its result."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return _bound(owner._method(self._steps), instance)


class listing(Generic[P, T]):
    """Method that iterates over all items of a list; it fetches the pages as they are needed."""

    def __init__(self, pages: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        self._pages = pages

    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return _bound(owner._iterator_method(self._pages), instance)


def _bound(function: Any, instance: Any) -> Any:
    return function if instance is None else function.__get__(instance)
