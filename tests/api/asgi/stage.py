"""A real server of the API under ASGI, and those who talk to it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from django_delayq.connections import DjangoBroker
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support import processes
from tests.support.processes import wait_until

#: s; what a slow machine may need for anything that has no bound of its own
PATIENCE = 30.0
PREFIX = "asgi"


class Server:
    """One uvicorn process. ``broker`` looks behind it."""

    def __init__(self, port: int, env: dict[str, str], token: str, broker: DjangoBroker) -> None:
        self.port = port
        self.env = env
        self.token = token
        self.broker = broker
        self.process: subprocess.Popen[str] | None = None

    def program(self) -> Program:
        """Client that sends one request after another."""
        return Program(self)

    def ask(self, path: str, body: Any = None, **headers: str) -> Pending:
        """A request on a connection of its own, whose answer nobody waits for yet."""
        return Pending(self, path, body, headers)

    def post(self, verb: str, body: Any = None) -> Any:
        """Return the response of a verb of the queue "feed"."""
        with closing(self.program()) as program:
            return program.post(verb, body)

    def handlers(self) -> dict[str, str]:
        """Return the signal handlers of the process."""
        with closing(self.program()) as program:
            return dict(program("GET", "/handlers")[1])

    def waits(self) -> dict[str, int]:
        """Return how many requests wait now, and how many of them sleep."""
        with closing(self.program()) as program:
            return dict(program("GET", "/waits")[1])

    def wait_until(self, sleeping: int) -> None:
        """Return as soon as so many requests wait, and all of them sleep."""
        expected = {"waiting": sleeping, "sleeping": sleeping}
        seen: dict[str, int] = {}

        def is_reached() -> bool:
            seen.update(self.waits())
            return seen == expected

        try:
            # Each look is a request to the server; more of them would take its time from the waits.
            wait_until(is_reached, PATIENCE, f"{sleeping} waits that sleep", pause=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {seen}") from None

    def places(self, queue: str) -> dict[str, int]:
        """Count the jobs of a queue by place; empty places are left out."""
        counts = self.broker.inspector.counts(queue)
        names = ("ready", "delayed", "reserved", "failed", "morgue")
        return {name: getattr(counts, name) for name in names if getattr(counts, name)}


class Program:
    """``program("POST", "/delayq/v1/queues/feed/ack", {…})`` gives ``(status, body)``. For one thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        #: of the last answer
        self.headers: http.client.HTTPMessage | None = None

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        self._line.request(method, path, None if body is None else json.dumps(body), _headers(self._server, headers))
        response = self._line.getresponse()
        content = response.read()
        self.headers = response.headers
        return response.status, json.loads(content) if content else None

    def post(self, verb: str, body: Any = None, queue: str = "feed") -> Any:
        """Return the response of a queue's verb."""
        status, answer = self("POST", f"/delayq/v1/queues/{queue}/{verb}", body)
        assert status == 200, answer
        return answer

    def close(self) -> None:
        self._line.close()


class Pending:
    """A request that was sent."""

    def __init__(self, server: Server, path: str, body: Any, headers: dict[str, str]) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self._line.request("POST", f"/delayq/v1/{path}", json.dumps(body or {}), _headers(server, headers))

    def hang_up(self) -> None:
        """The client is gone."""
        self._line.close()

    def answer(self) -> tuple[int, Any, http.client.HTTPMessage]:
        """Waits for it: status, body, headers."""
        response = self._line.getresponse()
        body = json.loads(response.read())
        self._line.close()
        return response.status, body, response.headers


def _headers(server: Server, more: dict[str, str]) -> dict[str, str]:
    return {"Content-Type": "application/json", "Authorization": f"Token {server.token}", **more}


def environment(redis_url: str, database: str) -> dict[str, str]:
    """Of the server and everything that belongs to it."""
    return {
        "DJANGO_SETTINGS_MODULE": "tests.api.asgi.settings",
        "DELAYQ_TEST_URL": redis_url,
        "DELAYQ_TEST_PREFIX": PREFIX,
        "DELAYQ_TEST_DB": database,
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    }


def prepared(env: dict[str, str]) -> tuple[str, str]:
    """Makes the database; the tokens of two users who may consume, produce and view."""
    process = processes.spawn([sys.executable, "-m", "tests.api.asgi.prepare"], env=env, stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == 0
    processes.unwatch(process.pid)
    one, other = str(said).split()[-2:]
    return one, other


@contextmanager
def running(env: dict[str, str], token: str) -> Iterator[Server]:
    """A server that answers."""
    connection = connect(RedisConfig.parse(env["DELAYQ_TEST_URL"]))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as line:
        command = [sys.executable, "-m", "tests.api.asgi.serve", "--fd", str(line.fileno())]
        server = Server(line.getsockname()[1], env, token, DjangoBroker(connection, prefix=PREFIX))
        server.process = processes.spawn(command, env=env, pass_fds=[line.fileno()])
    try:
        server.waits()
        yield server
    finally:
        processes.end(server.process, timeout=PATIENCE)
        connection.close()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of a call."""
    began = time.monotonic()
    found = call()
    return time.monotonic() - began, found
