"""TCP proxy with injected faults, between a client and a server on loopback.

with TcpProxy(box.address) as proxy:
    client = redis.Redis(host=proxy.host, port=proxy.port)
    proxy.cut_after_request(1)        # the server applies the next request, its reply never arrives
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum


class Mode(Enum):
    PASS = "pass"
    REFUSE = "refuse"  # connections are refused, open ones are reset
    BLACKHOLE = "blackhole"  # connections are accepted, no byte passes in either direction, nothing is closed
    DELAY = "delay"  # every chunk waits ``seconds`` in each direction


class Cut(Enum):
    NONE = "none"
    AFTER_REQUEST = "after request"  # forward the request, wait for the reply, drop it and reset both sides
    BEFORE_REQUEST = "before request"  # drop the request and reset both sides


class TcpProxy:
    """Proxy from a free loopback port to ``address`` (host and port, or the path of a unix socket).

    ``mode`` and the cuts may be changed at any time from any thread; they act on open connections too.
    """

    def __init__(self, address: tuple[str, int] | str) -> None:
        self.target = address
        self.host = "127.0.0.1"
        self.port = 0
        self.connections = 0  # accepted so far
        self.cuts_done = 0
        self._then_refuse = False
        self._mode = Mode.PASS
        self._delay = 0.0
        self._cut = Cut.NONE
        self._cut_countdown = 0
        self._cuts_left = 0
        self._cut_when: Callable[[bytes], int] = lambda chunk: True
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    # modes

    def passing(self) -> None:
        """Forward everything, as at the start; also data that a blackhole held back."""
        self._set(Mode.PASS)

    def refuse(self) -> None:
        """Reset open connections and refuse new ones."""
        self._set(Mode.REFUSE)

    def blackhole(self) -> None:
        """Accept and keep connections, forward nothing."""
        self._set(Mode.BLACKHOLE)

    def delay(self, seconds: float) -> None:
        """Delay every chunk by ``seconds`` in each direction."""
        self._set(Mode.DELAY, seconds)

    def cut_after_request(
        self, nth: int = 1, *, when: Callable[[bytes], int] | None = None, times: int = 1, then_refuse: bool = False
    ) -> None:
        """Let the server apply the ``nth`` request from now, drop its answer and reset the connection.

        So are the next ones, ``times`` in all. Then all is well again, or with ``then_refuse`` all is refused.
        ``when(bytes)`` returns how many of the requests that count are in a chunk; without it each chunk is one.
        """
        self._arm(Cut.AFTER_REQUEST, nth, when, times, then_refuse)

    def cut_before_request(
        self, nth: int = 1, *, when: Callable[[bytes], int] | None = None, then_refuse: bool = False
    ) -> None:
        """Reset the connection at the ``nth`` request from now, which does not reach the server. Then forward again.

        With ``then_refuse`` all is refused from that moment.
        """
        self._arm(Cut.BEFORE_REQUEST, nth, when, then_refuse=then_refuse)

    def reset_connections(self) -> None:
        """Reset every open connection once (RST on both sides)."""
        for link in list(self._links):
            link.reset()

    # life

    def start(self) -> TcpProxy:
        """Listen; ``port`` is known from then on and kept over refusals."""
        self._listen()
        return self

    def close(self) -> None:
        """Close everything and wait for the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._stop_listening()
        self.reset_connections()
        for thread in list(self._threads):
            thread.join(5)

    def __enter__(self) -> TcpProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """``redis://`` URL through the proxy."""
        return f"redis://{self.host}:{self.port}/0"

    # internals

    def _set(self, mode: Mode, delay: float = 0.0) -> None:
        with self._changed:
            before, self._mode, self._delay = self._mode, mode, delay
            self._changed.notify_all()
        if mode is Mode.REFUSE:
            self._stop_listening()
            self.reset_connections()
        elif before is Mode.REFUSE:
            self._listen()

    def _arm(
        self, cut: Cut, nth: int, when: Callable[[bytes], int] | None, times: int = 1, then_refuse: bool = False
    ) -> None:
        with self._changed:
            self._then_refuse = then_refuse
            self._cut, self._cut_countdown, self._cut_when = cut, nth, when or (lambda chunk: True)
            self._cuts_left = times

    def _take_cut(self, chunk: bytes) -> Cut:
        with self._changed:
            requests = 0 if self._cut is Cut.NONE else int(self._cut_when(chunk))
            if not requests:
                return Cut.NONE
            self._cut_countdown -= requests
            if self._cut_countdown > 0:
                return Cut.NONE
            cut = self._cut
            self.cuts_done += 1
            self._cuts_left -= 1
            if not self._cuts_left:
                self._cut = Cut.NONE
            return cut

    def _gate(self) -> None:
        """Wait while chunks must not pass; raise ConnectionResetError when they never will."""
        with self._changed:
            self._changed.wait_for(lambda: self._mode is not Mode.BLACKHOLE or self._closed)
            if self._mode is Mode.DELAY:
                self._changed.wait_for(lambda: self._mode is not Mode.DELAY or self._closed, self._delay)
            if self._mode is Mode.REFUSE or self._closed:
                raise ConnectionResetError

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._run(self._accept, listener)

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accept()
            listener.close()

    def _run(self, function: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=self._body, args=(function, *args), name=function.__name__, daemon=True)
        thread.start()
        self._threads.add(thread)  # only now, because close() joins the threads in this set
        if not thread.is_alive():
            self._threads.discard(thread)

    def _body(self, function: Callable[..., None], *args: object) -> None:
        try:
            function(*args)
        finally:
            self._threads.discard(threading.current_thread())

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
            try:
                server.connect(self.target)
            except OSError:
                _reset(client)
                server.close()
                continue
            link = _Link(client, server)
            self._links.add(link)
            self._run(self._requests, link)
            self._run(self._answers, link)

    def _requests(self, link: _Link) -> None:
        try:
            while chunk := link.client.recv(65536):
                self._gate()
                cut = self._take_cut(chunk)
                if cut is Cut.BEFORE_REQUEST:
                    self._cut_off(link)
                    return
                link.deaf = link.deaf or cut is Cut.AFTER_REQUEST
                link.server.sendall(chunk)
        except OSError:
            pass
        finally:
            self._hang_up(link)

    def _answers(self, link: _Link) -> None:
        try:
            while chunk := link.server.recv(65536):
                if link.deaf:  # the server has answered, so it has applied the request
                    self._cut_off(link)
                    return
                self._gate()
                link.client.sendall(chunk)
        except OSError:
            pass
        finally:
            self._hang_up(link)

    def _cut_off(self, link: _Link) -> None:
        if self._then_refuse:
            self.refuse()
        link.reset()

    def _hang_up(self, link: _Link) -> None:
        link.end_one()
        if link.ended:
            self._links.discard(link)


class _Link:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.deaf = False
        self._open_ends = 2
        self._guard = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._open_ends == 0

    def reset(self) -> None:
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)  # wakes the other thread's recv(), which then closes

    def end_one(self) -> None:
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        with self._guard:
            self._open_ends -= 1
            last = self._open_ends == 0
        if last:  # only now: a thread must not wait on a descriptor whose number could be reused
            self.client.close()
            self.server.close()


def _reset(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.close()
