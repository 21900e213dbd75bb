"""Redis server of one folder: start, stop and status."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ..core.errors import Misconfigured
from . import folder
from .binaries import find_binary, server_version
from .probe import listens, send_command, try_lock, wait_for

START_TIMEOUT = 20.0  # seconds until the first reply; loading a large append-only file may take longer
STOP_TIMEOUT = 10.0
LOCK_TIMEOUT = 60.0


class _Server(subprocess.Popen[bytes]):
    """Process handle of a server that outlives its starter while others use it; dropping the handle is not a leak."""

    def __del__(self) -> None:
        pass


class EmbeddedRedis:
    """Redis server of one folder.

    Args:
        directory: is created (mode 0700) with its parents; it holds the data, the log, the locks and the password. An
            existing one must be accessible to this user only (see :mod:`.folder`).
        appendfsync: "everysec" (a power failure may lose a second), "always" (every write is on disk first) or "no".
        binary: the server program (default: :func:`~.binaries.find_binary`).
        port: also listen on this loopback TCP port. Every user of the machine can connect to it, so the folder's server
            gets a random password, which is in :attr:`url` and :attr:`tcp_url` from then on. 0 = only the unix socket.
        extra: further server arguments, e.g. ``("--maxmemory", "256mb")``.

    Raises:
        Misconfigured: the server cannot be found or started, or the folder is not safe to use.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        appendfsync: str = "everysec",
        binary: str | None = None,
        port: int = 0,
        extra: Sequence[str] = (),
    ) -> None:
        if appendfsync not in ("everysec", "always", "no"):
            raise Misconfigured(f"appendfsync is {appendfsync!r}; use 'everysec', 'always' or 'no'.")
        self.directory = Path(directory).absolute()
        self.appendfsync = appendfsync
        self.binary = binary
        self.port = port
        self.extra = tuple(extra)
        self._process: _Server | None = None
        self._users_lock: int | None = None
        self._socket: Path | None = None

    # state

    @property
    def socket_path(self) -> Path:
        """Path of the unix socket. A folder whose path is too long for one gets a short socket folder under /tmp."""
        if self._socket is None:
            self._socket = folder.socket_path(self.directory)
        return self._socket

    @property
    def url(self) -> str:
        """URL for redis-py, e.g. ``unix:///srv/shop/.delayq/redis.sock``, with the password if there is one."""
        return f"unix://{self._access}{quote(str(self.socket_path))}"

    @property
    def tcp_url(self) -> str:
        """URL of the TCP port, with the password.

        Raises:
            Misconfigured: this object has no ``port``.
        """
        if not self.port:
            raise Misconfigured("This EmbeddedRedis listens on no TCP port; create it with port=…")
        return f"redis://{self._access}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None if no server replies."""
        return self._info("process_id")

    @property
    def running(self) -> bool:
        """True if a server replies on the socket now."""
        return self._send_command(b"PING\r\n").startswith(b"+PONG")

    @property
    def owner(self) -> bool:
        """True if this object started the server."""
        return self._process is not None

    @property
    def _access(self) -> str:
        secret = folder.password(self.directory)
        return f":{secret}@" if secret else ""

    def _info(self, name: str) -> int | None:
        match = re.search(rf"{name}:(\d+)".encode(), self._send_command(b"INFO server\r\n"))
        return int(match[1]) if match else None

    def _send_command(self, request: bytes) -> bytes:
        return send_command(self.socket_path, request, folder.password(self.directory))

    # commands

    def start(self) -> EmbeddedRedis:
        """Connect to the folder's server, starting it if there is none. Return self once it replies."""
        folder.prepare(self.directory)
        folder.note_socket(self.directory, self.socket_path)
        with self._exclusive():
            if self._users_lock is None:
                self._users_lock = folder.open_lock(self.directory, "users.lock")
                fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            try:
                # A server that is loading its file or busy exists although it does not reply PONG.
                if not listens(self.socket_path):
                    self._launch()
                self._await_reply()
                self._check_port()
            except BaseException:
                self._end_process()
                self._release_users_lock()
                raise
        return self

    def stop(self) -> None:
        """Stop the server if this object started it, even while others use it; otherwise only release it."""
        if self.owner:
            with self._exclusive():
                self._end_process()
        self.release()

    def release(self) -> None:
        """Release the server; the last user stops it."""
        if self._users_lock is None:
            return
        with self._exclusive():
            try:
                fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # others still use it
                self._process = None
            else:
                self._end_process()
                self._end_other_server()
            self._release_users_lock()

    def kill(self) -> None:
        """``kill -9`` the server (to test crashes). ``start()`` restarts it with its data."""
        if self.directory.exists():
            folder.check(self.directory)  # another user's server could name any process to kill
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        elif pid is not None:
            wait_for(lambda: not listens(self.socket_path), STOP_TIMEOUT)

    def __enter__(self) -> EmbeddedRedis:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # steps

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        lock = folder.server_lock(self.directory)
        try:
            if not wait_for(lambda: try_lock(lock), LOCK_TIMEOUT):
                raise Misconfigured(
                    f"Another process has been starting or stopping the Redis in {self.directory} for "
                    f"{LOCK_TIMEOUT:g} s. See {self.directory / 'redis.log'}."
                )
            yield
        finally:
            os.close(lock)

    def _launch(self) -> None:
        binary = self.binary or find_binary()
        version = server_version(binary)
        if version < (6, 2):
            raise Misconfigured(f"{binary} is Redis {'.'.join(map(str, version))}; 6.2 or newer is needed.")
        if version < (7,) and (self.directory / "appendonlydir").exists():
            raise Misconfigured(
                f"{self.directory} was written by Redis 7 or newer, but {binary} is {'.'.join(map(str, version))} "
                "and would start empty. Use the newer server, or move the folder away to begin with an empty queue."
            )
        self.socket_path.unlink(missing_ok=True)  # left behind by a crash; no server listens
        if self.port:
            folder.make_password(self.directory)
        # In a file, because every user can read the command line of a process.
        access = folder.access_file(self.directory)
        command = [
            binary,
            *([str(access)] if access.exists() else []),
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket_path), "--unixsocketperm", "700"),
            *("--dir", str(self.directory), "--logfile", str(self.directory / "redis.log"), "--daemonize", "no"),
            *("--appendonly", "yes", "--appendfsync", self.appendfsync, "--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *self.extra,
        ]
        # A session of its own: Ctrl-C in the terminal must reach the worker first, not its Redis.
        self._process = _Server(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )

    def _await_reply(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            reply = self._send_command(b"PING\r\n")
            if reply.startswith(b"+PONG"):
                self._close_output()
                return
            if self._process is not None and self._process.poll() is not None:
                raise Misconfigured(f"The embedded Redis exited immediately: {self._log_excerpt()}")
            if time.monotonic() > deadline and not reply.startswith(b"-LOADING"):
                raise Misconfigured(f"The embedded Redis did not answer in {START_TIMEOUT:g} s: {self._log_excerpt()}")
            time.sleep(0.01)

    def _check_port(self) -> None:
        """Raise Misconfigured for a server that another process started without our port."""
        if self.port and self._info("tcp_port") not in (None, self.port):
            raise Misconfigured(
                f"The embedded Redis in {self.directory} is already running, without port {self.port}. Stop the "
                f"processes that use it, or leave port= out."
            )

    def _log_excerpt(self) -> str:
        output = b""
        if self._process is not None and self._process.stdout is not None and self._process.poll() is not None:
            output = self._process.stdout.read()
            self._close_output()
        log = self.directory / "redis.log"
        with contextlib.suppress(OSError):
            output += log.read_bytes()[-2000:]
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        return f"{' / '.join(lines[-3:]) or 'no output'} (log: {log})"

    def _close_output(self) -> None:
        # After the start everything goes to the log file; without a reader the server would only get EPIPE.
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdout is not None:
            process.stdout.close()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)

    def _end_other_server(self) -> None:
        """Stop a server that another process started, after this process became its last user."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            if not wait_for(lambda: not listens(self.socket_path), STOP_TIMEOUT):
                os.kill(pid, signal.SIGKILL)

    def _release_users_lock(self) -> None:
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None
