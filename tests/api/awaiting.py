"""Blocking stand-in for ``AsyncClient``, so that the same tests run for both clients."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from django_delayq.client import AsyncClient, AsyncHeldJob


class AwaitingClient:
    """``AsyncClient`` whose coroutines are awaited in an event loop of its own; its lists are plain iterators."""

    def __init__(self, url: str, **options: Any) -> None:
        self._inner = AsyncClient(url, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        return _blocking(self, getattr(self._inner, name))

    def await_(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self.await_(self._inner.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> AwaitingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AwaitingJob:
    """``AsyncHeldJob`` whose coroutines are awaited."""

    def __init__(self, client: AwaitingClient, inner: AsyncHeldJob) -> None:
        self._client = client
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return _blocking(self._client, getattr(self.inner, name))

    def twin(self) -> AwaitingJob:
        inner = self.inner
        return AwaitingJob(
            self._client,
            AsyncHeldJob(
                queue=inner.queue,
                id=inner.id,
                lease=inner.lease,
                key=inner.key,
                task=inner.task,
                body=None,
                _client=inner._client,
            ),
        )

    def __enter__(self) -> AwaitingJob:
        self._client.await_(self.inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.await_(self.inner.__aexit__(*error))


def _blocking(client: AwaitingClient, value: Any) -> Any:
    if inspect.iscoroutinefunction(value):

        def call(*args: Any, **kwargs: Any) -> Any:
            return _wrapped(client, client.await_(value(*map(_bare, args), **kwargs)))

        return call
    if inspect.isasyncgenfunction(value):

        def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = value(*args, **kwargs)
            while (item := client.await_(anext(items, None))) is not None:
                yield item

        return iterate
    return value


def _wrapped(client: AwaitingClient, value: Any) -> Any:
    if isinstance(value, list):
        return [AwaitingJob(client, one) if isinstance(one, AsyncHeldJob) else one for one in value]
    return value


def _bare(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [one.inner if isinstance(one, AwaitingJob) else one for one in value]
    return value
