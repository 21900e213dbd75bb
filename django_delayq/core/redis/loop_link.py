"""Connection of an event loop. Calls are sent as they come, and their replies are read in the same order.

Calls that begin in the same turn of the loop are sent in one piece, so that a thousand of them cost few system calls.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import ConnectionPool

#: most calls of a connection that have no reply yet; further ones wait. It bounds what a lost connection repeats.
WINDOW: Final = 256


class LoopLink:
    """Connection to one node, from connecting to closing; a new one takes its place.

    Args:
        pool: makes the connection.
        silence: seconds without any reply after which the connection counts as lost.
        old_at: moment (monotonic) at which it is to be replaced.
    """

    def __init__(self, pool: ConnectionPool, silence: float, old_at: float) -> None:
        self._pool = pool
        self._connection: Any = pool.make_connection()
        self._silence = silence
        self._old_at = old_at
        self._is_open = False
        self._is_over = False
        #: calls that need a reply, in the order in which they are sent
        self._placed: deque[_Call] = deque()
        #: calls behind them
        self._waiting: deque[_Call] = deque()
        #: commands that were not written yet
        self._unwritten: list[bytes] = []
        #: connects and reads, while a call needs a reply
        self._reader: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def exchange(self, packed: bytes, until: float) -> Any:
        """Send a packed command, once, and return the reply. It ends at ``until`` (monotonic).

        Raises:
            MaxConnectionsError: too many calls were without a reply until then.
        """
        loop = asyncio.get_running_loop()
        call = _Call(packed, loop.create_future())
        timer = loop.call_later(until - time.monotonic(), call.expire)
        self._waiting.append(call)
        self._place()
        try:
            return await call.reply
        finally:
            timer.cancel()

    @property
    def is_usable(self) -> bool:
        """False if the next call needs another connection."""
        if self._is_over or time.monotonic() >= self._old_at:
            return False
        return self._reader is not None or not self._is_open or not self._connection.is_lost()

    def retire(self) -> None:
        """Close it as soon as no call needs a reply."""
        self._is_over = True
        if self._reader is None:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Close it now. Calls without a reply fail."""
        self._is_over = True
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        self._fail(redis_errors.ConnectionError("the connection was closed"))  # if the reader had not begun
        await self._disconnect()

    # --- sending

    def _place(self) -> None:
        """Let waiting calls be sent at the end of this turn of the loop."""
        loop, is_first = asyncio.get_running_loop(), not self._unwritten
        while self._waiting and len(self._placed) < WINDOW:
            call = self._waiting.popleft()
            if not call.reply.done():
                call.is_placed = True
                self._placed.append(call)
                self._unwritten.append(call.packed)
        if self._reader is None:
            self._reader = loop.create_task(self._read_all())
        elif is_first and self._unwritten and self._is_open:
            loop.call_soon(self._write)

    def _write(self) -> None:
        packed, self._unwritten = self._unwritten, []
        if packed:
            self._connection.write(b"".join(packed))

    # --- reading

    async def _read_all(self) -> None:
        """Connect, and read replies until no call needs one."""
        try:
            if not self._is_open:
                await self._connection.connect()
                self._is_open = True
            self._write()
            async with asyncio.timeout(self._silence) as silence:
                while self._placed:
                    reply = await self._read()
                    silence.reschedule(asyncio.get_running_loop().time() + self._silence)
                    self._settle(reply)
        except asyncio.CancelledError:
            self._fail(redis_errors.ConnectionError("the connection was closed"))
        except TimeoutError:
            self._fail(redis_errors.TimeoutError("no answer within SOCKET_TIMEOUT"))
        except OSError as error:
            self._fail(redis_errors.ConnectionError(str(error)))
        except Exception as error:
            self._fail(error)
        finally:
            self._reader = None
            if self._is_over:
                await self._disconnect()

    async def _read(self) -> Any:
        try:
            return await self._connection.read_response()
        except redis_errors.ResponseError as error:
            return error

    def _settle(self, reply: Any) -> None:
        self._placed.popleft().settle(reply)
        if isinstance(reply, redis_errors.ReadOnlyError):
            self._is_over = True  # a new connection finds the new master
        if self._waiting:
            self._place()

    def _fail(self, error: Exception) -> None:
        self._is_over = True
        self._unwritten.clear()
        for calls in (self._placed, self._waiting):
            while calls:
                calls.popleft().settle(copy.copy(error))  # each caller adds its own traceback

    async def _disconnect(self) -> None:
        await self._connection.disconnect(nowait=True)
        await self._pool.disconnect()  # of Sentinels: the connections to them


class _Call:
    """Packed command whose reply is awaited."""

    __slots__ = ("is_placed", "packed", "reply")

    def __init__(self, packed: bytes, reply: asyncio.Future[Any]) -> None:
        self.packed = packed
        self.reply = reply
        #: True if it was sent, or will be as soon as there is a connection
        self.is_placed = False

    def settle(self, reply: Any) -> None:
        """Give the caller its reply, or the error; a caller that has gone needs neither."""
        if self.reply.done():
            return
        if isinstance(reply, Exception):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)

    def expire(self) -> None:
        """End the wait of the caller. A reply that comes later is read and dropped."""
        if self.is_placed:
            self.settle(redis_errors.TimeoutError("no answer within the time that a call may take"))
        else:
            self.settle(
                redis_errors.MaxConnectionsError(
                    f"Too many calls: the connection of this event loop was in use by {WINDOW} others that had no "
                    "reply; start fewer calls at the same time"
                )
            )
